"""What a module has besides its layers: fixed tensors, and random numbers."""

import random
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from explore.core.errors import InputError
from explore.nets.slots.base import Slot


class Buffers:
    """The fixed tensors of a module, buffers and frozen parameters; they can be moved to another device and dtype."""

    def __init__(self, root: nn.Module, trained: Sequence[str]):
        points = {id(root.get_parameter(name)) for name in trained}
        modules = [module for module in root.modules() if not isinstance(module, Slot)]
        tables: list[tuple[nn.Module, Any]] = [(m, table) for m in modules for table in (m._buffers, m._parameters)]
        every = [(m, table, name, tensor) for m, table in tables for name, tensor in table.items()]
        slots = (module for module in root.modules() if isinstance(module, Slot))
        self._unreadable: list[Any] = [parameter for slot in slots for parameter in slot._parameters.values()]
        self._all = [place for place in every if place[3] is not None and id(place[3]) not in points]

    def move(self, device: torch.device, dtype: torch.dtype) -> None:
        """Move all to a device, and convert floating-point tensors to a dtype."""
        for module, table, name, tensor in self._all:
            kind, now = dtype if tensor.is_floating_point() else tensor.dtype, table[name]
            if now is None or now.device != device or now.dtype != kind:
                new = tensor.to(device, kind)
                if isinstance(tensor, nn.Parameter):
                    setattr(module, name, nn.Parameter(new, requires_grad=False))  # recurrent layers keep a list, too
                else:
                    table[name] = new
        for parameter in self._unreadable:
            parameter.device, parameter.dtype = device, dtype

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Raise InputError if a forward pass within the block changes a buffer."""
        before = self._versions()  # holds the tensors: a new one could otherwise get the address of the old
        yield
        for (_, _, name, _), (old, version), (new, now) in zip(self._all, before, self._versions(), strict=True):
            if new is not old or now != version:
                raise InputError(f"forward() changes the buffer {name!r}; buffers must stay fixed")

    def _versions(self) -> list[tuple[Any, int]]:
        return [(table[name], getattr(table[name], "_version", 0)) for _, table, name, _ in self._all]


@contextmanager
def chance(device: torch.device) -> Iterator[list[str]]:
    """Yield a list that gets the names of the global generators from which the block draws random numbers."""
    before, names = _generators(device), list[str]()
    yield names
    names += [name for name, state in _generators(device).items() if state != before[name]]


def _generators(device: torch.device) -> dict[str, Any]:
    """Return the states of the generators of torch, NumPy and Python."""
    of_device = [torch.cuda.get_rng_state(device)] if device.type == "cuda" else []
    _, key, *rest = np.random.get_state()
    states: dict[str, Any] = {
        "torch": [state.numpy().tobytes() for state in (torch.get_rng_state(), *of_device)],
        "numpy.random": (np.asarray(key).tobytes(), rest),
    }
    names = [thread.name for thread in threading.enumerate()]
    of_dask = any(name == "IO loop" or "Dask-Default" in name for name in names)  # of its clients and workers
    if not of_dask and "beartype" not in sys.modules:  # which draw from Python's generator themselves
        states["random"] = random.getstate()
    return states
