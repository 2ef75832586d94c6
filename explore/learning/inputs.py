"""Inputs as they are given, a memory map of a file among them: read, converted and standardised where they are used."""

from __future__ import annotations

import warnings
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from explore.core.errors import InputError
from explore.core.rng import Rng
from explore.learning.scaling import Standardiser

ROWS = 2**14  # that are looked at together


class RawInputs:
    """Inputs [P, ...] in their own units and type; of a memory map no more is in memory than is being used.

    Args:
        x: an array of finite numbers.
        rng: says where they are to go, and as what: features in double precision, because single would merge
            neighbouring time stamps, images in the type to compute in.

    Raises:
        InputError: for anything else.
    """

    def __init__(self, x: Any, rng: Rng):
        given = numbers(x, "input")
        self.x = given if isinstance(x, np.memmap) else given.to(rng.device)
        self.shape = self.x.shape
        self._device, self._dtype = rng.device, torch.float64 if given.dim() == 2 else rng.dtype

    def __len__(self) -> int:
        return self.shape[0] if self.shape else 0

    def __getitem__(self, points: slice | Int[Tensor, "*n"]) -> Float[Tensor, "..."]:
        """Some of them, [*n, ...]."""
        part = self.x[points.to(self.x.device) if isinstance(points, Tensor) else points]
        return part.to(self._device, self._dtype)


class StandardisedInputs:
    """Points of raw inputs, standardised when they are asked for; stands for a tensor [R, C, ...].

    Args:
        raw: the inputs.
        points: which of them.
        scale: by which they are standardised.
        dtype: to compute in.
    """

    def __init__(self, raw: RawInputs, points: Int[Tensor, "R C"], scale: Standardiser, dtype: torch.dtype):
        self._raw, self._points, self._scale, self._dtype = raw, points, scale, dtype
        self.shape = torch.Size([*points.shape, *raw.shape[1:]])

    def __getitem__(self, key: Any) -> Float[Tensor, "R n ..."]:
        return self._scale.apply(self._raw[self._points[key]], self._dtype)


def numbers(values: Any, what: Literal["input", "label", "threshold"], gaps: bool = False) -> Tensor:
    """Finite real numbers as a tensor, where and of the type they are; messages call them `what`.

    With `gaps` some may be NaN.
    """
    try:
        found = _mapped(values) if isinstance(values, np.memmap) else _tensor(values)
    except (TypeError, ValueError):
        raise InputError(f"{what}s must be numbers, in an array whose rows are equally long") from None
    if found.is_complex() or found.layout != torch.strided or found.is_meta:
        raise InputError(f"{what}s must be real numbers, in a dense array; got {found.dtype}, {found.layout}")
    parts = found.split(ROWS) if found.dim() else [found]
    if not all((part.isfinite() | part.isnan() if gaps else part.isfinite()).all() for part in parts):
        raise InputError(f"{'an' if what == 'input' else 'a'} {what} is not a finite number")
    return found


def labels(values: Any, classes: int, device: torch.device, gaps: bool = False) -> Tensor:
    """Labels as given, copied: class indices as int64; real numbers (`classes` is 0), even whole ones, as float64."""
    found = numbers(values, "label", gaps).to(device, torch.float64, copy=True)
    if not classes:
        return found
    if ((found != found.floor()) | (found < 0) | (found >= classes)).any():
        raise InputError(f"class labels are whole numbers from 0 to {classes - 1}")
    return found.long()


def examples(source: Any) -> tuple[Tensor, Tensor]:
    """All inputs and labels of a DataLoader of (inputs, labels), or of a Dataset of such pairs: read once, and kept.

    Raises:
        InputError: for anything else, an empty one, or batches of several shapes.
    """
    loader = DataLoader(source, batch_size=ROWS) if isinstance(source, Dataset) else source
    if not isinstance(loader, DataLoader):
        raise InputError("labels are missing: give arrays x and y, or a DataLoader (or Dataset) of (x, y) alone")
    read = list(loader)
    if not read or not all(isinstance(batch, tuple | list) and len(batch) == 2 for batch in read):
        kind = type(read[0]).__name__ if read else "nothing"
        raise InputError(f"a DataLoader must give batches (x, y); this one gives {kind}")
    try:
        x, y = (torch.cat([torch.as_tensor(part) for part in parts]) for parts in zip(*read, strict=True))
    except (RuntimeError, TypeError, ValueError) as error:
        raise InputError(f"a DataLoader's batches must be arrays alike in all but their length: {error}") from None
    return x, y


def _tensor(values: Any) -> Tensor:
    # Writable: arrays out of pandas often are not, and torch warns of those.
    return torch.as_tensor(values if isinstance(values, Tensor) else np.require(values, requirements="W"))


def _mapped(values: np.memmap[Any, Any]) -> Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # nor is it written
        return torch.from_numpy(values)
