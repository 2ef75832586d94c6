"""Several inputs of a module as one row of numbers per example, and its output among several.

Pools, batches and replays hold one tensor. So a dict or tuple of inputs becomes rows of their numbers, side by side,
and the network gives them their names, shapes and types back before it calls the module.
"""

import math
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor

from explore.core.errors import InputError

EXACT = 2**24  # whole numbers up to this size are exact in single precision


class Part(NamedTuple):
    """One of several inputs: its position or name, and the shape and type of an example."""

    key: int | str
    shape: tuple[int, ...]
    dtype: torch.dtype


class Inputs:
    """The forms of the inputs of a module; several lengths of sequences are several forms."""

    def __init__(self) -> None:
        self._forms: dict[int, tuple[Part, ...]] = {}  # by the number of numbers of an example
        self._rest: dict[str, Any] = {}  # keywords that are the same for all examples
        self.whole = False  # whether any input must be whole numbers, which are not to be standardised

    def packed(self, batch: Any) -> Tensor:
        """Return a batch of inputs as one tensor: a tensor as it is, a dict (keywords) or a tuple as rows [B, D].

        What is a whole number here will be one for the module, even if it is stored as a real number meanwhile.
        """
        if isinstance(batch, Tensor):
            self.whole |= not batch.is_floating_point()
            return batch
        if not isinstance(batch, Mapping | Sequence) or isinstance(batch, str):
            raise InputError(f"inputs must be a tensor, or a dict or tuple of tensors; got a {type(batch).__name__}")
        items = list(batch.items() if isinstance(batch, Mapping) else enumerate(batch))
        if isinstance(batch, Mapping):  # in a tuple, later inputs would change their places
            items = [(key, value) for key, value in items if value is not None]
        for key, value in items:
            if not isinstance(value, Tensor) or not value.dim() or len(value) != len(items[0][1]):
                raise InputError(f"input {key!r} must be a tensor with one entry per example on its first axis")
        parts = tuple(Part(key, tuple(value.shape[1:]), value.dtype) for key, value in items)
        self.whole |= any(not part.dtype.is_floating_point for part in parts)
        width = sum(math.prod(part.shape) for part in parts)
        if self._forms.setdefault(width, parts) != parts:
            raise InputError(f"two batches have {width} numbers per example, but other shapes; pad to one length")
        return _rows([value for _, value in items])

    def examples(self, keywords: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keywords with a value for each example, and give all others to the module as they are."""
        sizes = [len(value) for value in keywords.values() if isinstance(value, Tensor) and value.dim()]
        each = {k: v for k, v in keywords.items() if isinstance(v, Tensor) and v.dim() and len(v) == sizes[0]}
        self._rest = {key: value for key, value in keywords.items() if key not in each}
        return each

    def unpacked(self, rows: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of the module for inputs as `packed` returns them."""
        if not self._forms:
            return (rows.long() if self.whole else rows,), self._rest
        if rows.dim() != 2 or rows.shape[1] not in self._forms:
            raise InputError(f"inputs have shape {list(rows.shape[1:])}; pass batches through `packed` of the network")
        parts = self._forms[rows.shape[1]]
        values = rows.split([math.prod(part.shape) for part in parts], 1)
        named: dict[int | str, Tensor] = {}
        for part, v in zip(parts, values, strict=True):
            one = v.unflatten(1, part.shape) if part.shape else v.squeeze(1)
            named[part.key] = one if part.dtype.is_floating_point else one.to(part.dtype)
        args = tuple(value for key, value in named.items() if isinstance(key, int))
        return args, {key: value for key, value in named.items() if isinstance(key, str)} | self._rest


def _rows(values: list[Tensor]) -> Tensor:
    real = [value.dtype for value in values if value.is_floating_point()]
    if not real:
        return torch.cat([value.reshape(len(value), -1).long() for value in values], 1)
    dtype = reduce(torch.promote_types, real, torch.float32)
    if dtype == torch.float32 and any(
        not v.is_floating_point() and bool((v.long().abs() > EXACT).any()) for v in values
    ):
        raise InputError(f"whole numbers beyond {EXACT} beside real ones need inputs in double precision")
    return torch.cat([value.reshape(len(value), -1).to(dtype) for value in values], 1)


def chosen_output(out: Any, which: str | int | None) -> Any:
    """Return the output `which` of a module's return value; None: the value itself, or its `logits`."""
    if which is None:
        return out if isinstance(out, Tensor) else getattr(out, "logits", out)
    if isinstance(which, str) and not isinstance(out, Mapping):
        return getattr(out, which)
    return out[which]
