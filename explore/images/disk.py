"""Images in files, each decoded when it is asked for: for sets that no memory holds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import numpy as np
from jaxtyping import Int, UInt8
from PIL import Image, ImageOps, UnidentifiedImageError

from explore.core import machine
from explore.core.errors import InputError, shown
from explore.core.files import check_regular
from explore.data import packed

__all__ = ["ImageFiles"]

MOST = 16384  # pixels a side
ORIENTATION = 0x0112  # the tag; from 5 on height and width are exchanged
COUNTED = 10_000  # images at most whose values are counted for the moments of a set
ALPHA = ("LA", "La", "PA", "RGBA", "RGBa")  # modes with a channel of opacity
DEEPER, DARK = "16 bits", "16 bits, all below 4096"
DEEP = ("PNG", "PPM", "TIFF")  # formats in which 16-bit grey is told from other whole numbers
BITS, PHOTOMETRIC = 258, 262  # tags of TIFF: bits of each channel, and 0 where 0 is white


def _read(file: Path, sides: tuple[int, ...] | None, grey: bool) -> tuple[UInt8[np.ndarray, "C H W"], str]:
    """An image as bytes, scaled and cut to a height and a width, or as it is; and what was converted.

    Of grey values of 16 bits the upper eight are kept; what is transparent is laid on white.

    Raises:
        InputError: when it is none, too large, or of values that 8 bits cannot stand for.
    """
    with _opened(file) as image:
        converted = _conversion(image)
        if converted == DEEPER and int(np.asarray(image).max()) < 4096:
            converted = DARK
        plain = _opaque(ImageOps.exif_transpose(image)).convert("L" if grey else "RGB")
    if sides is not None:
        plain = ImageOps.fit(plain, (sides[1], sides[0]), Image.Resampling.BILINEAR)
    return np.asarray(plain).reshape(plain.height, plain.width, -1).transpose(2, 0, 1), converted


def _conversion(image: Image.Image) -> str:
    """What of it 8 bits without opacity cannot hold: `DEEPER`, "transparent", or nothing."""
    if image.mode.startswith("I"):
        return DEEPER
    return "transparent" if image.mode in ALPHA or "transparency" in image.info else ""


def _opaque(image: Image.Image) -> Image.Image:
    """The same in 8 bits, on white."""
    clear = image.info.get("transparency")  # of a palette, or the one value that is transparent
    if image.mode.startswith("I"):
        values = np.asarray(image)  # `convert` would clip them to 255
        return Image.fromarray(np.where(values == clear, 255, values >> 8).astype(np.uint8))
    if image.mode in ALPHA or clear is not None:
        whole = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", whole.size, "white"), whole)
    return image


def _looked_at(file: Path) -> tuple[tuple[int, int], str]:
    """Height and width as `_read` will find them, and what it converts, without decoding the image."""
    with _opened(file) as image:
        (width, height), turned = image.size, image.getexif().get(ORIENTATION, 1) >= 5
        return (width, height) if turned else (height, width), _conversion(image)


@contextmanager
def _opened(file: Path) -> Iterator[Image.Image]:
    """An image that is not decoded yet; whatever its bytes make of the reader, the file is what is wrong."""
    try:
        check_regular(file)
        with Image.open(file) as image:
            if max(image.size) > MOST:
                raise InputError(f"{file} has {image.size[0]} x {image.size[1]} pixels; the most are {MOST} a side")
            packed.check_size(math.prod(image.size) * len(image.getbands()), file.stat().st_size, file)
            _check_depth(file, image)
            yield image
    except InputError:
        raise
    except (OSError, SyntaxError, ValueError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise InputError(f"{file} is no image that can be read ({shown(str(error))})") from None


def _check_depth(file: Path, image: Image.Image) -> None:
    """Refuse values of neither 8 bits nor grey ones of 16, which a conversion would clip."""
    if image.mode[0] not in "IF":
        return
    tags = getattr(image, "tag_v2", {})
    bits, dark = tags.get(BITS, (16,))[0], tags.get(PHOTOMETRIC, 1)  # 12-bit TIFFs have the mode of 16-bit ones
    signed = image.mode == "I" and image.format == "TIFF"  # and PNG and PPM have it for 16 bits without a sign
    if image.mode == "F" or image.format not in DEEP or signed or (bits, dark) != (16, 1):
        raise InputError(
            f"{file} has values of another kind ({image.format}, mode {image.mode}); images must have 8 bits a "
            "channel, or be grey PNG, PPM or TIFF files of 16 bits without a sign, where 0 is black"
        )


class ImageFiles:
    """Stands for an array uint8 [N, channels, height, width].

    Threads decode what is indexed, and what is said to come next.

    Args:
        files: of the images.
        sides: height and width, to which they are scaled and cut; None: they have those of the first.
        grey: whether they are read in one channel.
        shape: channels, height and width, where they are known.
    """

    dtype = np.dtype(np.uint8)
    ndim = 4

    def __init__(
        self,
        files: Sequence[Path],
        sides: tuple[int, ...] | None,
        grey: bool,
        shape: Sequence[int] | None = None,
    ):
        self.files, self._sides, self._grey = files, sides, grey
        one = _read(files[0], sides, grey)[0].shape if shape is None else shape
        self.shape: tuple[int, ...] = (len(files), *one)
        self._converted: dict[int, str] = {}  # of those that were looked at
        self._coming: dict[int, Future[np.ndarray]] = {}

    def __len__(self) -> int:
        return len(self.files)

    def part(self, points: Iterable[int]) -> ImageFiles:
        """Some of them."""
        return ImageFiles([self.files[int(i)] for i in points], self._sides, self._grey, self.shape[1:])

    def check(self) -> ImageFiles:
        """The same, after a look at every file.

        Raises:
            InputError: where one is no image, or, without `sides`, has another size.
        """
        for i, (sides, converted) in enumerate(self._threads.map(_looked_at, self.files)):
            self._converted[i] = converted
            if self._sides is None:
                self._fits(self.files[i], sides)
        return self

    def converted(self) -> Counter[str]:
        """How many have "16 bits", and how many are "transparent", once all were looked at or decoded."""
        return Counter(self._converted.values())

    def ahead(self, points: slice | Int[np.ndarray, "..."]) -> None:
        """Begin to decode what will be asked for, and forget what was announced before and is not among it."""
        wanted = dict.fromkeys(self._numbers(points).flatten().tolist())
        for i in self._coming.keys() - wanted.keys():
            self._coming.pop(i).cancel()
        self._begin(wanted)

    def __getitem__(self, points: slice | Int[np.ndarray, "..."]) -> UInt8[np.ndarray, "... C H W"]:
        """Of a slice, or of numbers in any shape."""
        numbers = self._numbers(points)
        order = numbers.flatten().tolist()
        self._begin(order)
        decoded = {i: self._coming.pop(i).result() for i in dict.fromkeys(order)}
        whole = np.empty((len(order), *self.shape[1:]), np.uint8)
        for place, i in zip(whole, order, strict=True):
            place[:] = decoded[i]
        return whole.reshape(*numbers.shape, *self.shape[1:])

    @property
    def nbytes(self) -> int:
        """What all of them would take in memory."""
        return math.prod(self.shape)

    def loaded(self) -> UInt8[np.ndarray, "N C H W"]:
        """All of them in memory."""
        whole, done = np.empty(self.shape, np.uint8), 0
        for chunk in self.chunks(range(len(self))):
            whole[done : done + len(chunk)] = chunk
            done += len(chunk)
        return whole

    def chunks(self, points: Sequence[int], size: int = 256) -> Iterator[UInt8[np.ndarray, "n C H W"]]:
        """Some of them, a few at a time."""
        for i in range(0, len(points), size):
            self.ahead(np.array(points[i : i + 2 * size]))
            yield self[np.array(points[i : i + size])]

    def counted(self) -> Sequence[int]:
        """At most `COUNTED` of them, at equal distances."""
        return range(0, len(self), -(-len(self) // COUNTED))

    def _begin(self, points: Iterable[int]) -> None:
        for i in points:
            if i not in self._coming:
                self._coming[i] = self._threads.submit(self._decoded, i)

    def _numbers(self, points: slice | Int[np.ndarray, "..."]) -> Int[np.ndarray, "..."]:
        return np.arange(len(self))[points] if isinstance(points, slice) else points

    def _decoded(self, i: int) -> np.ndarray:
        image, self._converted[i] = _read(self.files[i], self._sides, self._grey)
        self._fits(self.files[i], (image.shape[1], image.shape[2]))
        return image

    def _fits(self, file: Path, sides: tuple[int, int]) -> None:
        if sides != self.shape[2:]:
            raise InputError(
                f"{file} has {sides[1]} x {sides[0]} pixels, others {self.shape[3]} x {self.shape[2]}; --size "
                "scales all to one size, such as 32"
            )

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(machine.cores())
