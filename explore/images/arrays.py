"""Images as arrays in an .npz file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from explore.core.errors import InputError, listed
from explore.data import packed
from explore.images.base import Images

__all__ = ["read", "read_x"]

ARRAYS = ("x", "y", "test_x", "test_y")


def read(path: Path) -> Images:
    """A set of `x` and `test_x`, uint8 [N, height, width] or with 1 or 3 channels last, and the classes of each.

    The two for testing may be left out.

    Raises:
        InputError: naming the array, and what is allowed.
    """
    arrays, others = packed.arrays(path, ARRAYS, lambda headers, names: _check(path, headers, names))
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
    note = f"Arrays of {path} that are not looked at: {listed(others, 10)}." if others else ""
    return Images(path.stem, x, indices.astype(np.int64), test_x, test, names, note=note)


def read_x(path: Path, shape: tuple[int, int, int]) -> np.ndarray:
    """`x` of a file, uint8 [N, channels, height, width].

    Raises:
        InputError: when it has not this shape, or is no array of images.
    """

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
    """Refuse arrays that are missing, or of Python objects, before any is read."""
    if missing := [key for key in needed if key not in headers]:
        raise InputError(f"{path} has no {listed(missing)}, but {listed(names)}")
    for key, array in headers.items():
        if array.dtype.hasobject:
            kind = "uint8" if key.endswith("x") else f"numbers or text, as by {key}.astype(str), none missing"
            raise InputError(f"{key} of {path} is an array of Python objects; save it as {kind}")


def _check(path: Path, headers: Mapping[str, np.ndarray], names: Sequence[str]) -> None:
    """Refuse arrays of other shapes and types, before any is read."""
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
    """Of a class; whole numbers are 0 and not 0.0, as tables keep a column of them where one is missing."""
    return str(int(label)) if isinstance(label, float) and label.is_integer() else str(label)


def _are_images(x: np.ndarray) -> bool:
    return x.dtype == np.uint8 and (x.ndim == 3 or x.ndim == 4 and x.shape[3] in (1, 3))


def _shape(x: np.ndarray) -> tuple[int, ...]:
    """Channels, height and width of images with their channels last, or without."""
    return (x.shape[3] if x.ndim == 4 else 1, *x.shape[1:3])


def _channels(x: np.ndarray) -> np.ndarray:
    """[N, channels, height, width] of images with their channels last, or without."""
    return np.ascontiguousarray(x[:, None] if x.ndim == 3 else x.transpose(0, 3, 1, 2))
