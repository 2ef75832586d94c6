"""The slots for Linear and Embedding layers, and for parameters that are no weights of a layer: entries.

Entries are scales, shifts, and parameters that a module's own code uses. n of them are a weight matrix [1, n], as of a
layer whose only input is the constant 1. Its pre-activation is the parameter itself, once for each example.
"""

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from explore.core.linalg import product
from explore.nets.slots.base import Lead, WeightSlot, dtype_of


class LinearSlot(WeightSlot, nn.Linear):
    """A slot for a Linear layer, applied at any number of positions."""

    def __init__(self, layer: nn.Linear, name: str):
        super().__init__(layer, name)
        self.inputs = self.fan_in = self.in_features + self.has_bias
        self.outputs = self.out_features

    def values(self, tensors: Mapping[str, Tensor]) -> Tensor:
        weight = tensors["weight"]
        return (torch.cat([weight, tensors["bias"].unsqueeze(1)], 1) if self.has_bias else weight).mT

    def tensors(self, values: Tensor) -> dict[str, Tensor]:
        return {"weight": values[:-1].mT, "bias": values[-1]} if self.has_bias else {"weight": values.mT}

    def misfit(self, shape: torch.Size) -> str:
        return "" if shape and shape[-1] == self.in_features else f"{self.in_features} features"

    def apply_matrix(self, a: Tensor) -> Tensor:
        """Apply the weight matrices: [(R S B), ..., C] -> [(R S B), ..., O]."""
        w, (r, s, b) = self._values, self.lead
        if r == 1 and not self._mode.taps and not torch.is_grad_enabled():
            # The S matrices [S, I, O] share the inputs without a copy, and the output needs no transposition.
            h = self._affine(a.reshape(self._lead_in[1], -1, a.shape[-1]).expand(s, -1, -1), w[0])
        elif self._lead_in[1] == s:
            h = self._affine(a.reshape(r * s, -1, a.shape[-1]), w.flatten(0, 1))  # [(R S), I, O]
        else:
            h = self._affine(a.reshape(r, -1, a.shape[-1]), w.transpose(1, 2).flatten(2))  # [R, (B ...), (S O)]
            h = h.unflatten(2, (s, -1)).transpose(1, 2)
        return h.reshape(r * s * b, *a.shape[1:-1], w.shape[-1])

    def _affine(self, a: Tensor, w: Tensor) -> Tensor:
        if len(w) == 1:  # as torch's own layer; `product` may transpose its memory, which slows down what follows
            weight, bias = (w[0, :-1], w[0, -1]) if self.has_bias else (w[0], None)
            return F.linear(a[0], weight.mT, bias).unsqueeze(0)
        return product(a, w[:, :-1], w[:, -1:]) if self.has_bias else product(a, w)

    def examples(self, a: Tensor, lead: Lead) -> Tensor:
        """Unfold inputs: [(R S B), ..., C] -> [R, S, B, T, I]."""
        a = a.reshape(*lead, -1, a.shape[-1])
        return F.pad(a, (0, 1), value=1.0) if self.has_bias else a

    def fold(self, h: Tensor, a: Tensor) -> Tensor:
        """Fold pre-activations: [R, S, B, T, O] -> [(R S B), ..., O]."""
        return h.reshape(-1, *a.shape[1:-1], self.outputs)


class EmbeddingSlot(WeightSlot, nn.Embedding):
    """A slot for an Embedding: a Linear layer without bias on one-hot rows. The row of `padding_idx` stays as it is."""

    def __init__(self, layer: nn.Embedding, name: str):
        super().__init__(layer, name)
        self.inputs, self.outputs, self.fan_in = layer.num_embeddings, layer.embedding_dim, 1
        self._padding = None if layer.padding_idx is None else layer.weight.detach()[layer.padding_idx].clone()

    def values(self, tensors: Mapping[str, Tensor]) -> Tensor:
        return tensors["weight"]

    def tensors(self, values: Tensor) -> dict[str, Tensor]:
        if self._padding is not None:
            values = values.clone()
            values[self.padding_idx] = self._padding
        return {"weight": values}

    def apply_matrix(self, a: Tensor) -> Tensor:
        """Look up the rows: [(R S B), ...] -> [(R S B), ..., O]."""
        w, (r, s, b) = self._values, self.lead
        sets = self.inputs * torch.arange(r * s, device=a.device).view(r, s, 1, 1)
        return self.fold(F.embedding(a.reshape(r, self._lead_in[1], b, -1) + sets, w.flatten(0, 2)), a)

    def examples(self, a: Tensor, lead: Lead) -> Tensor:
        """Return one-hot rows, 0 where padded: [(R S B), ...] -> [R, S, B, T, I]."""
        dtype = a.dtype if a.is_floating_point() else dtype_of(self._values)
        rows = F.one_hot(a.reshape(*lead, -1).long(), self.inputs).to(dtype)
        if self._padding is not None:
            rows[..., self.padding_idx] = 0
        return rows

    def fold(self, h: Tensor, a: Tensor) -> Tensor:
        """Fold pre-activations: [R, S, B, T, O] -> [(R S B), ..., O]."""
        if self._padding is not None and self.padding_idx is not None:
            padded = a.eq(self.padding_idx).reshape(*self._lead_in, -1, 1)
            h = torch.where(padded, self._padding.to(h), h)
        return h.reshape(-1, *a.shape[1:], self.outputs)


class Entries(WeightSlot):
    """A slot for parameters of any shape."""

    inputs = fan_in = 1
    sizes: dict[str, torch.Size]  # of the parameters, by name
    centre: Mapping[str, float] = {}  # what is added to entries, as their prior has mean 0

    def _measure(self, parameters: Mapping[str, Tensor | None]) -> None:
        self.sizes = {key: t.shape for key, t in parameters.items() if t is not None}
        self.outputs, self.has_bias = sum(map(math.prod, self.sizes.values())), True

    def values(self, tensors: Mapping[str, Tensor]) -> Tensor:
        return torch.cat([tensors[key].flatten() - self.centre.get(key, 0.0) for key in self.sizes]).unsqueeze(0)

    def tensors(self, values: Tensor) -> dict[str, Tensor]:
        return self.split(values.squeeze(0))

    def split(self, entries: Tensor) -> dict[str, Tensor]:
        """Return the parameters, from entries [..., n]."""
        parts = entries.split([math.prod(size) for size in self.sizes.values()], -1)
        named = zip(self.sizes.items(), parts, strict=True)
        return {key: t.reshape(*t.shape[:-1], *size) + self.centre.get(key, 0.0) for (key, size), t in named}

    def apply_matrix(self, a: Tensor) -> Tensor:
        """Repeat the entries for every example: [(R S B), n]."""
        r, s, b = self.lead
        return self._values.expand(r, s, b, self.outputs).flatten(0, 2)

    def examples(self, a: Tensor, lead: Lead) -> Tensor:
        return a.new_ones(*lead, 1, 1)

    def fold(self, h: Tensor, a: Tensor) -> Tensor:
        return h.reshape(-1, self.outputs)


class AffineEntries(Entries):
    """A slot for a normalisation of each example, with a distribution over its scale and shift."""

    centre = {"weight": 1.0}

    def __init__(self, layer: nn.Module, name: str):
        super().__init__(layer, name)
        self._measure(layer._parameters)

    def _computed(self, a: Tensor, per: int) -> Tensor:
        entries = super()._computed(a.new_ones(len(a), 1), per).unflatten(0, self.lead)
        return self.applied(a, self.split(entries))


class OwnEntries(Entries):
    """A slot for a parameter that the module's own code uses; the module runs one example at a time for its taps."""

    def __init__(self, key: str, parameter: Tensor):
        nn.Module.__init__(self)
        self.name, _, self._key = key.rpartition(".")
        self.called, self.layouts = f"parameter {key!r}", ()
        self._measure({self._key: parameter})
        self.end()

    def parameter(self) -> Tensor:
        """Return the parameter in the current pass."""
        mode, values = self._mode, self._values
        if not mode.probe:
            self._mode = mode._replace(lead=(1, 1, 1))
        entries: Tensor = self(values.new_ones(math.prod(self._mode.lead), 1))
        return self.split(entries[0])[self._key]
