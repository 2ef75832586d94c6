"""Readers for user images: a folder with one sub-folder per class, or an .npz file."""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from explore.core import machine
from explore.core.errors import InputError, check_known, counted, listed
from explore.data import packed
from explore.images.base import ImageFiles, Images

PARTS = ("train", "test", "val")  # folder names; for the test images, one of the last two
ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")
NO_IMAGE = f"no images ({', '.join(ENDINGS)}) in"
SHARE = 0.25  # share of memory; larger image folders are decoded on demand
ARRAYS = ("x", "y", "test_x", "test_y")


def read(path: Path, size: int | None = None, grey: bool = False, stream: bool | None = False) -> Images:
    """Read an image data set from a folder or an .npz file; raise InputError for missing or damaged images.

    Args:
        path: a folder with `train/CLASS/IMAGE` and `test/CLASS/IMAGE` (or `val`), or `CLASS/IMAGE` for training images
            only; hidden files are ignored. Or an .npz file with the arrays `x` and `test_x`, uint8 [images, height,
            width] or with 1 or 3 channels last, and `y` and `test_y`, class numbers or names. Test images are optional.
        size: for folders, scale and crop images to squares of this side in pixels. If None, all sizes must be equal.
        grey: for folders, whether to read images as greyscale, with one channel.
        stream: for folders, whether to decode images on demand; None: only if all images would take more than a
            quarter of the memory.
    """
    if not path.exists():
        raise InputError(f"{path} does not exist; to continue a run, restore images that were moved or renamed")
    if not path.is_dir() and (size is not None or grey or stream):
        raise InputError(f"--size, --grey and --stream apply to folders of images only, not to {path}; leave them out")
    images = _folder(path, size, grey, stream) if path.is_dir() else _arrays(path)
    for part, x, y in (("training", images.x, images.y), ("test", images.test_x, images.test_y)):
        if len(x) != len(y):
            raise InputError(f"{images.name} has {len(x)} {part} images but {len(y)} labels; every image needs one")
    if (shape := images.x.shape[1:]) != (test := images.test_x.shape[1:]):
        shapes = f"shape {list(shape)}, the test images {list(test)}"
        raise InputError(f"the training images of {path} have {shapes}; use one shape")
    if len(images.classes) < 2:
        raise InputError(f"{images.name} has {len(images.classes)} class; at least two are needed")
    return images


class Inputs(NamedTuple):
    """Images to predict, without classes."""

    names: list[str]
    x: np.ndarray  # uint8 [N, channels, height, width]
    note: str  # sentences on ignored files and converted images


def read_inputs(path: Path, shape: tuple[int, int, int]) -> Inputs:
    """Read images to predict from an image file, a folder, or the array `x` in an .npz file.

    Files are scaled and cropped to `shape` (channels, height, width); images in an array must have this shape.
    """
    if path.suffix.lower() == ".npz":
        arrays, unused = packed.arrays(path, ("x",))
        if not arrays:
            raise InputError(f"{path} has no array x (arrays: {listed(unused)}); save the images as x")
        x = _pixels(path, "x", arrays)
        if x.shape[1:] != shape or not len(x):
            sizes = f"{len(x)} images of shape {list(x.shape[1:])}"
            raise InputError(f"x of {path} has {sizes}; the model expects {list(shape)}")
        return Inputs([str(i) for i in range(len(x))], x, "")
    every = sorted(_files(path)) if path.is_dir() else [path]
    files = [file for file in every if file == path or file.suffix.lower() in ENDINGS]
    if not files:
        raise InputError(f"{NO_IMAGE} {path}")
    names = [str(file.relative_to(path)) if file != path else path.name for file in files]
    stored = ImageFiles(files, shape[1:], shape[0] == 1, shape)
    return Inputs(names, x=stored.loaded(), note=_note(path, len(every) - len(files), stored.check()))


def _folder(path: Path, size: int | None, grey: bool, stream: bool | None) -> Images:
    train, *tests = _parts(path)
    classes = _subfolders(train)
    files, y, count = _part(train, classes)
    test_files, test_y, test_count = _part(tests[0], classes) if tests else ([], y[:0], 0)
    if missing := {*range(len(classes))} - {*y.tolist()}:
        advice = f"every folder of {train.name} is a class and needs at least one"
        raise InputError(f"{NO_IMAGE} {train / classes[min(missing)]}; {advice}")
    sides = None if size is None else (size, size)
    x = ImageFiles(files, sides, grey)
    test_x = ImageFiles(test_files, sides, grey, x.shape[1:])
    note = _note(path, count + test_count, x.check() + test_x.check(), ", or outside the class folders")
    spare = [] if train == path else [name for name in _subfolders(path) if path / name not in (train, *tests)]
    if spare:
        note += f" Ignored folders of {path}: {listed(spare, 10)}."
    if stream is None:
        stream = x.nbytes + test_x.nbytes > SHARE * machine.memory()
    images = (x, test_x) if stream else (x.loaded(), test_x.loaded())
    return Images(path.name, images[0], y, images[1], test_y, tuple(classes), "crop-flip", note.strip())


def _parts(path: Path) -> list[Path]:
    """Return the folder of the training images and, if there is one, the folder of the test images."""
    train, test, val = (path / name for name in PARTS)
    if train.is_dir():
        return [train, *[part for part in (test, val) if part.is_dir()][:1]]
    classes = _subfolders(path)
    if not classes or any(name.lower() in (*PARTS, "training", "valid", "validation") for name in classes):
        allowed = "the folders train and test, train and val, or one per class"
        raise InputError(f"{path} needs {allowed}; it has {listed(classes, 10) or 'none'}")
    return [path]


def _part(folder: Path, classes: list[str]) -> tuple[list[Path], np.ndarray, int]:
    """Return the image files in a folder, their class indices [N], and the number of ignored files."""
    every, index = sorted(_files(folder)), {name: i for i, name in enumerate(classes)}
    files = [file for file in every if file.suffix.lower() in ENDINGS and file.parent != folder]
    names = [file.relative_to(folder).parts[0] for file in files]
    check_known(f"class of {folder}", sorted({*names}), classes)
    if not files:
        raise InputError(f"{NO_IMAGE} {folder}; expected one sub-folder per class")
    return files, np.array([index[name] for name in names], np.int64), len(every) - len(files)


def _note(path: Path, count: int, conversions: Counter[str], place: str = "") -> str:
    """Return sentences on `count` ignored files and on converted images; "" if there are neither."""
    endings = f"endings other than {', '.join(ENDINGS)}{place}"
    deep, clear = conversions["deep"], conversions["transparent"]
    depth = "by their upper 8; rescale them first if they use a smaller range"
    notes = (
        (count, f"Ignored {counted(count, 'file')} of {path}: {endings}."),
        (deep, f"Reduced {counted(deep, 'image')} from 16 to 8 bits {depth}."),
        (clear, f"Placed {counted(clear, 'image')} with transparency on white."),
    )
    return " ".join(note for number, note in notes if number)


def _subfolders(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def _files(folder: Path) -> Iterator[Path]:
    """Yield all files below a folder, except hidden files and folders; follow links, but visit each folder once."""
    visited = set()
    for place, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(place)
        folders[:] = [name for name in folders if real not in visited and not name.startswith(".")]
        if real not in visited:
            yield from (Path(place, name) for name in names if not name.startswith("."))
        visited.add(real)


def _arrays(path: Path) -> Images:
    arrays, unused = packed.arrays(path, ARRAYS)
    if arrays.keys() not in ({"x", "y"}, {*ARRAYS}):
        needed = "test_x and test_y, or neither" if {"x", "y"} <= arrays.keys() else "x and y"
        raise InputError(f"{path} has {listed([*arrays, *unused])}; it must have {needed}")
    x, labels = _pixels(path, "x", arrays), _labels(path, "y", arrays)
    test_x = _pixels(path, "test_x", arrays) if "test_x" in arrays else x[:0]
    test_labels = _labels(path, "test_y", arrays) if "test_y" in arrays else []
    classes = sorted(set(labels))
    if new := {*test_labels} - {*classes}:
        raise InputError(f"test_y of {path} has classes that y lacks: {listed(new, 5)}")
    index = {label: i for i, label in enumerate(classes)}
    y, test_y = (np.array([index[label] for label in part], np.int64) for part in (labels, test_labels))
    note = f"Ignored arrays of {path}: {listed(unused, 10)}." if unused else ""
    return Images(path.stem, x, y, test_x, test_y, tuple(map(str, classes)), note=note)


def _pixels(path: Path, key: str, arrays: dict[str, np.ndarray]) -> np.ndarray:
    """Return array `key` as images [N, channels, height, width]; in the file, the channel axis is last or missing."""
    x = arrays[key]
    if x.dtype != np.uint8 or not (x.ndim == 3 or x.ndim == 4 and x.shape[3] in (1, 3)):
        shape = f"{key} of {path} is {x.dtype} {list(x.shape)}"
        raise InputError(f"{shape}; it must be uint8 [images, height, width], or with 1 or 3 channels last")
    return np.ascontiguousarray(x[:, None] if x.ndim == 3 else x.transpose(0, 3, 1, 2))


def _labels(path: Path, key: str, arrays: dict[str, np.ndarray]) -> list[Any]:
    """Return the class of each image, a number or a string."""
    y = arrays[key]
    if y.ndim != 1 or y.dtype.kind not in "biufUS":
        raise InputError(f"{key} of {path} is {y.dtype} {list(y.shape)}; it must be [images] of numbers or text")
    if y.dtype.kind == "f" and not (np.abs(y) < 2**53).all():
        raise InputError(f"{key} of {path} has labels that are missing, infinite or rounded (2^53 or more)")
    labels = (np.char.decode(y, "utf-8", "backslashreplace") if y.dtype.kind == "S" else y).tolist()
    # Data frames store whole numbers as floats if one is missing.
    return [int(label) if isinstance(label, float) and label.is_integer() else label for label in labels]
