"""Images of the user's: a folder with a folder for each class, or arrays in an .npz file."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from explore.core import machine
from explore.core.errors import InputError, listed, one_of
from explore.images import arrays
from explore.images.base import Images, checked
from explore.images.disk import DARK, DEEPER, ImageFiles

__all__ = ["read", "read_inputs"]

PARTS = ("train", "test", "val")  # folders; one of the last two
ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")
SHARE = 0.25  # of the memory that the images of a folder may take


def read(path: Path, size: int | None = None, grey: bool = False, stream: bool | None = False) -> Images:
    """A set of images.

    Args:
        path: a folder `train/CLASS/IMAGE` and `test/CLASS/IMAGE` (or, without it, `val`), or an .npz file with `x` and
            `test_x`, uint8 [images, height, width] or with 1 or 3 channels last, `y` and `test_y`, numbers or names of
            classes. Those for testing may be left out, and a folder without them be `CLASS/IMAGE`. What begins with a
            dot is not looked at.
        size: pixels a side, to which images of a folder are scaled and cut to a square; None: they have one size.
        grey: whether the images of a folder are read in one channel.
        stream: whether the images of a folder stay there and are decoded when they are needed; None: where all of them
            would take more than a quarter of the memory.

    Raises:
        InputError: when it is none, or an image is damaged.
    """
    if not path.exists():
        raise InputError(f"there is no {path}; images that were moved or renamed are restored to continue with them")
    if path.is_dir():
        return checked(_folder(path, size, grey, stream))
    if size is not None or grey or stream:
        raise InputError(
            f"{path} holds arrays, which are taken as they are; --size, --grey and --stream belong to a folder"
        )
    return checked(arrays.read(path))


class Inputs(NamedTuple):
    """Images without classes."""

    names: list[str]
    x: np.ndarray  # uint8 [N, channels, height, width]
    note: str  # on what was left out or converted


def read_inputs(path: Path, shape: tuple[int, int, int]) -> Inputs:
    """Images to predict, with a name for each: of an image, of all in a folder, or `x` of an .npz file.

    Args:
        path: of these.
        shape: channels, height and width that they come to.

    Raises:
        InputError: when there is no image, or an array of another shape.
    """
    if path.suffix.lower() == ".npz":
        x = arrays.read_x(path, shape)
        return Inputs([str(i) for i in range(len(x))], x, "")
    files, names, count = [path], [path.name], 0
    if path.is_dir():
        files, count = _images(path)
        names = [str(file.relative_to(path)) for file in files]
    if not files:
        raise InputError(f"{path} holds no image ({', '.join(ENDINGS)})")
    stored = ImageFiles(files, shape[1:], shape[0] == 1, shape)
    x = stored.loaded()
    return Inputs(names, x, " ".join(filter(None, [_left_out(path, count, ""), *_converted(stored)])))


def _folder(path: Path, size: int | None, grey: bool, stream: bool | None) -> Images:
    train, *test = parts = _parts(path)
    classes = _classes(train)
    (files, y, count), *tested = [_part(part, classes) for part in parts]
    test_files, test_y, test_count = tested[0] if tested else ([], np.zeros(0, np.int64), 0)
    counts = np.bincount(y, minlength=len(classes))
    if not counts.all():
        raise InputError(
            f"{train / classes[counts.argmin()]} holds no image ({', '.join(ENDINGS)}); each folder of {train.name} is "
            "a class, and must hold at least one"
        )
    sides = None if size is None else (size, size)
    x = ImageFiles(files, sides, grey)
    test_x = ImageFiles(test_files, sides, grey, x.shape[1:])
    if stream is None:
        stream = x.nbytes + test_x.nbytes > SHARE * machine.memory()
    read = (x.check(), test_x.check()) if stream else (x.loaded(), test_x.loaded())
    folders = {part / name for part in parts for name in classes}
    labelled = zip([*files, *test_files], [*y, *test_y], strict=True)
    deep = Counter(classes[i] for file, i in labelled if file.parent not in folders)
    nested = listed(f"{name} ({count})" for name, count in deep.items())
    merged = f"Images in folders within that of a class are of that class: {nested}." if deep else ""
    spare = [] if train == path else [name for name in _classes(path) if path / name not in parts]
    used = f"; those of {test[0]} are tested on" if test else ""
    unused = f"Folders of {path} that are not looked at: {listed(spare, 10)}{used}." if spare else ""
    note = " ".join(filter(None, [_left_out(path, count + test_count), unused, merged, *_converted(x, test_x)]))
    return Images(path.name, read[0], y, read[1], test_y, tuple(classes), "crop-flip", note)


def _parts(path: Path) -> list[Path]:
    """The folders of the images for training and, if there are any, for testing."""
    train, test, val = (path / name for name in PARTS)
    if train.is_dir():
        return [train, *([test] if test.is_dir() else [val] if val.is_dir() else [])]
    classes = _classes(path)
    if not classes or any(name.lower() in (*PARTS, "training", "valid", "validation") for name in classes):
        raise InputError(
            f"{path} must have the folders train and test, or train and val, or one for each class; it has "
            f"{listed(classes, 10) or 'none'}"
        )
    return [path]


def _part(folder: Path, classes: list[str]) -> tuple[list[Path], np.ndarray, int]:
    """The images of a part with their class indices [N], and how many other files it holds."""
    files: list[Path] = []
    y: list[int] = []
    others = sum(entry.is_file() and not entry.name.startswith(".") for entry in folder.iterdir())
    for name in _classes(folder):
        if name not in classes:
            raise one_of(f"class of {folder}", name, classes)
        images, count = _images(folder / name)
        files += images
        y += [classes.index(name)] * len(images)
        others += count
    if not files:
        raise InputError(f"{folder} holds no image ({', '.join(ENDINGS)}) in a folder of its class")
    return files, np.array(y, np.int64), others


def _left_out(path: Path, count: int, other: str = ", or lie in no folder of a class") -> str:
    if not count:
        return ""
    return f"Files of {path} that are left out: {count}; they have other endings than {', '.join(ENDINGS)}{other}."


def _converted(*parts: ImageFiles) -> Iterator[str]:
    counts = sum((part.converted() for part in parts), Counter())
    if deep := counts[DEEPER] + counts[DARK]:
        yield f"Images of 16 bits, of which the upper eight are kept: {deep}."
        if counts[DARK] == deep:
            yield "None of their values reaches 4096: 16 at most are told apart; scale them to 8 bits first."
    if clear := counts["transparent"]:
        yield f"Images with transparency, which are laid on white: {clear}."


def _classes(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def _images(folder: Path) -> tuple[list[Path], int]:
    """All images in a folder, and how many other files it holds."""
    files = sorted(_files(folder))
    images = [file for file in files if file.suffix.lower() in ENDINGS]
    return images, len(files) - len(images)


def _files(folder: Path) -> Iterator[Path]:
    """Without those of other programs, whose names, or those of their folders, begin with a dot; links are followed."""
    seen = set()
    for where, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(where)
        if real in seen:  # by a link in a circle
            folders.clear()
            continue
        seen.add(real)
        folders[:] = [name for name in folders if not name.startswith(".")]
        for file in (Path(where, name) for name in names if not name.startswith(".")):
            if file.is_file() or file.is_symlink():  # a broken link will be named when it is opened
                yield file
