"""Checks of torch modules that refuse those that `Net` does not support, by name.

A layer's place is taken by a matrix of weights. What a subclass, a parametrisation or a hook adds would be lost, and a
frozen layer would be trained.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.lazy import LazyModuleMixin
from torch.utils._python_dispatch import TorchDispatchMode

from explore.core.errors import InputError

LAYERS: tuple[type[nn.Module], ...] = (nn.Linear, nn.Conv2d, nn.BatchNorm1d, nn.BatchNorm2d)
ALLOWED = "layers with parameters must be Linear, Conv2d, BatchNorm1d or BatchNorm2d"
DROPOUT = "the posterior mc-dropout drops inputs of every layer itself, at its `rate`"
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
INSTEAD: dict[type[nn.Module], str] = {
    nn.LayerNorm: "LayerNorm(..., elementwise_affine=False) has none",
    nn.RMSNorm: "RMSNorm(..., elementwise_affine=False) has none",
    nn.GroupNorm: "GroupNorm(..., affine=False) has none",
    nn.Embedding: "one-hot inputs and a Linear do what an Embedding does",
    nn.RNNBase: "a sequence can be read by attention made of Linear layers",
    nn.MultiheadAttention: "attention can be made of Linear layers and scaled_dot_product_attention",
    nn.Conv1d: "a Conv2d with a kernel of (k, 1) on x.unsqueeze(-1) does what a Conv1d does",
    nn.PReLU: "LeakyReLU has none",
}


def called(name: str) -> str:
    """Return a layer's name for messages; the network itself has none."""
    return f"layer {name!r}" if name else "the network"


def check(module: nn.Module) -> None:
    """Refuse a module that `Net` could not run as it stands."""
    if not isinstance(module, nn.Module):
        raise InputError(f"Net takes a torch.nn.Module; got a {type(module).__name__}")
    if hasattr(module, "_orig_mod"):  # of torch.compile
        raise InputError("Net takes a module as it was before torch.compile; give module._orig_mod")
    checked: set[int] = set()
    # Duplicates too: a module's second appearance must be refused.
    for name, layer in module.named_modules(remove_duplicate=False):
        held = [*layer.parameters(recurse=False), *layer.buffers(recurse=False)]
        if reason := _refusal(layer, bool(held)):
            raise InputError(f"{called(name)} ({type(layer).__name__}) {reason}")
        held = held if type(layer) in LAYERS else []  # a buffer may stand in several places
        if any(id(tensor) in checked for tensor in held):
            raise InputError(f"{called(name)} shares its weights with another one; give each its own")
        checked.update(map(id, held))


def _refusal(layer: nn.Module, holds: bool) -> str:
    """Why a layer is not supported; empty where it is."""
    if isinstance(layer, LazyModuleMixin):
        return "has no size yet; run the module on an example first"
    if isinstance(layer, _DropoutNd | nn.RReLU):
        return f"is not supported; leave it out: {DROPOUT}"
    if type(layer) not in LAYERS:
        base = next((cls.__name__ for cls in LAYERS if isinstance(layer, cls)), None)
        if base:
            return f"is not supported: what a subclass or a parametrisation adds would be lost; use {base} itself"
        return _unknown(layer) if holds or isinstance(layer, _BatchNorm) else ""
    names = {*layer._parameters, *layer._modules} - {"weight", "bias"}
    if names or "forward" in vars(layer) or any(getattr(layer, hooks) for hooks in HOOKS):
        return f"has hooks, parameters or a forward of its own; use a plain {type(layer).__name__}"
    if not all(p.requires_grad for p in layer.parameters()):
        return "is frozen (requires_grad=False), but all layers are trained; move fixed ones out of the network"
    return ""


def _unknown(layer: nn.Module) -> str:
    """Why a layer of another class with tensors of its own is not supported, and what there is in its place."""
    if instead := next((text for cls, text in INSTEAD.items() if isinstance(layer, cls)), None):
        return f"is not supported; {ALLOWED}, and {instead}"
    if isinstance(layer, _BatchNorm) or type(layer).__module__.startswith("torch."):
        return f"is not supported; {ALLOWED}"
    if parameter := next(iter(dict(layer.named_parameters(recurse=False))), None):
        return f"has a parameter {parameter!r} of its own; {ALLOWED}, so make it the weight or the bias of a layer"
    return ""  # buffers are fixed tensors, see `Buffers`


class Buffers:
    """The fixed tensors of a module whose layers are replaced, on the device and in the precision of the inputs."""

    def __init__(self, root: nn.Module):
        every = ((m, name, tensor) for m in root.modules() for name, tensor in m._buffers.items())
        self._all = [(m, name, tensor) for m, name, tensor in every if tensor is not None]

    def move(self, x: Tensor) -> None:
        """To the device and the precision of inputs x."""
        for module, name, tensor in self._all:
            real = tensor.is_floating_point() and x.is_floating_point()
            now, dtype = module._buffers[name], x.dtype if real else tensor.dtype
            if now is None or now.device != x.device or now.dtype != dtype:
                module._buffers[name] = tensor.to(x.device, dtype)

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Refuse passes that change a buffer."""
        before = self._versions()
        yield
        if changed := [name for name, version in self._versions().items() if version != before[name]]:
            raise InputError(f"the network's forward changes its buffer {changed[0][1]!r}; buffers must stay fixed")

    def _versions(self) -> dict[tuple[int, str], tuple[int, int]]:
        tensors = {(id(m), name): m._buffers[name] for m, name, _ in self._all}
        return {key: (id(t), getattr(t, "_version", 0)) for key, t in tensors.items()}


class _RandomOperations(TorchDispatchMode):
    """Notes the names of torch's operations that draw random numbers, whatever generator they draw from."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Never compiled, and marking it so would import the compiler: seconds at every start."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded in func.tags:
            names = [argument.name for argument in func._schema.arguments]
            values = {"dropout_p": 0.0} | dict(zip(names, args, strict=False)) | kwargs
            if "dropout_p" not in names or values["dropout_p"]:  # attention has the tag with or without dropout
                self.names.append(func.overloadpacket.__name__)
        return func(*args, **kwargs)


@contextmanager
def without_chance() -> Iterator[None]:
    """Refuse passes that draw random numbers: torch's by the operations, Python's and NumPy's by their states."""
    before = _generators()
    with _RandomOperations() as drawn:
        yield
    names = drawn.names + [name for name, state in _generators().items() if state != before[name]]
    if names:
        raise InputError(f"the network's forward draws random numbers ({names[0]}); leave them out: {DROPOUT}")


def _generators() -> dict[str, Any]:
    _, key, *rest = np.random.get_state()
    states: dict[str, Any] = {"numpy.random": (np.asarray(key).tobytes(), rest)}
    if "beartype" not in sys.modules:  # which samples container items with Python's generator
        states["random"] = random.getstate()
    return states
