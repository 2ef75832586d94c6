"""MNIST: handwritten digits (60,000 + 10,000 grey images of 28 x 28)."""

from pathlib import Path

from explore.images.base import Images
from explore.images.source import idx_set


def mnist(folder: Path | None = None) -> Images:
    """The four official files."""
    return idx_set(
        "mnist", folder, "mnist", "https://storage.googleapis.com/cvdf-datasets/mnist",
        {
            "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        },
        tuple("0123456789"),
    )  # fmt: skip
