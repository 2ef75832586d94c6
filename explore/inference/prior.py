"""The variance eta of the prior N(0, eta) where it is learned: the closed-form maximum of the bound.

With the density q = N(M, Sigma) held fixed, KL(q || N(0, eta)) over n coordinates that share eta is least at

    eta = (|M|^2 + tr Sigma) / n

as Graves has it (Practical Variational Inference for Neural Networks, 2011), kept within [1e-4, 1e2]. It is taken at
the end of each epoch, so that the bound cannot fall there; the density follows with its next update.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from explore.core.rng import Rng
from explore.core.shapes import Means

LEAST, MOST = 1e-4, 1e2

Rows = float | Float[Tensor, "_R _I 1"]
"""Of one tensor of coordinates: the same for all of it, or a number for each row ([R, 1, 1]: for each replica)."""


class Prior(NamedTuple):
    """Learned variances: for each tensor of coordinates [R, 1, 1], or [R, I, 1] where the last row has its own."""

    variance: tuple[Float[Tensor, "R _I 1"], ...]  # eta, of the end of the last epoch
    held: tuple[Float[Tensor, "R _I 1"], ...]  # eta at the last update, where the density itself depends on it


def start(eta: float, shapes: Sequence[tuple[int, int]], own_bias: Sequence[bool], replicas: int, rng: Rng) -> Prior:
    """The same for all, before any epoch; `own_bias` says of which tensors of coordinates the last row is apart."""
    variance = tuple(
        torch.full((replicas, inputs if own else 1, 1), eta, dtype=rng.dtype, device=rng.device)
        for (inputs, _), own in zip(shapes, own_bias, strict=True)
    )
    return Prior(variance, variance)


def maximum(second: Means, own_bias: Sequence[bool]) -> tuple[Float[Tensor, "R _I 1"], ...]:
    """Eta at the maximum of the bound, from the second moments E_q[w^2] of the coordinates, a tuple of [R, I, O]."""
    found = []
    for squares, own in zip(second, own_bias, strict=True):
        rows = squares.mean(2, keepdim=True)
        if own:
            weights = rows[:, :-1].mean(1, keepdim=True).expand_as(rows[:, :-1])
            rows = torch.cat([weights, rows[:, -1:]], 1)
        else:
            rows = rows.mean(1, keepdim=True)
        found.append(rows.clamp(LEAST, MOST))
    return tuple(found)
