"""The last result of an expensive function of tensors, for repeated reads of an unchanged state."""

import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor

Value = TypeVar("Value")


class Memo(Generic[Value]):
    """A cache of one result, which is dropped as soon as one of its tensors is."""

    def __init__(self) -> None:
        self._last: tuple[Hashable, list[weakref.ref[Tensor]], Value] | None = None

    def of(self, tensors: Sequence[Tensor], more: Hashable, compute: Callable[[], Value]) -> Value:
        """Return `compute()`, or the last result if it was of these very tensors, unchanged, and an equal `more`.

        Recordings change tensors without a trace, so `more` must then identify the update. Nothing is kept of tensors
        that need gradients, as their graph is used once, or of those of inference mode, which may change unnoticed.
        """
        if any(t.is_inference() or (torch.is_grad_enabled() and t.requires_grad) for t in tensors):
            return compute()
        key = (more, *((id(t), t._version) for t in tensors))
        last = self._last
        if last is not None and last[0] == key and all(ref() is t for ref, t in zip(last[1], tensors, strict=True)):
            return last[2]
        value = compute()
        self._last = key, [weakref.ref(t, lambda _: self._forget(key)) for t in tensors], value
        return value

    def _forget(self, key: Hashable) -> None:
        if self._last is not None and self._last[0] == key:
            self._last = None
