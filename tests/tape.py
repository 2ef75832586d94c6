"""Recorded operations that are repeated on the same memory: the CPU counterpart of a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from explore.core import tree
from explore.core.rng import Rng
from explore.core.shapes import Info, State
from explore.execution import graphs


def no_host_reads() -> AbstractContextManager[Any]:
    """Let tensors on the CPU count as on a device, whose values the host does not read."""
    return mock.patch.object(tree, "unseen", lambda t: True)


class Tape(TorchDispatchMode):
    """Operations and draws from a stream; a recorder, as `graphs.Cuda`."""

    def __init__(self, rng: Rng) -> None:
        super().__init__()
        self.rng = rng
        self._calls: list[tuple[Any, Sequence[Any], Mapping[str, Any], Any]] = []
        self._before: list[tuple[Tensor, Tensor]] = []

    def warm(self, run: Callable[[], Any]) -> Any:
        """Run it as on a device."""
        with no_host_reads():
            return run()

    def record(self, run: Callable[[], tuple[State, Info]], place: State) -> tuple[Info, Callable[[], None]]:
        """Record an update: its info, without meaning before the first replay, and the function that replays it."""
        self._calls, self._before, drawn = [], [], self.rng.generator.get_state()
        with self:
            new, info = self.warm(run)
            graphs.write(new, place)
        # A recording alone does nothing.
        self.rng.generator.set_state(drawn)
        for changed, before in reversed(self._before):
            changed.copy_(before)

        calls = self._calls

        def replay() -> None:
            with torch.no_grad():
                for call in calls:
                    _repeat(*call)

        return info, replay

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func._schema.is_mutable:
            changed = args[0].detach()
            self._before.append((changed, changed.clone()))
        out = func(*args, **(kwargs or {}))
        self._calls.append((func, args, kwargs or {}, out))
        return out


def _repeat(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> None:
    if func.is_view:  # of the same memory still
        return
    again = func(*args, **kwargs)
    for old, new in zip(tree_leaves(out), tree_leaves(again), strict=True):
        if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
            old.detach().copy_(new)
