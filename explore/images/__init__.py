"""Sets of images with classes; a new set is one new file here."""

from pathlib import Path

from explore.data.source import fetched
from explore.images.base import Images
from explore.images.reading import read, read_inputs

__all__ = ["Images", "load", "read", "read_inputs"]


def load(name: str, folder: Path | None = None) -> Images:
    """Load a benchmark set by its name in `explore list images`; see `explore.data.load`.

    In the folder it is `mnist/train-images-idx3-ubyte.gz` or `cifar10/test.npz`.
    """
    images: Images = fetched("images", name, folder, Images)
    return images
