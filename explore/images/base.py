"""Image data sets, in memory or in files that are decoded on demand."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int, UInt8
from PIL import Image, ImageOps

from explore.core import machine
from explore.core.errors import InputError, shown
from explore.core.files import check_regular
from explore.data import packed

MOST = 16384  # largest height or width, in pixels
ORIENTATION = 0x0112  # the EXIF tag; values from 5 on swap height and width
BITS, PHOTOMETRIC = 258, 262  # TIFF tags: bits per channel, and 0 if white is 0; Pillow ignores both for 16-bit modes
CHUNK = 256  # images to decode at a time
COUNTED = 10_000  # most images in files to use for `Images.moments`


class Images(NamedTuple):
    """A data set of training and test images, as bytes, in file order."""

    name: str
    x: Any  # uint8 [N, channels, height, width]: an array, or `ImageFiles`
    y: np.ndarray  # int64 [N] class indices
    test_x: Any  # like x; may be empty
    test_y: np.ndarray
    classes: tuple[str, ...]  # the name of each class index
    augmentation: str = "none"  # the usual augmentation: "none", "crop" or "crop-flip"
    note: str = ""  # sentences on skipped files

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of an image: (channels, height, width)."""
        return self.x.shape[1:]

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean and standard deviation (1 if constant) of each channel of the training images.

        Pixel values are in [0, 255]. For images in files, at most 10,000 evenly spaced images are used.
        """
        x = self.x
        chunks = x.chunks(range(0, len(x), -(-len(x) // COUNTED))) if isinstance(x, ImageFiles) else [x]
        # Count each of the 256 values: summing would need a copy of the images in float64, eight times as large.
        channels = range(self.shape[0])
        counts = np.sum([[np.bincount(chunk[:, c].ravel(), minlength=256) for c in channels] for chunk in chunks], 0)
        values, share = np.arange(256.0), counts / counts.sum(1, keepdims=True)
        mean = share @ values
        deviation = np.sqrt((share * (values - mean[:, None]) ** 2).sum(1))
        return mean, np.where(deviation > 0, deviation, 1.0)


@contextmanager
def opened(file: Path) -> Iterator[Image.Image]:
    """Open an image without decoding it; raise InputError if it is invalid, too large or of unsupported bit depth."""
    try:
        check_regular(file)
        with Image.open(file) as image:
            if max(image.size) > MOST:
                raise InputError(f"{file} has {image.size[0]} x {image.size[1]} pixels; use at most {MOST} a side")
            size = math.prod(image.size) * len(image.getbands())
            packed.check_size(size, packed.most_of(file.stat().st_size), file)
            tags = getattr(image, "tag_v2", {})
            plain = tags.get(BITS, (16,))[0] == 16 and tags.get(PHOTOMETRIC, 1) == 1
            deep = image.mode in ("I", "F") and (image.mode, image.format) != ("I", "PPM")
            if deep or (image.mode.startswith("I;16") and not plain):
                kinds = "use 8 bits per channel, or 16-bit grey PNG, PPM or TIFF files in which 0 is black"
                raise InputError(f"{file} has an unsupported pixel format ({image.format}, mode {image.mode}); {kinds}")
            yield image
    except InputError:
        raise
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise InputError(f"cannot read {file} as an image ({shown(str(error))})") from None


def decoded(file: Path, sides: tuple[int, ...] | None, grey: bool) -> UInt8[np.ndarray, "C H W"]:
    """Decode an image to bytes; scale and crop it to `sides` (height, width), if given.

    Keep the upper eight bits of 16-bit grey values, and place transparent images on white.
    """
    with opened(file) as image:
        plain = ImageOps.exif_transpose(image)
        if image.mode.startswith("I"):
            values = np.asarray(plain)  # `convert` would clip them to 255
            clear = image.info.get("transparency")  # the one value that is transparent
            plain = Image.fromarray(np.where(values == clear, 255, values >> 8).astype(np.uint8))
        elif image.has_transparency_data:
            plain = Image.alpha_composite(Image.new("RGBA", plain.size, "white"), plain.convert("RGBA"))
        plain = plain.convert("L" if grey else "RGB")
    if sides is not None:
        plain = ImageOps.fit(plain, (sides[1], sides[0]), Image.Resampling.BILINEAR)
    return np.asarray(plain).reshape(plain.height, plain.width, -1).transpose(2, 0, 1)


def inspected(file: Path) -> tuple[tuple[int, int], str]:
    """Return (height, width) of an image, and its conversion: "deep" (16 to 8 bits), "transparent" or "" (none)."""
    with opened(file) as image:
        (width, height), turned = image.size, image.getexif().get(ORIENTATION, 1) >= 5
        conversion = "deep" if image.mode.startswith("I") else "transparent" if image.has_transparency_data else ""
        return (width, height) if turned else (height, width), conversion


class ImageFiles:
    """Images in files, indexed like an array uint8 [N, channels, height, width]; threads decode images on demand.

    `sides` are (height, width) to scale and crop the images to; None: all must have the size of the first. `grey`:
    read them as greyscale, with one channel. `shape` (channels, height, width) of decoded images saves decoding one.
    """

    dtype = np.dtype(np.uint8)
    ndim = 4

    def __init__(
        self, files: Sequence[Path], sides: tuple[int, ...] | None, grey: bool, shape: Sequence[int] | None = None
    ):
        self.files, self._sides, self._grey = files, sides, grey
        one = decoded(files[0], sides, grey).shape if shape is None else shape
        self.shape: tuple[int, ...] = (len(files), *one)
        self.nbytes = math.prod(self.shape)  # size of all images when decoded
        self._coming: dict[int, Future[np.ndarray]] = {}

    def __len__(self) -> int:
        return len(self.files)

    def part(self, points: Iterable[int]) -> "ImageFiles":
        """Return the subset of images at indices `points`."""
        return ImageFiles([self.files[int(i)] for i in points], self._sides, self._grey, self.shape[1:])

    def check(self) -> Counter[str]:
        """Count the images by their conversion. Raise InputError if one is damaged, or sizes differ without `sides`."""
        conversions: Counter[str] = Counter()
        for file, (sides, conversion) in zip(self.files, self._threads.map(inspected, self.files), strict=True):
            conversions[conversion] += 1
            if self._sides is None and sides != self.shape[2:]:
                sizes = f"{sides[1]} x {sides[0]} pixels, others {self.shape[3]} x {self.shape[2]}"
                raise InputError(f"{file} has {sizes}; pass --size to scale all images to one size, such as 32")
        return conversions

    def ahead(self, points: Int[np.ndarray, "..."]) -> None:
        """Start decoding the images at indices `points`, which are needed next; cancel the decoding of all others."""
        wanted = points.flatten().tolist()
        for i in self._coming.keys() - {*wanted}:
            self._coming.pop(i).cancel()
        self._start(wanted)

    def __getitem__(self, points: slice | Int[np.ndarray, "..."]) -> UInt8[np.ndarray, "... C H W"]:
        """Return the decoded images for a slice, or for an index array of any shape."""
        numbers = np.arange(len(self))[points] if isinstance(points, slice) else points
        order = numbers.flatten().tolist()
        self._start(order)
        images = {i: self._coming.pop(i).result() for i in dict.fromkeys(order)}
        return np.array([images[i] for i in order], np.uint8).reshape(*numbers.shape, *self.shape[1:])

    def loaded(self) -> UInt8[np.ndarray, "N C H W"]:
        """Decode all images into one array."""
        whole, done = np.empty(self.shape, np.uint8), 0
        for chunk in self.chunks(range(len(self))):
            whole[done : (done := done + len(chunk))] = chunk
        return whole

    def chunks(self, points: Sequence[int]) -> Iterator[UInt8[np.ndarray, "n C H W"]]:
        """Yield the images at indices `points` in chunks of up to 256."""
        for i in range(0, len(points), CHUNK):
            self.ahead(np.array(points[i : i + 2 * CHUNK]))
            yield self[np.array(points[i : i + CHUNK])]

    def _start(self, points: Iterable[int]) -> None:
        for i in points:
            if i not in self._coming:
                self._coming[i] = self._threads.submit(decoded, self.files[i], self._sides, self._grey)

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(machine.cores())
