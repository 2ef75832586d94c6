"""Sampled weights as ordinary torch modules."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from explore.core.errors import InputError
from explore.nets.slots.norms import STATISTICS

Tensors = dict[str, Tensor]
PARTS = ("query", "key", "value")  # Linear layers of an `Attention`


def written(module: nn.Module, values: Mapping[str, Tensor]) -> nn.Module:
    """Write values into the parameters and buffers of these names; return the module."""
    own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    if missing := [name for name in values if name not in own]:
        raise InputError(f"the module has no parameter {missing[0]!r}; pass the module of the network, or a copy of it")
    with torch.no_grad():
        for name, value in values.items():
            own[name].copy_(value)
    return module


def named(slots: Sequence[Any], layers: Sequence[Any], sample: int) -> Tensors:
    """Return the parameters of the first replica and a sample, by the names that they have in a network."""
    values: Tensors = {}
    for slot, layer in zip(slots, layers, strict=True):
        if not isinstance(layer, Tensor):
            raise InputError(f"the weights of {slot.called} are not a matrix, so that no module can hold them")
        one = layer[0, min(sample, layer.shape[1] - 1)]
        values |= {f"{_prefix(slot.name)}{key}": t for key, t in slot.tensors(one).items()}
    return values


def of(slot: Any, tensors: Mapping[str, Tensor]) -> Tensors:
    """Return the parameters and buffers of the layer of a slot by their names in that layer."""
    keys = getattr(slot, "sizes", STATISTICS)
    names = ((key, f"{_prefix(slot.name)}{key}") for key in keys)
    return {key: tensors[name] for key, name in names if name in tensors}


def restored(values: Tensors, rewritten: Mapping[str, str]) -> Tensors:
    """Return `values` by the names in the user's module, some of whose layers were rewritten (`fates.rewrite`)."""
    values = {_joined(key, rewritten): t for key, t in _turned(values, rewritten).items()}
    for prefix, kind in _attention(rewritten):
        weights = [values.pop(f"{prefix}{part}.weight") for part in PARTS]
        biases = [values.pop(f"{prefix}{part}.bias", None) for part in PARTS]
        if kind == "apart":
            values |= {f"{prefix}{part[0]}_proj_weight": w for part, w in zip(PARTS, weights, strict=True)}
        else:
            values[f"{prefix}in_proj_weight"] = torch.cat(weights)
        if all(bias is not None for bias in biases):
            values[f"{prefix}in_proj_bias"] = torch.cat([bias for bias in biases if bias is not None])
    return values


def rewritten(tensors: Mapping[str, Tensor], kinds: Mapping[str, str]) -> Tensors:
    """Return tensors of the user's module by the names of the layers that were rewritten; the inverse of `restored`."""
    values = _turned(tensors, kinds)
    for prefix in (_prefix(name) for name, kind in kinds.items() if kind == "with activation"):
        values |= {f"{prefix}0.{key}": values[f"{prefix}{key}"] for key in STATISTICS if f"{prefix}{key}" in values}
    for prefix, kind in _attention(kinds):
        apart = (values.get(f"{prefix}{part[0]}_proj_weight") for part in PARTS)
        weights = values[f"{prefix}in_proj_weight"].chunk(3) if kind == "packed" else apart
        bias = values.get(f"{prefix}in_proj_bias")
        for part, w, b in zip(PARTS, weights, (None,) * 3 if bias is None else bias.chunk(3), strict=True):
            values |= {f"{prefix}{part}.{key}": t for key, t in (("weight", w), ("bias", b)) if t is not None}
    return values


def _turned(tensors: Mapping[str, Tensor], kinds: Mapping[str, str]) -> Tensors:
    """Return tensors with the weights of layers of the kind "transposed" turned, which is its own inverse."""
    turned = {f"{_prefix(name)}weight" for name, kind in kinds.items() if kind == "transposed"}
    return {key: t.mT if key in turned else t for key, t in tensors.items()}


def _attention(kinds: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the prefix of the parameters, and the kind, of each attention layer."""
    return [(_prefix(name), kind) for name, kind in kinds.items() if kind in ("apart", "packed")]


def _joined(key: str, kinds: Mapping[str, str]) -> str:
    """Return the name of a parameter in a batch normalisation with activation, from that in its first part."""
    place, _, last = key.rpartition(".")
    whole = place[: -len(".0")]
    return f"{whole}.{last}" if place.endswith(".0") and kinds.get(whole) == "with activation" else key


def _prefix(name: str) -> str:
    return f"{name}." if name else ""
