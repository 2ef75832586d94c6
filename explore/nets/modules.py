"""Checks that reject torch modules that `Net` does not support.

`Net` replaces each layer by its weight matrix. So `Net` would ignore the code of a subclass, parametrisation or hook,
and would train a frozen layer.
"""

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
DROPOUT = "for dropout use the posterior mc-dropout"
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
INSTEAD: dict[type[nn.Module], str] = {
    nn.LayerNorm: "use LayerNorm(..., elementwise_affine=False), which has no parameters",
    nn.RMSNorm: "use RMSNorm(..., elementwise_affine=False), which has no parameters",
    nn.GroupNorm: "use GroupNorm(..., affine=False), which has no parameters",
    nn.Embedding: "use one-hot inputs and a Linear",
    nn.RNNBase: "use attention made of Linear layers",
    nn.MultiheadAttention: "use Linear layers and scaled_dot_product_attention",
    nn.Conv1d: "use a Conv2d with a kernel of (k, 1) on x.unsqueeze(-1)",
    nn.PReLU: "use LeakyReLU, which has no parameters",
}


def called(name: str) -> str:
    """Format a layer's name for messages; "" is the network itself."""
    return f"layer {name!r}" if name else "the network"


def check(module: nn.Module) -> None:
    """Raise InputError if `Net` does not support the module."""
    if not isinstance(module, nn.Module):
        raise InputError(f"Net expects a torch.nn.Module; got a {type(module).__name__}")
    if hasattr(module, "_orig_mod"):  # set by torch.compile
        raise InputError("Net does not support compiled modules; pass module._orig_mod")
    checked: set[int] = set()
    # Keep duplicates: a module that appears twice is an error.
    for name, layer in module.named_modules(remove_duplicate=False):
        held = [*layer.parameters(recurse=False), *layer.buffers(recurse=False)]
        if reason := _refusal(layer, bool(held)):
            raise InputError(f"{called(name)} ({type(layer).__name__}) {reason}")
        held = held if type(layer) in LAYERS else []  # other modules may share buffers
        if any(id(tensor) in checked for tensor in held):
            raise InputError(f"{called(name)} shares its weights with another layer; give each layer separate weights")
        checked.update(map(id, held))


def _refusal(layer: nn.Module, holds: bool) -> str:
    """Return why a layer is unsupported, or "" if supported. `holds`: whether the layer has parameters or buffers."""
    if isinstance(layer, LazyModuleMixin):
        return "is a lazy layer without shapes; run the module on one example first"
    if isinstance(layer, _DropoutNd | nn.RReLU):
        return f"is not supported; remove it: {DROPOUT}"
    if type(layer) not in LAYERS:
        base = next((cls.__name__ for cls in LAYERS if isinstance(layer, cls)), None)
        if base:
            return f"is not supported: the code of a subclass or parametrisation would be ignored; use a plain {base}"
        return _unknown(layer) if holds or isinstance(layer, _BatchNorm) else ""
    names = {*layer._parameters, *layer._modules} - {"weight", "bias"}
    if names or "forward" in vars(layer) or any(getattr(layer, hooks) for hooks in HOOKS):
        extras = "hooks, more parameters or another forward() (as by weight_norm or pruning), which would be ignored"
        return f"has {extras}; use a plain {type(layer).__name__}"
    if not all(p.requires_grad for p in layer.parameters()):
        return "is frozen (requires_grad=False), but all layers are trained; move frozen layers out of the network"
    return ""


def _unknown(layer: nn.Module) -> str:
    """Return why a layer of a type not in `LAYERS` is unsupported; "" for a user-defined layer with buffers only."""
    if instead := next((text for cls, text in INSTEAD.items() if isinstance(layer, cls)), None):
        return f"is not supported; {ALLOWED}: {instead}"
    if isinstance(layer, _BatchNorm) or type(layer).__module__.startswith("torch."):
        return f"is not supported; {ALLOWED}"
    if parameter := next(iter(dict(layer.named_parameters(recurse=False))), None):
        return f"has a parameter {parameter!r}; {ALLOWED}: make it the weight or bias of one of these layers"
    return ""  # only buffers, which are fixed tensors; see `Buffers`


class Buffers:
    """The buffers (fixed tensors) of a module; they can be moved to the device and dtype of the inputs."""

    def __init__(self, root: nn.Module):
        every = ((m, name, tensor) for m in root.modules() for name, tensor in m._buffers.items())
        self._all = [(m, name, tensor) for m, name, tensor in every if tensor is not None]

    def move(self, x: Tensor) -> None:
        """Move all buffers to the device of the inputs x, and convert floating-point buffers to the dtype of x."""
        for module, name, tensor in self._all:
            real = tensor.is_floating_point() and x.is_floating_point()
            now, dtype = module._buffers[name], x.dtype if real else tensor.dtype
            if now is None or now.device != x.device or now.dtype != dtype:
                module._buffers[name] = tensor.to(x.device, dtype)

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Raise InputError if a forward pass within the block changes a buffer."""
        before = self._versions()
        yield
        if changed := [name for name, version in self._versions().items() if version != before[name]]:
            raise InputError(f"forward() changes the buffer {changed[0][1]!r}; buffers must stay fixed")

    def _versions(self) -> dict[tuple[int, str], tuple[int, int]]:
        tensors = {(id(m), name): m._buffers[name] for m, name, _ in self._all}
        return {key: (id(t), getattr(t, "_version", 0)) for key, t in tensors.items()}


class _RandomOperations(TorchDispatchMode):
    """A dispatch mode that records the names of torch operations that draw random numbers, from any generator."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: this mode is never compiled, and True would import torch's compiler, which takes seconds."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded in func.tags:
            names = [argument.name for argument in func._schema.arguments]
            values = {"dropout_p": 0.0} | dict(zip(names, args, strict=False)) | kwargs
            if "dropout_p" not in names or values["dropout_p"]:  # attention has this tag even without dropout
                self.names.append(func.overloadpacket.__name__)
        return func(*args, **kwargs)


@contextmanager
def without_chance() -> Iterator[None]:
    """Raise InputError if a forward pass in the block draws random numbers from torch, NumPy or Python's `random`."""
    before = _generators()
    with _RandomOperations() as drawn:
        yield
    names = drawn.names + [name for name, state in _generators().items() if state != before[name]]
    if names:
        raise InputError(f"forward() draws random numbers ({names[0]}); remove dropout and noise: {DROPOUT}")


def _generators() -> dict[str, Any]:
    _, key, *rest = np.random.get_state()
    states: dict[str, Any] = {"numpy.random": (np.asarray(key).tobytes(), rest)}
    if "beartype" not in sys.modules:  # beartype itself draws from Python's generator
        states["random"] = random.getstate()
    return states
