"""The user's images: a folder with one sub-folder per class, or an .npz file."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from explore.core import machine
from explore.core.errors import InputError, listed, one_of
from explore.data import packed
from explore.images.base import DARK, DEEPER, ImageFiles, Images, checked

PARTS = ("train", "test", "val")  # folders; one of the last two
ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")
SHARE = 0.25  # of the memory that the images of a folder may take
ARRAYS = ("x", "y", "test_x", "test_y")


def read(path: Path, size: int | None = None, grey: bool = False, stream: bool | None = False) -> Images:
    """Read a set of images.

    Args:
        path: a folder `train/CLASS/IMAGE` and `test/CLASS/IMAGE` (or `val`), or an .npz file with `x` and `test_x`,
            uint8 [images, height, width] or with 1 or 3 channels last, `y` and `test_y`, numbers or names of classes.
            The test images may be missing; a folder without them may be `CLASS/IMAGE`. Hidden files are ignored.
        size: pixels a side, to which images of a folder are scaled and cut to a square; None: they have one size.
        grey: whether the images of a folder are read in one channel.
        stream: whether the images of a folder are decoded when they are needed; None: where all of them would take
            more than a quarter of the memory.

    Raises:
        InputError: when it is no such set, or an image is damaged.
    """
    if not path.exists():
        raise InputError(f"there is no {path}; images that were moved or renamed are restored to continue with them")
    if path.is_dir():
        return checked(_folder(path, size, grey, stream))
    if size is not None or grey or stream:
        raise InputError(
            f"{path} holds arrays, which are taken as they are; --size, --grey and --stream belong to a folder"
        )
    return checked(_arrays(path))


class Inputs(NamedTuple):
    """Images without classes."""

    names: list[str]
    x: np.ndarray  # uint8 [N, channels, height, width]
    note: str  # on files left out and conversions


def read_inputs(path: Path, shape: tuple[int, int, int]) -> Inputs:
    """Read images to predict, of these channels, height and width: one image, a folder, or `x` of an .npz file."""
    if path.suffix.lower() == ".npz":
        x = _array(path, shape)
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


# Folders --------------------------------------------------------------------------------------------------------------


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
    images = (x.check(), test_x.check()) if stream else (x.loaded(), test_x.loaded())
    folders = {part / name for part in parts for name in classes}
    labelled = zip([*files, *test_files], [*y, *test_y], strict=True)
    deep = Counter(classes[i] for file, i in labelled if file.parent not in folders)
    nested = listed(f"{name} ({count})" for name, count in deep.items())
    merged = f"Images in folders within that of a class are of that class: {nested}." if deep else ""
    spare = [] if train == path else [name for name in _classes(path) if path / name not in parts]
    used = f"; those of {test[0]} are tested on" if test else ""
    unused = f"Folders of {path} that are not looked at: {listed(spare, 10)}{used}." if spare else ""
    note = " ".join(filter(None, [_left_out(path, count + test_count), unused, merged, *_converted(x, test_x)]))
    return Images(path.name, images[0], y, images[1], test_y, tuple(classes), "crop-flip", note)


def _parts(path: Path) -> list[Path]:
    """The folders of the training images and, if there are any, the test images."""
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
    """The images of a part, their class indices [N], and the number of other files."""
    files: list[Path] = []
    y: list[int] = []
    left_out = sum(entry.is_file() and not entry.name.startswith(".") for entry in folder.iterdir())
    for name in _classes(folder):
        if name not in classes:
            raise one_of(f"class of {folder}", name, classes)
        images, count = _images(folder / name)
        files += images
        y += [classes.index(name)] * len(images)
        left_out += count
    if not files:
        raise InputError(f"{folder} holds no image ({', '.join(ENDINGS)}) in a folder of its class")
    return files, np.array(y, np.int64), left_out


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
    """All images in a folder, and the number of other files."""
    files = sorted(_files(folder))
    images = [file for file in files if file.suffix.lower() in ENDINGS]
    return images, len(files) - len(images)


def _files(folder: Path) -> Iterator[Path]:
    """All files except those whose names, or those of their folders, begin with a dot; links are followed."""
    visited = set()
    for where, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(where)
        if real in visited:  # by a link in a circle
            folders.clear()
            continue
        visited.add(real)
        folders[:] = [name for name in folders if not name.startswith(".")]
        for file in (Path(where, name) for name in names if not name.startswith(".")):
            if file.is_file() or file.is_symlink():  # a broken link is named when it is opened
                yield file


# Arrays ---------------------------------------------------------------------------------------------------------------


def _arrays(path: Path) -> Images:
    arrays, unused = packed.arrays(path, ARRAYS, lambda headers, names: _check(path, headers, names))
    x, y = _channels(arrays["x"]), _labels("y", arrays["y"], path)
    test_x, test_y = x[:0], y[:0]
    if "test_x" in arrays:
        test_x, test_y = _channels(arrays["test_x"]), _labels("test_y", arrays["test_y"], path)
    if (y.dtype.kind == "U") != (test_y.dtype.kind == "U"):
        raise InputError(f"y of {path} is {y.dtype}, test_y {test_y.dtype}; both must be numbers, or both text")
    if {y.dtype.kind, test_y.dtype.kind} == {"i", "u"}:  # they would meet as floating-point numbers
        y, test_y = (np.array(labels.tolist(), object) for labels in (y, test_y))
    classes, indices = np.unique(y, return_inverse=True)
    names, new = tuple(map(_name, classes.tolist())), np.setdiff1d(test_y, classes).tolist()
    if new:
        raise InputError(f"test_y of {path} has classes that y has not: {listed(map(_name, new), 5)}")
    test = np.searchsorted(classes, test_y).astype(np.int64)
    note = f"Arrays of {path} that are not looked at: {listed(unused, 10)}." if unused else ""
    return Images(path.stem, x, indices.astype(np.int64), test_x, test, names, note=note)


def _array(path: Path, shape: tuple[int, int, int]) -> np.ndarray:
    """Read `x` of a file, uint8 [N, channels, height, width] of this shape."""

    def check(headers: Mapping[str, np.ndarray], names: Sequence[str]) -> None:
        _check_present(path, headers, names, ("x",))
        x = headers["x"]
        if not _are_images(x) or _shape(x) != shape:
            axes = ", ".join(map(str, [*shape[1:], shape[0]] if shape[0] > 1 else shape[1:]))
            raise InputError(f"x of {path} is {x.dtype} {list(x.shape)}; the model takes uint8 [images, {axes}]")
        if not len(x):
            raise InputError(f"x of {path} has no image; it must have one or more")

    return _channels(packed.arrays(path, ("x",), check)[0]["x"])


def _check_present(path: Path, headers: Mapping[str, np.ndarray], names: Sequence[str], needed: Sequence[str]) -> None:
    """Refuse missing arrays and arrays of Python objects, before reading any."""
    if missing := [key for key in needed if key not in headers]:
        raise InputError(f"{path} has no {listed(missing)}, but {listed(names)}")
    for key, array in headers.items():
        if array.dtype.hasobject:
            kind = "uint8" if key.endswith("x") else f"numbers or text, as by {key}.astype(str), none missing"
            raise InputError(f"{key} of {path} is an array of Python objects; save it as {kind}")


def _check(path: Path, headers: Mapping[str, np.ndarray], names: Sequence[str]) -> None:
    """Refuse arrays of other shapes or types, before reading any."""
    _check_present(path, headers, names, ARRAYS[:2])
    if ("test_x" in headers) != ("test_y" in headers):
        raise InputError(f"{path} has {listed(headers)}; it must have test_x and test_y, or neither")
    for key, array in headers.items():
        shape = f"{key} of {path} is {array.dtype} {list(array.shape)}"
        if key.endswith("x") and not _are_images(array):
            raise InputError(f"{shape}; it must be uint8 [images, height, width], or with 1 or 3 channels last")
        if key.endswith("y") and (array.ndim != 1 or array.dtype.kind not in "biufUS"):
            raise InputError(f"{shape}; it must be [images], a number or a text for each")
    if _shape(headers["x"]) != _shape(test_x := headers.get("test_x", headers["x"])):
        shapes = f"{list(headers['x'].shape)} and {list(test_x.shape)}"
        raise InputError(f"x and test_x of {path} are {shapes}; all must have one shape")


def _labels(key: str, y: np.ndarray, path: Path) -> np.ndarray:
    """Numbers or text [N], one for each image."""
    if y.dtype.kind == "S":
        return np.char.decode(y, "utf-8", "backslashreplace")
    if y.dtype.kind == "f" and (missing := int(np.sum(~np.isfinite(y)))):
        raise InputError(
            f"{key} of {path} has labels that are no finite number: {missing}; every image must have a class"
        )
    if y.dtype.kind == "f" and bool((np.abs(y) >= 2**53).any()):
        raise InputError(f"{key} of {path} has numbers of 2^53 or more in {y.dtype}, which rounds them; give integers")
    return y


def _name(label: Any) -> str:
    """The name of a class; 0.0 is 0, since tables hold whole numbers as floats where one is missing."""
    return str(int(label)) if isinstance(label, float) and label.is_integer() else str(label)


def _are_images(x: np.ndarray) -> bool:
    return x.dtype == np.uint8 and (x.ndim == 3 or x.ndim == 4 and x.shape[3] in (1, 3))


def _shape(x: np.ndarray) -> tuple[int, ...]:
    """Channels, height and width of images with their channels last, or without."""
    return (x.shape[3] if x.ndim == 4 else 1, *x.shape[1:3])


def _channels(x: np.ndarray) -> np.ndarray:
    """[N, channels, height, width] of images with their channels last, or without."""
    return np.ascontiguousarray(x[:, None] if x.ndim == 3 else x.transpose(0, 3, 1, 2))
