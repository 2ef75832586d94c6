"""Images of the user's: a folder with a folder for each class, or arrays in an .npz file."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path

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
        x = _channels(_loaded(path, ("x",))["x"], path)
        if x.dtype != np.uint8 or x.shape[1:] != shape:
            raise InputError(f"x of {path} is {x.dtype} {list(x.shape)}; the model takes uint8 {['images', *shape]}")
        return [str(i) for i in range(len(x))], x
    files = sorted(_images(path)) if path.is_dir() else [path]
    if not files:
        raise InputError(f"{path} holds no image ({', '.join(ENDINGS)})")
    names = [str(file.relative_to(path)) for file in files] if path.is_dir() else [path.name]
    return names, ImageFiles(files, shape[1:], shape[0] == 1, shape).loaded()


def _arrays(path: Path) -> Images:
    found = _loaded(path, ARRAYS)
    y, test_y = np.asarray(found["y"]), np.asarray(found["test_y"])
    if y.ndim != 1 or test_y.ndim != 1:
        raise InputError(f"y and test_y of {path} have {y.ndim} and {test_y.ndim} axes; they must have one")
    names, indices = np.unique(y, return_inverse=True)
    if new := set(test_y.tolist()) - set(names.tolist()):
        raise InputError(f"test_y of {path} has classes that y has not: {listed(map(str, new), 5)}")
    x, test_x = (_channels(np.asarray(found[key]), path) for key in ("x", "test_x"))
    test = np.searchsorted(names, test_y).astype(np.int64)
    return Images(path.stem, x, indices.astype(np.int64), test_x, test, tuple(map(str, names.tolist())))


def _loaded(path: Path, keys: Iterable[str]) -> Mapping[str, np.ndarray]:
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as found:
            if missing := [key for key in keys if key not in found.files]:
                raise InputError(f"{path} has no {listed(missing)}, but {listed(found.files)}")
            return {key: found[key] for key in keys}
    except InputError:
        raise
    except Exception as error:  # whatever the bytes make of the reader, the file is what is wrong
        raise InputError(f"{path} is no .npz file of arrays ({shown(str(error))})") from None


def _channels(x: np.ndarray, path: Path) -> np.ndarray:
    """[N, channels, height, width] of images with their channels last, or without."""
    if x.ndim not in (3, 4):
        raise InputError(f"images of {path} are {list(x.shape)}; they must be [images, height, width], channels last")
    return np.ascontiguousarray(x[:, None] if x.ndim == 3 else x.transpose(0, 3, 1, 2))


def _folder(path: Path, size: int | None, grey: bool, stream: bool | None) -> Images:
    parts = [name for name in PARTS if (path / name).is_dir()]
    if len(parts) != 2 or parts[0] != "train":
        raise InputError(
            f"{path} must have the folders train and test, or train and val; it has {listed(parts) or 'none'}"
        )
    classes = sorted(entry.name for entry in (path / "train").iterdir() if entry.is_dir())
    files: list[list[Path]] = []
    y = []
    for part in parts:
        there = sorted(entry.name for entry in (path / part).iterdir() if entry.is_dir())
        for name in there:
            if name not in classes:
                raise one_of(f"class of {path / part}", name, classes)
        found = [(sorted(_images(path / part / name)), classes.index(name)) for name in there]
        files.append(list(chain.from_iterable(own for own, _ in found)))
        y.append(np.array([index for own, index in found for _ in own], np.int64))
        if not files[-1]:
            raise InputError(f"{path / part} holds no image ({', '.join(ENDINGS)}) in a folder of its class")
    sides = None if size is None else (size, size)
    x = ImageFiles(files[0], sides, grey)
    test_x = ImageFiles(files[1], sides, grey, x.shape[1:])
    if stream is None:
        stream = x.nbytes + test_x.nbytes > SHARE * machine.memory()
    own = (x.check(), test_x.check()) if stream else (x.loaded(), test_x.loaded())
    return Images(path.name, own[0], y[0], own[1], y[1], tuple(classes), "crop-flip")


def _images(folder: Path) -> Iterator[Path]:
    return (file for file in folder.rglob("*") if file.suffix.lower() in ENDINGS and file.is_file())
