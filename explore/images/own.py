"""Images of the user's: a folder with a folder for each class, or arrays in an .npz file."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from explore import machine
from explore.errors import InputError, listed, one_of, shown
from explore.images.base import Images, checked
from explore.images.disk import ImageFiles

__all__ = ["read", "read_inputs"]

PARTS = ("train", "test", "val")  # folders; one of the last two
ARRAYS = ("x", "y", "test_x", "test_y")
ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")
SHARE = 0.25  # of the memory that the images of a folder may take


def read(path: Path, size: int | None = None, grey: bool = False, stream: bool | None = False) -> Images:
    """A set of images.

    Args:
        path: a folder `train/CLASS/IMAGE` and `test/CLASS/IMAGE` (or `val`), or an .npz file with `x` and `test_x`,
            uint8 [images, height, width] or with 1 or 3 channels last, `y` and `test_y`, numbers or names of classes.
            What begins with a dot is not looked at.
        size: pixels a side, to which images of a folder are scaled and cut to a square; None: they have one size.
        grey: whether the images of a folder are read in one channel.
        stream: whether the images of a folder stay there and are decoded when they are needed; None: where all of them
            would take more than a quarter of the memory.

    Raises:
        InputError: when it is none, or an image is damaged.
    """
    if path.is_dir():
        return checked(_folder(path, size, grey, stream))
    if size is not None or grey or stream:
        raise InputError(
            f"{path} holds arrays, which are taken as they are; --size, --grey and --stream belong to a folder"
        )
    return checked(_arrays(path))


def read_inputs(path: Path, shape: tuple[int, int, int]) -> tuple[list[str], np.ndarray]:
    """Images to predict, with a name for each: of an image, of all in a folder, or `x` of an .npz file.

    Args:
        path: of these.
        shape: channels, height and width that they come to.

    Raises:
        InputError: when there is no image, or an array of another shape.
    """
    if path.suffix.lower() == ".npz":
        given = _loaded(path, ("x",))["x"]
        if not _are_images(given) or _channels(given).shape[1:] != shape:
            axes = ", ".join(map(str, [*shape[1:], shape[0]] if shape[0] > 1 else shape[1:]))
            raise InputError(
                f"x of {path} is {given.dtype} {list(given.shape)}; the model takes uint8 [images, {axes}]"
            )
        return [str(i) for i in range(len(given))], _channels(given)
    files = sorted(filter(_is_image, _files(path))) if path.is_dir() else [path]
    if not files:
        raise InputError(f"{path} holds no image ({', '.join(ENDINGS)})")
    names = [str(file.relative_to(path)) for file in files] if path.is_dir() else [path.name]
    return names, ImageFiles(files, shape[1:], shape[0] == 1, shape).loaded()


def _arrays(path: Path) -> Images:
    found = _loaded(path, ARRAYS)
    for key in ("x", "test_x"):
        if not _are_images(found[key]):
            raise InputError(
                f"{key} of {path} is {found[key].dtype} {list(found[key].shape)}; it must be uint8 [images, height, "
                "width], or with 1 or 3 channels last"
            )
    x, test_x = _channels(found["x"]), _channels(found["test_x"])
    if x.shape[1:] != test_x.shape[1:]:
        shapes = [list(found[key].shape) for key in ("x", "test_x")]
        raise InputError(f"x and test_x of {path} are {shapes[0]} and {shapes[1]}; all must have one shape")
    y, test_y = (_labels(key, found[key], path) for key in ("y", "test_y"))
    if (y.dtype.kind == "U") != (test_y.dtype.kind == "U"):
        raise InputError(f"y of {path} is {y.dtype}, test_y {test_y.dtype}; both must be numbers, or both text")
    classes, indices = np.unique(y, return_inverse=True)
    names, new = tuple(map(_name, classes.tolist())), np.setdiff1d(test_y, classes).tolist()
    if new:
        raise InputError(f"test_y of {path} has classes that y has not: {listed(map(_name, new), 5)}")
    test = np.searchsorted(classes, test_y).astype(np.int64)
    return Images(path.stem, x, indices.astype(np.int64), test_x, test, names)


def _labels(key: str, y: np.ndarray, path: Path) -> np.ndarray:
    """Numbers or text [N], one for each image."""
    if y.ndim != 1:
        raise InputError(f"{key} of {path} is {list(y.shape)}; it must be [images], a number or a name for each")
    if y.dtype.kind == "S":
        return np.char.decode(y, "utf-8", "backslashreplace")
    if y.dtype.kind not in "biufU":
        raise InputError(f"{key} of {path} is {y.dtype}; it must be numbers or text")
    if y.dtype.kind == "f" and (missing := int(np.sum(~np.isfinite(y)))):
        raise InputError(
            f"{key} of {path} has labels that are no finite number: {missing}; every image must have a class"
        )
    return y


def _name(label: Any) -> str:
    """Of a class; whole numbers are 0 and not 0.0, as tables keep a column of them where one is missing."""
    return str(int(label)) if isinstance(label, float) and label.is_integer() else str(label)


def _loaded(path: Path, keys: Iterable[str]) -> Mapping[str, np.ndarray]:
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as found:
            if missing := [key for key in keys if key not in found.files]:
                raise InputError(f"{path} has no {listed(missing)}, but {listed(found.files)}")
            return {key: _array(found, key, path) for key in keys}
    except InputError:
        raise
    except Exception as error:  # whatever the bytes make of the reader, the file is what is wrong
        raise InputError(f"{path} is no .npz file of arrays ({shown(str(error))})") from None


def _array(found: Mapping[str, np.ndarray], key: str, path: Path) -> np.ndarray:
    try:
        return np.asarray(found[key])
    except ValueError as error:
        if "allow_pickle" not in str(error):
            raise
        kind = "uint8" if key.endswith("x") else f"numbers or text, as by {key}.astype(str), none missing"
        raise InputError(f"{key} of {path} is an array of Python objects; save it as {kind}") from None


def _are_images(x: np.ndarray) -> bool:
    return x.dtype == np.uint8 and (x.ndim == 3 or x.ndim == 4 and x.shape[3] in (1, 3))


def _channels(x: np.ndarray) -> np.ndarray:
    """[N, channels, height, width] of images with their channels last, or without."""
    return np.ascontiguousarray(x[:, None] if x.ndim == 3 else x.transpose(0, 3, 1, 2))


def _folder(path: Path, size: int | None, grey: bool, stream: bool | None) -> Images:
    parts = [name for name in PARTS if (path / name).is_dir()]
    if len(parts) != 2 or parts[0] != "train":
        raise InputError(
            f"{path} must have the folders train and test, or train and val; it has {listed(parts) or 'none'}"
        )
    classes = _classes(path / "train")
    files: list[list[Path]] = []
    y, left = [], 0
    for part in parts:
        found, indices, others = _part(path / part, classes)
        files.append(found)
        y.append(indices)
        left += others
    counts = np.bincount(y[0], minlength=len(classes))
    if not counts.all():
        raise InputError(
            f"{path / 'train' / classes[counts.argmin()]} holds no image ({', '.join(ENDINGS)}); each folder of train "
            "is a class, and must hold at least one"
        )
    sides = None if size is None else (size, size)
    x = ImageFiles(files[0], sides, grey)
    test_x = ImageFiles(files[1], sides, grey, x.shape[1:])
    if stream is None:
        stream = x.nbytes + test_x.nbytes > SHARE * machine.memory()
    own = (x.check(), test_x.check()) if stream else (x.loaded(), test_x.loaded())
    return Images(path.name, own[0], y[0], own[1], y[1], tuple(classes), "crop-flip", _left_out(path, left))


def _part(folder: Path, classes: list[str]) -> tuple[list[Path], np.ndarray, int]:
    """The images of a part with their class indices [N], and how many other files it holds."""
    files: list[Path] = []
    y: list[int] = []
    left = sum(entry.is_file() and not entry.name.startswith(".") for entry in folder.iterdir())
    for name in _classes(folder):
        if name not in classes:
            raise one_of(f"class of {folder}", name, classes)
        there = sorted(_files(folder / name))
        own = [file for file in there if _is_image(file)]
        files += own
        y += [classes.index(name)] * len(own)
        left += len(there) - len(own)
    if not files:
        raise InputError(f"{folder} holds no image ({', '.join(ENDINGS)}) in a folder of its class")
    return files, np.array(y, np.int64), left


def _left_out(path: Path, count: int) -> str:
    if not count:
        return ""
    return (
        f"Files of {path} that are left out: {count}; they have other endings than {', '.join(ENDINGS)}, or lie in no "
        "folder of a class."
    )


def _classes(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def _is_image(file: Path) -> bool:
    return file.suffix.lower() in ENDINGS


def _files(folder: Path) -> Iterator[Path]:
    """Without those of other programs, whose names, or those of their folders, begin with a dot."""
    for file in folder.rglob("*"):
        if file.is_file() and not any(part.startswith(".") for part in file.relative_to(folder).parts):
            yield file
