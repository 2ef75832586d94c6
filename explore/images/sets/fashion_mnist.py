"""Fashion-MNIST: clothes from a shop (60,000 + 10,000 grey images of 28 x 28)."""

from pathlib import Path

from explore.data.source import local
from explore.images.base import Images
from explore.images.source import HOLDS, idx_set

DEBIAN = Path("/usr/share/datasets")  # where the package dataset-fashion-mnist puts them


def fashion_mnist(folder: Path | None = None) -> Images:
    """The four official files, also where Debian's package has them."""
    where = "fashion-mnist"
    if DEBIAN.is_dir() and local(f"{where}/train-images-idx3-ubyte.gz", folder, HOLDS) is None:
        folder = DEBIAN
    return idx_set(
        "fashion-mnist", folder, where,
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
        {
            "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        },
        ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"),
    )  # fmt: skip
