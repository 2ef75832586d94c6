"""The dense structure: the Fisher matrix of all weights of a small network as one matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from explore.core.context import Number
from explore.core.linalg import averaged, identity, inverse_root, over
from explore.core.rng import Rng
from explore.core.shapes import Means, Taps, Weights, flatten, unflatten
from explore.execution import parallel
from explore.inference.structures.base import Dampings, each_layer, example_gradients

MAX_WEIGHTS = 4096  # one matrix then takes 64 MiB in single precision


class DenseFactor(NamedTuple):
    """A positive definite matrix P = L L^T over all weights, stored as L^-1."""

    rows: Weights  # the W rows of L^-1, each a vector over layers: [R, W, I, O]

    def solve(self, v: Weights) -> Weights:
        return self._combine(self._inner(v))

    def root(self, eps: Weights) -> Weights:
        return self._combine(flatten(eps))

    def logdet(self) -> Float[Tensor, " R"]:
        return -2 * flatten(self.rows).diagonal(dim1=1, dim2=2).log().sum(1)

    def variance(self) -> Means:
        return tuple(x.square().sum(1) for x in self.rows)

    def quad(self, taps: tuple[Taps, ...]) -> Float[Tensor, "R B"]:
        means = (tuple(x.mean(1) for x in g) for g in example_gradients(taps))
        return torch.cat([self._inner(g).square().sum(2) for g in means], 1)

    def curvature(self, taps: tuple[Taps, ...]) -> Float[Tensor, "R B"]:
        """Return `Factor.curvature` from S x S Gram matrices. For a dense P, D = E_s[g_b g_b^T] needs no projection."""
        parts = []
        for g in example_gradients(taps):
            s, b = g[0].shape[1:3]
            white = self._inner(tuple(x.flatten(1, 2) for x in g)).unflatten(1, (s, b)).transpose(1, 2)
            parts.append((white @ white.mT).square().sum((2, 3)) / s**2)
        return torch.cat(parts, 1)

    def _inner(self, v: Weights) -> Float[Tensor, "R S W"]:
        """Return L^-1 v, where P = L L^T."""
        return flatten(v) @ flatten(self.rows).mT

    def _combine(self, c: Float[Tensor, "R S W"]) -> Weights:
        """Return L^-T c, where P = L L^T."""
        return tuple((c @ x.flatten(2)).unflatten(2, x.shape[2:]) for x in self.rows)


@dataclass(frozen=True)
class Dense:
    """The dense structure, which stores F as a full matrix."""

    shapes: tuple[tuple[int, int], ...]
    beta: Number = 0.001  # averaging rate

    def init(self, shapes: tuple[tuple[int, int], ...], replicas: int, rng: Rng) -> Float[Tensor, "R W W"]:
        return identity(sum(i * o for i, o in shapes), rng).repeat(replicas, 1, 1)

    def observe(
        self, fisher: Float[Tensor, "R W W"], taps: tuple[Taps, ...], schedule: Number, step: int
    ) -> Float[Tensor, "R W W"]:
        rate, (s, b) = self.beta * schedule, taps[0].grads.shape[1:3]
        fisher = over(1 - rate, fisher) * fisher
        for part in example_gradients(taps):
            g = flatten(part).flatten(1, 2)
            fisher = averaged(fisher, g.mT, g, 1, rate / (s * b))
        return parallel.mean(fisher)

    def factor(self, fisher: Float[Tensor, "R W W"], damping: Dampings) -> tuple[DenseFactor, Bool[Tensor, " R"]]:
        zeros = unflatten(torch.zeros_like(fisher[:, 0]), self.shapes)
        added = flatten(tuple(x + over(c, x) for x, c in zip(zeros, each_layer(damping, len(zeros)), strict=True)))
        root, ok = inverse_root(fisher + torch.diag_embed(added))
        return DenseFactor(tuple(x.contiguous() for x in unflatten(root, self.shapes))), ok

    def start_share(self, fisher: Float[Tensor, "R W W"]) -> Float[Tensor, " R"]:
        return 1 / fisher.diagonal(dim1=1, dim2=2).mean(1)
