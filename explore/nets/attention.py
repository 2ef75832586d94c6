"""Multi-head attention made of Linear layers, in place of torch's, whose forward pass reads its weights."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


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
        mask = self._mask(queries, keys.shape[1], key_padding_mask, attn_mask, more)
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

    def _mask(self, q: Tensor, keys: int, padding: Tensor | None, mask: Tensor | None, more: int) -> Tensor | None:
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
