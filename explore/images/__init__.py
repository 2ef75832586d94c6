"""Image classification data sets. To add a data set, add a file to `explore/images/sets`."""

from pathlib import Path

from explore.data.source import fetched
from explore.images.base import Images
from explore.images.reading import read, read_inputs

__all__ = ["Images", "load", "read", "read_inputs"]


def load(name: str, folder: Path | None = None) -> Images:
    """Load a benchmark image set by its name in `explore list images`, in the same way as `explore.data.load`.

    The folder has files such as `mnist/train-images-idx3-ubyte.gz` or `cifar10/test.npz`.
    """
    return fetched("images", name, folder, Images)
