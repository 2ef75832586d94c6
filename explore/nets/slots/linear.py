"""Linear layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from explore.core.linalg import product
from explore.nets.slots.base import Lead, WeightSlot


class LinearSlot(WeightSlot, nn.Linear):
    """A Linear layer, applied at any number of positions."""

    def __init__(self, layer: nn.Linear, name: str):
        super().__init__(layer, name)
        self.inputs, self.outputs = self.in_features + self.has_bias, self.out_features

    def misfit(self, shape: torch.Size) -> str:
        return "" if shape and shape[-1] == self.in_features else f"{self.in_features} features"

    def apply_matrix(self, a: Tensor) -> Tensor:
        """[(R S B), ..., C] -> [(R S B), ..., O]."""
        w, (r, s, b) = self._layer, self._lead
        if r == 1 and not self._taps and not torch.is_grad_enabled():
            h = self._predicted(a, w[0])
        elif self._lead_in == self._lead:
            h = self._affine(a.reshape(r * s, -1, a.shape[-1]), w.flatten(0, 1))  # [(R S), I, O]
        else:
            h = self._affine(a.reshape(r, -1, a.shape[-1]), w.transpose(1, 2).flatten(2))  # [R, (B ...), (S O)]
            h = h.unflatten(2, (s, -1)).transpose(1, 2)
        return h.reshape(r * s * b, *a.shape[1:-1], self.outputs)

    def _predicted(self, a: Tensor, w: Tensor) -> Tensor:
        """The same by S matrices [S, I, O]: they read shared inputs where they are, and no output has to be moved."""
        return self._affine(a.reshape(self._lead_in[1], -1, a.shape[-1]).expand(len(w), -1, -1), w)

    def _affine(self, a: Tensor, w: Tensor) -> Tensor:
        return product(a, w[:, :-1], w[:, -1:]) if self.has_bias else product(a, w)

    def examples(self, a: Tensor, lead: Lead) -> Tensor:
        """[(R S B), ..., C] -> [R, S, B, T, I]."""
        return self._with_one(a.reshape(*lead, -1, a.shape[-1]))

    def positions(self, g: Tensor, lead: Lead) -> Tensor:
        """[(R S B), ..., O] -> [R, S, B, T, O]."""
        return g.reshape(*lead, -1, self.outputs)

    def fold(self, h: Tensor, a: Tensor) -> Tensor:
        """[R, S, B, T, O] -> [(R S B), ..., O]."""
        return h.reshape(-1, *a.shape[1:-1], self.outputs)
