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
    """How messages call a layer of a network, which itself has no name."""
    return f"layer {name!r}" if name else "the network"


def check(module: nn.Module) -> None:
    """Refuse a module that `Net` could not run as it stands.

    Raises:
        InputError: naming the layer, and what is allowed.
    """
    if not isinstance(module, nn.Module):
        raise InputError(f"Net takes a torch.nn.Module; got a {type(module).__name__}")
    if hasattr(module, "_orig_mod"):  # of torch.compile
        raise InputError("Net takes a module as it was before torch.compile; give module._orig_mod")
    seen: set[int] = set()
    # Duplicates too: a module's second appearance must be refused.
    for name, layer in module.named_modules(remove_duplicate=False):
        held = [*layer.parameters(recurse=False), *layer.buffers(recurse=False)]
        if reason := _refusal(layer, bool(held)):
            raise InputError(f"{called(name)} ({type(layer).__name__}) {reason}")
        if any(id(tensor) in seen for tensor in held):
            raise InputError(f"{called(name)} shares its weights with another one; give each its own")
        seen.update(map(id, held))


def _refusal(layer: nn.Module, holds: bool) -> str:
    """Why a layer is not supported; empty where it is."""
    if isinstance(layer, LazyModuleMixin):
        return "has no size yet; run the module on an example first"
    if isinstance(layer, _DropoutNd | nn.RReLU):
        return (
            "is not supported, for it would be off in training; leave it out: the posterior mc-dropout drops inputs of "
            "every layer itself, at its `rate`"
        )
    if type(layer) not in LAYERS:
        base = next((cls.__name__ for cls in LAYERS if isinstance(layer, cls)), None)
        if base:
            return f"is not supported: what a subclass or a parametrisation adds would be lost; use {base} itself"
        return _unknown(layer) if holds or isinstance(layer, _BatchNorm) else ""
    names = {*layer._parameters, *layer._modules} - {"weight", "bias"}
    if names or "forward" in vars(layer) or any(getattr(layer, hooks) for hooks in HOOKS):
        return (
            "is not supported: it has hooks, parameters or a forward of its own, as weight_norm and pruning give it, "
            f"which would be lost; use a plain {type(layer).__name__}"
        )
    if not all(p.requires_grad for p in layer.parameters()):
        return "is frozen (requires_grad=False), but every layer is learnt anew; move what is fixed out of the network"
    return ""


def _unknown(layer: nn.Module) -> str:
    """Why a layer of another class with tensors of its own is not supported, and what there is in its place."""
    if instead := next((text for cls, text in INSTEAD.items() if isinstance(layer, cls)), None):
        return f"is not supported; {ALLOWED}, and {instead}"
    if isinstance(layer, _BatchNorm) or type(layer).__module__.startswith("torch."):
        return f"is not supported; {ALLOWED}"
    if own := next(iter(dict(layer.named_parameters(recurse=False))), None):
        return f"has a parameter {own!r} of its own; {ALLOWED}, so make it the weight or the bias of a layer"
    own = next(iter(dict(layer.named_buffers(recurse=False))))
    return (
        f"has a buffer {own!r}; only BatchNorm1d and BatchNorm2d may have buffers, so keep a fixed tensor as a plain "
        f"attribute, and write self.{own}.to(x) in the forward"
    )
