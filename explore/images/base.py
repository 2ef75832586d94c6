"""A set of images as a value."""

from typing import Any, NamedTuple

import numpy as np

from explore.core.errors import InputError
from explore.images.disk import ImageFiles

__all__ = ["Images", "checked"]


class Images(NamedTuple):
    """Images for training and for testing, as bytes, in the order of their files."""

    name: str
    x: Any  # uint8 [N, channels, height, width]: an array, or images in their files
    y: np.ndarray  # int64 [N] class indices
    test_x: Any  # of as many as there are, which may be none
    test_y: np.ndarray
    classes: tuple[str, ...]  # the name of each class index
    augmentation: str = "none"  # what is common for it: "none", "crop" or "crop-flip"
    note: str = ""  # a sentence on what was left out, if there is anything to say

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width."""
        _, channels, height, width = self.x.shape
        return channels, height, width

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of each channel over the training images, in [0, 255]; of a constant one 1.

        Of images that stay in their files over at most 10,000, at equal distances.
        """
        chunks = self.x.chunks(self.x.counted()) if isinstance(self.x, ImageFiles) else [self.x]
        counts = np.sum([_counts(chunk) for chunk in chunks], 0)
        values, share = np.arange(256.0), counts / counts.sum(1, keepdims=True)
        mean = share @ values
        deviation = np.sqrt((share * (values - mean[:, None]) ** 2).sum(1))
        return mean, np.where(deviation > 0, deviation, 1.0)


def _counts(x: np.ndarray) -> np.ndarray:
    """How often each of the 256 values comes in each channel: a sum would need numbers eight times as long."""
    return np.stack([np.bincount(x[:, c].reshape(-1), minlength=256) for c in range(x.shape[1])])


def checked(images: Images) -> Images:
    """The same, if there is something to learn in it.

    Raises:
        InputError: where images and classes do not fit each other.
    """
    for part, x, y in (("training", images.x, images.y), ("test", images.test_x, images.test_y)):
        if x.dtype != np.uint8 or x.ndim != 4 or x.shape[1] not in (1, 3):
            raise InputError(
                f"the {part} images of {images.name} are {x.dtype} {list(x.shape)}; they must be uint8 [images, 1 or 3 "
                "channels, height, width]"
            )
        if len(x) != len(y) or (part == "training" and not len(x)):
            raise InputError(f"{images.name} has {len(x)} {part} images and {len(y)} classes of them")
        if len(y) and not (0 <= y.min() and y.max() < len(images.classes)):
            raise InputError(f"the {part} classes of {images.name} must be 0 to {len(images.classes) - 1}")
    if images.x.shape[1:] != images.test_x.shape[1:]:
        raise InputError(
            f"the training images of {images.name} are {list(images.x.shape[1:])}, the test images "
            f"{list(images.test_x.shape[1:])}; all must have one shape"
        )
    if len(images.classes) < 2:
        raise InputError(f"{images.name} has {len(images.classes)} class; there must be at least two")
    return images
