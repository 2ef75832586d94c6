"""What of a torch module `Net` takes over, and what it refuses by name rather than compute something else.

A layer's place is taken by a matrix of weights. So a layer must be what its class says, with nothing around it: what a
subclass, a parametrisation or a hook adds would be lost, and a frozen layer would be trained.
"""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.lazy import LazyModuleMixin

from explore.errors import InputError

LAYERS: tuple[type[nn.Module], ...] = (nn.Linear, nn.Conv2d, nn.BatchNorm1d, nn.BatchNorm2d)
ALLOWED = "layers with parameters must be Linear, Conv2d, BatchNorm1d or BatchNorm2d"
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def check(module: nn.Module) -> None:
    """Refuse a module that `Net` could not run as it stands.

    Raises:
        InputError: naming the layer, and what is allowed.
    """
    if not isinstance(module, nn.Module):
        raise InputError(f"Net takes a torch.nn.Module; got a {type(module).__name__}")
    seen: set[int] = set()
    # Duplicates too: a module's second appearance must be refused.
    for name, layer in module.named_modules(remove_duplicate=False):
        held = [*layer.parameters(recurse=False), *layer.buffers(recurse=False)]
        if reason := _refusal(layer, bool(held)):
            raise InputError(f"layer {name or '0'!r} ({type(layer).__name__}) {reason}")
        if any(id(tensor) in seen for tensor in held):
            raise InputError(f"layer {name!r} shares its weights with another one; give each its own")
        seen.update(map(id, held))


def _refusal(layer: nn.Module, holds: bool) -> str:
    """Why a layer is not supported; empty where it is."""
    if isinstance(layer, LazyModuleMixin):
        return "has no size yet; run the module on an example first"
    if isinstance(layer, _DropoutNd | nn.RReLU):
        return "is not supported, for it would be off in training; leave it out, and choose the posterior mc-dropout"
    if type(layer) not in LAYERS:
        base = next((cls.__name__ for cls in LAYERS if isinstance(layer, cls)), None)
        if base:
            return f"is not supported: what a subclass or a parametrisation adds would be lost; use {base} itself"
        return f"is not supported; {ALLOWED}" if holds or isinstance(layer, _BatchNorm) else ""
    names = {*layer._parameters, *layer._modules} - {"weight", "bias"}
    if names or "forward" in vars(layer) or any(getattr(layer, hooks) for hooks in HOOKS):
        return (
            "is not supported: it has hooks, parameters or a forward of its own, as weight_norm and pruning give it, "
            f"which would be lost; use a plain {type(layer).__name__}"
        )
    if not all(p.requires_grad for p in layer.parameters()):
        return "is frozen (requires_grad=False), but every layer is learnt anew; move what is fixed out of the network"
    return ""
