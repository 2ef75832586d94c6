"""Layers made anew of layers that `Net` can replace, and the parameters by the names in the user's module.

Attention is made of Linear layers, since the forward pass of torch's reads its weights.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from explore.nets.slots.norms import STATISTICS

Tensors = dict[str, Tensor]
PROJECTIONS = ("query", "key", "value")  # Linear layers of an `Attention`
PARTS = {
    "MultiheadAttention": {
        "in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight", "in_proj_bias", "bias_k", "bias_v",
        "out_proj",
    },
    "BatchNormAct2d": {"drop", "act"},  # of timm
}  # fmt: skip
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Origin(NamedTuple):
    """The parameters of a rewritten network that were made of one parameter of the user's module."""

    parts: Sequence[str]  # whose concatenation it is
    transposed: bool = False


class Attention(nn.Module):
    """The same function as nn.MultiheadAttention, with Linear layers for queries, keys, values and outputs."""

    in_proj_bias = None  # torch's transformer layers have a fast path that reads weights; this keeps them from it
    _qkv_same_embed_dim = False

    def __init__(self, layer: nn.MultiheadAttention):
        super().__init__()
        self.embed_dim, self.num_heads, self.batch_first = layer.embed_dim, layer.num_heads, layer.batch_first
        self.dropout, self.add_zero_attn = layer.dropout, layer.add_zero_attn
        apart = (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight)
        weights = apart if layer.in_proj_weight is None else layer.in_proj_weight.chunk(3)
        biases = (None,) * 3 if layer.in_proj_bias is None else layer.in_proj_bias.chunk(3)
        self.query, self.key, self.value = map(linear, weights, biases)
        self.out_proj = linear(layer.out_proj.weight, layer.out_proj.bias)
        self.bias_k, self.bias_v = layer.bias_k, layer.bias_v
        self.train(layer.training)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None = None,
        need_weights: bool = True, attn_mask: Tensor | None = None, average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """Do as nn.MultiheadAttention; sequences are [B, T, E], or [T, B, E] without `batch_first`."""
        queries, keys, values = self.query(query), self.key(key), self.value(value)
        if not self.batch_first:
            queries, keys, values = (t.transpose(0, 1) for t in (queries, keys, values))
        if self.bias_k is not None and self.bias_v is not None:
            ends = (t.expand(len(keys), -1, -1) for t in (self.bias_k, self.bias_v))
            keys, values = (torch.cat(pair, 1) for pair in zip((keys, values), ends, strict=True))
        if self.add_zero_attn:
            keys, values = (torch.cat([t, torch.zeros_like(t[:, :1])], 1) for t in (keys, values))
        more = keys.shape[1] - key.shape[1 if self.batch_first else 0]
        mask = self._mask(queries, key_padding_mask, attn_mask, more)
        q, k, v = (t.unflatten(2, (self.num_heads, -1)).transpose(1, 2) for t in (queries, keys, values))
        weights = None
        if need_weights:
            scores = q @ k.mT / q.shape[-1] ** 0.5 + (0 if mask is None else mask)
            weights = F.dropout(scores.softmax(-1), self.dropout, self.training)
            out = weights @ v
            weights = weights.mean(1) if average_attn_weights else weights
        else:
            out = F.scaled_dot_product_attention(q, k, v, mask, self.dropout if self.training else 0.0)
        out = out.transpose(1, 2).flatten(2)
        return self.out_proj(out if self.batch_first else out.transpose(0, 1)), weights

    def _mask(self, q: Tensor, padding: Tensor | None, mask: Tensor | None, more: int) -> Tensor | None:
        """Return what is added to the scores, [B or 1, heads or 1, T or 1, keys], or None."""
        every: list[Tensor] = []
        if mask is not None:
            every.append(mask if mask.dim() == 2 else mask.unflatten(0, (-1, self.num_heads)))
        if padding is not None:
            every.append(padding[:, None, None])
        if not every:
            return None
        scores = [torch.where(m, -torch.inf, q.new_zeros(())) if m.dtype == torch.bool else m for m in every]
        added: Any = sum(scores)
        return F.pad(added, (0, more)) if more else added


def linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """Return a Linear layer with copies of these parameters."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    layer.weight = nn.Parameter(weight.detach().clone(), weight.requires_grad)
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach().clone(), bias.requires_grad)
    return layer


def is_plain(layer: nn.Module) -> bool:
    """Return whether a layer's forward pass is that of its class: no hooks, and nothing replaced or added."""
    added = {*layer._parameters, *layer._modules} - {"weight", "bias"} - PARTS.get(type(layer).__name__, set())
    return not added and "forward" not in vars(layer) and not any(getattr(layer, hooks) for hooks in HOOKS)


def shown_name(name: str) -> str:
    """Return a name without the prefix of `Root`."""
    return name.removeprefix("0").removeprefix(".")


def replace(root: nn.Module, names: Sequence[str], layer: nn.Module) -> None:
    """Put `layer` in place of the modules with these names."""
    for path in names:
        parent, _, name = path.rpartition(".")
        setattr(root.get_submodule(parent), name, layer)


def rewrite(root: nn.Module) -> dict[str, Origin]:
    """Make torch's layers of attention, and of layers of transformers and timm; return the origins, by user's name."""
    origins: dict[str, Origin] = {}
    for name, layer in list(root.named_modules()):
        if not is_plain(layer) or not all(p.requires_grad for p in layer.parameters()):
            continue
        start = shown_name(f"{name}.")
        if type(layer).__name__ == "BatchNormAct2d":
            norm = nn.BatchNorm2d(layer.num_features, layer.eps, layer.momentum, layer.affine)
            norm.to(layer.running_mean).load_state_dict(layer.state_dict())
            replace(root, [name], nn.Sequential(norm, layer.drop, layer.act).train(layer.training))
            origins |= {f"{start}{key}": Origin([f"{start}0.{key}"]) for key in STATISTICS}
        elif type(layer) is nn.MultiheadAttention:
            replace(root, [name], Attention(layer))
            weights, biases = ([f"{start}{part}.{kind}" for part in PROJECTIONS] for kind in ("weight", "bias"))
            origins[f"{start}in_proj_bias"] = Origin(biases)
            if layer.in_proj_weight is None:
                apart = zip("qkv", weights, strict=True)
                origins |= {f"{start}{letter}_proj_weight": Origin([weight]) for letter, weight in apart}
            else:
                origins[f"{start}in_proj_weight"] = Origin(weights)
        elif type(layer).__name__ == "Conv1D" and hasattr(layer, "nf"):  # as in GPT-2
            replace(root, [name], linear(layer.weight.T, layer.bias))
            origins[f"{start}weight"] = Origin([f"{start}weight"], transposed=True)
    return origins


def restored(values: Tensors, origins: Mapping[str, Origin]) -> Tensors:
    """Return `values` by the names in the user's module, some of whose layers were rewritten."""
    values = dict(values)
    for name, (parts, transposed) in origins.items():
        if all(part in values for part in parts):
            whole = torch.cat([values.pop(part) for part in parts])
            values[name] = whole.mT if transposed else whole
    return values


def rewritten(tensors: Mapping[str, Tensor], origins: Mapping[str, Origin]) -> Tensors:
    """Return tensors of the user's module by the names of the layers that were rewritten; the inverse of `restored`."""
    values = dict(tensors)
    for name, (parts, transposed) in origins.items():
        if name in tensors:
            whole = tensors[name].mT if transposed else tensors[name]
            values.update(zip(parts, whole.chunk(len(parts)), strict=True))
    return values
