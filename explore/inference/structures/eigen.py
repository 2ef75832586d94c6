"""The structure of EK-FAC (George et al. 2018): diagonal Fisher matrices in the eigenbases of K-FAC."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from explore.core.context import Number
from explore.core.linalg import over
from explore.core.rng import Rng
from explore.core.shapes import Taps
from explore.inference.structures import kronecker
from explore.inference.structures.base import Damping, Diagonal, PerLayer
from explore.inference.structures.kronecker import KroneckerMoments, KroneckerRule


class Eigen(NamedTuple):
    """EK-FAC statistics of one layer."""

    moments: KroneckerMoments  # A, S
    inputs: Float[Tensor, "R I I"]  # Q_A
    outputs: Float[Tensor, "R O O"]  # Q_S
    scale: Float[Tensor, "R I O"]  # r
    ok: Bool[Tensor, " R"]  # whether the last eigendecomposition succeeded

    @staticmethod
    def of(moments: KroneckerMoments, basis: kronecker.Basis) -> Eigen:
        """Return the statistics in a new basis, with r the eigenvalues of A (x) S."""
        return Eigen(moments, basis.inputs, basis.outputs, basis.values, basis.ok)


@dataclass(frozen=True)
class EigenRule:
    """The EK-FAC rule for one layer: F = Q diag(r) Q^T, Q = Q_A (x) Q_S with eigenvectors Q_A of A and Q_S of S."""

    kronecker: KroneckerRule
    omega: float
    moments_interval: int
    basis_interval: int = 1
    scale_interval: int = 1

    def init(self, inputs: int, outputs: int, replicas: int, rng: Rng) -> Eigen:
        moments = self.kronecker.init(inputs, outputs, replicas, rng)
        return Eigen.of(moments, kronecker.eigenbases([moments])[0])

    def observe(self, q: Eigen, taps: Taps, schedule: Number, step: int) -> Eigen:
        return EigenLayers(self).observe((q,), (taps,), schedule, step)[0]

    def scaled(self, q: Eigen, taps: Taps, schedule: Number) -> Eigen:
        """Update the running average r with squared gradients of the batch in the eigenbasis."""
        new = kronecker.rotated_squares(taps, q.inputs, q.outputs)
        return q._replace(scale=torch.lerp(q.scale, new, over(self.omega * schedule, new)))

    def factor(self, q: Eigen, damping: Damping) -> tuple[Diagonal, Bool[Tensor, " R"]]:
        return Diagonal(q.scale + over(damping, q.scale), q.inputs, q.outputs), q.ok

    def start_share(self, q: Eigen) -> Float[Tensor, " R"]:
        return self.kronecker.start_share(q.moments)

    def restart(self, q: Eigen, damping: Damping | None = None) -> Eigen:
        """Reset r to the diagonal of A (x) S, or with `damping` of A^gamma (x) S^gamma, in the current eigenbasis."""
        moments = q.moments if damping is None else kronecker.damped(q.moments, damping)
        a, s = (((m @ b) * b).sum(1).clamp_min(0) for m, b in zip(moments, (q.inputs, q.outputs), strict=True))
        return q._replace(scale=a.unsqueeze(2) * s.unsqueeze(1))


class EigenLayers(PerLayer):
    """EK-FAC for all layers; the processes of a fit share the eigendecompositions."""

    rule: EigenRule

    def observe(
        self, statistics: tuple[Eigen, ...], taps: tuple[Taps, ...], schedule: Number, step: int
    ) -> tuple[Eigen, ...]:
        rule, pairs = self.rule, list(zip(statistics, taps, strict=True))
        if step % rule.moments_interval == 0:
            moments = (rule.kronecker.observe(q.moments, t, schedule, step) for q, t in pairs)
            statistics = tuple(q._replace(moments=m) for q, m in zip(statistics, moments, strict=True))
        if step % rule.basis_interval == 0:
            bases = kronecker.eigenbases([q.moments for q in statistics])
            statistics = tuple(_turned(q, Eigen.of(q.moments, b)) for q, b in zip(statistics, bases, strict=True))
        if step % rule.scale_interval == 0:
            statistics = tuple(rule.scaled(q, t, schedule) for q, t in zip(statistics, taps, strict=True))
        return statistics


def _turned(old: Eigen, new: Eigen) -> Eigen:
    """Return `new` with r set to the diagonal of the Fisher matrix of `old` in the basis of `new`."""
    scale = (new.inputs.mT @ old.inputs).square() @ old.scale @ (old.outputs.mT @ new.outputs).square()
    return new._replace(scale=scale)
