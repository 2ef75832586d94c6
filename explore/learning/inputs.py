"""Inputs and labels as the user passes them (memory maps, data loaders), checked, and standardised on demand."""

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

ROWS = 2**14  # that are checked together


class RawInputs:
    """Inputs [P, ...] in their own units and type, finite, on the device of `rng`; a memory map stays in its file.

    Features become double precision, since single would merge neighbouring time stamps; images the dtype of `rng`.
    """

    def __init__(self, x: Any, rng: Rng):
        values = numbers(x, "input")
        self.x = values if isinstance(x, np.memmap) else values.to(rng.device)
        self.shape = self.x.shape
        self._device, self._dtype = rng.device, torch.float64 if values.dim() == 2 else rng.dtype

    def __len__(self) -> int:
        return self.shape[0] if self.shape else 0

    def __getitem__(self, points: slice | Int[Tensor, "*n"]) -> Float[Tensor, "..."]:
        """Some inputs, [*n, ...]."""
        part = self.x[points.to(self.x.device) if isinstance(points, Tensor) else points]
        return part.to(self._device, self._dtype)

    def check_shape(self, shape: tuple[int, ...], which: str) -> None:
        """Refuse inputs of another shape than [n, *shape]; `which` has this shape."""
        if not len(self) or tuple(self.shape[1:]) != shape:
            expected = ", ".join(map(str, ("n", *shape)))
            raise InputError(f"inputs come as [{expected}], as those {which}; got {list(self.shape)}")


class StandardisedInputs:
    """Some points [R, C] of raw inputs as a tensor [R, C, ...], standardised on demand to this dtype."""

    def __init__(self, raw: RawInputs, points: Int[Tensor, "R C"], scale: Standardiser, dtype: torch.dtype):
        self._raw, self._points, self._scale, self._dtype = raw, points, scale, dtype
        self.shape = torch.Size([*points.shape, *raw.shape[1:]])

    def __getitem__(self, key: Any) -> Float[Tensor, "R n ..."]:
        return self._scale.apply(self._raw[self._points[key]], self._dtype)


def numbers(values: Any, noun: Literal["input", "label", "threshold"], gaps: bool = False) -> Tensor:
    """Finite real numbers as a tensor of their device and type; with `gaps` some may be NaN."""
    try:
        # Writable: arrays out of pandas often are not, and torch warns of those.
        values = values if isinstance(values, Tensor | np.memmap) else np.require(values, requirements="W")
        with warnings.catch_warnings():  # of a memory map, which is not written
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            tensor = torch.as_tensor(values)
    except (TypeError, ValueError):
        raise InputError(f"{noun}s must be numbers, in an array whose rows are equally long") from None
    if tensor.is_complex() or tensor.layout != torch.strided or tensor.is_meta:
        raise InputError(f"{noun}s must be real numbers, in a dense array; got {tensor.dtype}, {tensor.layout}")
    parts = tensor.split(ROWS) if tensor.dim() else [tensor]
    if not all((part.isfinite() | part.isnan() if gaps else part.isfinite()).all() for part in parts):
        raise InputError(f"{'an' if noun == 'input' else 'a'} {noun} is not a finite number")
    return tensor


def labels(values: Any, classes: int, device: torch.device, gaps: bool = False) -> Tensor:
    """Copy labels: class indices to int64; real numbers (`classes` is 0), even whole ones, to float64."""
    copy = numbers(values, "label", gaps).to(device, torch.float64, copy=True)
    if not classes:
        return copy
    if ((copy != copy.floor()) | (copy < 0) | (copy >= classes)).any():
        raise InputError(f"class labels are whole numbers from 0 to {classes - 1}")
    return copy.long()


def examples(source: Any) -> tuple[Tensor, Tensor]:
    """Read all inputs and labels of a DataLoader of (inputs, labels), or of a Dataset of such pairs."""
    loader = DataLoader(source, batch_size=ROWS) if isinstance(source, Dataset) else source
    if not isinstance(loader, DataLoader):
        raise InputError("labels are missing: give arrays x and y, or a DataLoader (or Dataset) of (x, y) alone")
    batches = list(loader)
    if not batches or not all(isinstance(batch, tuple | list) and len(batch) == 2 for batch in batches):
        kind = type(batches[0]).__name__ if batches else "nothing"
        raise InputError(f"a DataLoader must give batches (x, y); this one gives {kind}")
    try:
        x, y = (torch.cat([torch.as_tensor(part) for part in parts]) for parts in zip(*batches, strict=True))
    except (RuntimeError, TypeError, ValueError) as error:
        raise InputError(f"a DataLoader's batches must be arrays alike in all but their length: {error}") from None
    return x, y
