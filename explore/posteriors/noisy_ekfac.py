"""Noisy EK-FAC: a Gaussian per layer, diagonal in the Kronecker eigenbasis of the Fisher matrix.

Bae, Zhang, Grosse: Eigenvalue Corrected Noisy Natural Gradient (2018), Algorithm 1. With the moments A, S of noisy
K-FAC and their eigenvectors Q_A, Q_S,

    q(W): W = M + Q_A [E o ((lambda/N) / (r + gamma))^1/2] Q_S^T,  E white noise          gamma = lambda / (N eta)
    r <- (1 - omega) r + omega E[(Q_A^T dW Q_S)^2]         dW: an example's gradient, targets drawn from the model
    M <- M + alpha Q_A [(Q_A^T V~ Q_S) / (r + gamma')] Q_S^T                       gamma' = gamma + extrinsic damping

V~ as in noisy K-FAC. Every T_eig steps the basis is recomputed; r becomes the diagonal, in the new basis, of the matrix
that it stood for (the authors keep its numbers). At several positions (tokens, pixels) dW is their sum, and A and S are
those of `explore.inference.structures.kronecker`.

In the paper r restarts from K-FAC's eigenvalues every T_reset steps, here with `reset_interval`, after the step's
factors are made of the corrected r, and only where T_reset steps remain. Paper and code differ: the text restarts every
50 steps (preset `paper-text`); the code takes the eigenvalues of A^gamma and S^gamma (`reset_damped`), adds gamma again
when sampling, and restarts at every step (preset `paper`), so that it is noisy K-FAC, damped once more, with a share
omega of the last batch's diagonal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from explore.core.context import Number, Turn
from explore.core.linalg import over
from explore.core.rng import Rng
from explore.core.shapes import Taps
from explore.inference.structures import kronecker
from explore.inference.structures.base import Damping, Diagonal, PerLayer, Statistics, each_layer
from explore.inference.structures.kronecker import KroneckerMoments, KroneckerRule, WeightSharing
from explore.inference.updates import natural
from explore.inference.updates.natural import TABLE, NaturalGradient, NaturalState


class Eigen(NamedTuple):
    """Statistics of one layer."""

    moments: KroneckerMoments  # A, S
    inputs: Float[Tensor, "R I I"]  # Q_A
    outputs: Float[Tensor, "R O O"]  # Q_S
    scale: Float[Tensor, "R I O"]  # r
    ok: Bool[Tensor, " R"]  # whether the last eigendecomposition succeeded


@dataclass(frozen=True)
class EigenRule:
    """The rule for one layer: F = Q_A (x) Q_S diag(r) (Q_A (x) Q_S)^T."""

    kronecker: KroneckerRule
    omega: float
    moments_interval: int
    basis_interval: int = 1
    scale_interval: int = 1

    def init(self, inputs: int, outputs: int, replicas: int, rng: Rng) -> Eigen:
        moments = self.kronecker.init(inputs, outputs, replicas, rng)
        return Eigen(moments, *kronecker.eigenbases([moments])[0])

    def observe(self, q: Eigen, taps: Taps, schedule: Number, step: int) -> Eigen:
        return EigenLayers(self).observe((q,), (taps,), schedule, step)[0]

    def scaled(self, q: Eigen, taps: Taps, schedule: Number) -> Eigen:
        """Move r towards the batch's."""
        new = kronecker.rotated_squares(taps, q.inputs, q.outputs)
        return q._replace(scale=torch.lerp(q.scale, new, over(self.omega * schedule, new)))

    def factor(self, q: Eigen, damping: Damping) -> tuple[Diagonal, Bool[Tensor, " R"]]:
        return Diagonal(q.scale + over(damping, q.scale), q.inputs, q.outputs), q.ok

    def start_share(self, q: Eigen) -> Float[Tensor, " R"]:
        return self.kronecker.start_share(q.moments)

    def restart(self, q: Eigen, damping: Damping | None = None) -> Eigen:
        """Set r to K-FAC's, the diagonal in the basis of A (x) S, or with a damping of A^gamma (x) S^gamma."""
        moments = q.moments if damping is None else kronecker.damped(q.moments, damping)
        a, s = (((m @ b) * b).sum(1).clamp_min(0) for m, b in zip(moments, (q.inputs, q.outputs), strict=True))
        return q._replace(scale=a.unsqueeze(2) * s.unsqueeze(1))


class EigenLayers(PerLayer):
    """All layers by the rule; several processes divide the renewal of their bases."""

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
            statistics = tuple(_turned(q, Eigen(q.moments, *b)) for q, b in zip(statistics, bases, strict=True))
        if step % rule.scale_interval == 0:
            statistics = tuple(rule.scaled(q, t, schedule) for q, t in zip(statistics, taps, strict=True))
        return statistics


def _turned(old: Eigen, new: Eigen) -> Eigen:
    """Return the new basis with the old matrix's diagonal in it."""
    scale = (new.inputs.mT @ old.inputs).square() @ old.scale @ (old.outputs.mT @ new.outputs).square()
    return new._replace(scale=scale)


@dataclass(frozen=True, kw_only=True)
class NoisyEKFAC(NaturalGradient):
    """Noisy EK-FAC; the defaults are the paper's for the UCI sets, but for restarts and `adaptive_damping`.

    Work with an interval is due at steps that both it and `statistics_interval` divide.
    """

    omega: float = 0.01  # averaging rate of r
    moments_interval: int = 1  # T_stats: steps between updates of A and S
    basis_interval: int = 5  # T_eig: steps between eigendecompositions
    reset_interval: int | None = None  # T_reset: steps between restarts of r; None: there are none
    reset_damped: bool = False  # whether r restarts from A^gamma (x) S^gamma, so that the damping enters twice
    scale_interval: int = 1  # T_scale: steps between updates of r
    weight_sharing: WeightSharing = "auto"  # of A and S by the positions of a layer, see `structures.kronecker`

    ranges: ClassVar[dict[str, str]] = {"omega": "(0, 1]"}
    by_replica = NaturalGradient.by_replica

    @property
    def structure(self) -> PerLayer:
        return EigenLayers(self._rule)

    def turn(self, step: int, progress: float) -> Turn:
        observed = step % self.statistics_interval == 0
        if observed and step % self.basis_interval == 0:
            return super().turn(step, progress)._replace(kind=None)  # it waits for a decomposition
        due = step % self.moments_interval == 0, step % self.scale_interval == 0, self._restarts(step, progress)
        turn = super().turn(step, progress)
        return turn._replace(kind=(turn.kind, due))

    def once_factored(self, statistics: Statistics, state: NaturalState, progress: float) -> Statistics:
        if not self._restarts(int(state.common.step) + 1, progress):
            return statistics
        damping = each_layer(self.gamma(state.common), len(statistics))
        pairs = zip(statistics, damping, strict=True)
        return tuple(self._rule.restart(q, c if self.reset_damped else None) for q, c in pairs)

    def _restarts(self, step: int, progress: float) -> bool:
        """Return whether r restarts after this step; a full restart interval must still follow."""
        if self.reset_interval is None or step % self.reset_interval:
            return False
        # `progress` tells the number of remaining steps; half a step is for its rounding.
        remaining = (step - 1) * (1 / progress - 1) - 1 if progress else math.inf
        return remaining >= self.reset_interval - 0.5

    @property
    def _rule(self) -> EigenRule:
        moments = KroneckerRule(self.beta, weight_sharing=self.weight_sharing)
        return EigenRule(moments, self.omega, self.moments_interval, self.basis_interval, self.scale_interval)


AS_CODE: dict[str, object] = {"reset_interval": 1, "reset_damped": True}  # as the authors' code restarts

PRESETS: dict[str, dict[str, object]] = {
    "default": TABLE | AS_CODE,
    "hundreds": natural.HUNDREDS | AS_CODE,
    "classes": natural.CLASSES | AS_CODE,
    # On the sets of noisy K-FAC's presets: the authors' code, and the paper's text.
    "paper": AS_CODE | {"adaptive_damping": False},
    "paper-text": {"adaptive_damping": False, "reset_interval": 50},
    "paper-batch-100": AS_CODE | {"adaptive_damping": False, "batch_size": 100},
    "paper-protein": AS_CODE | {"adaptive_damping": False, "batch_size": 100, "epochs": 500},
    "small": natural.SMALL | {"basis_interval": 10, "omega": 0.05},
    "image": natural.IMAGE | {"omega": 0.02, "basis_interval": 50, "reset_interval": 50},
    # As noisy K-FAC's; its file lists differences to the paper's code.
    "paper-image": natural.IMAGE | {
        "lr": 0.1, "beta": 0.01, "kl_weight": 0.5, "extrinsic_damping": 1e-3, "kl_clip": 0.1,
        "prior_variance": 0.1, "statistics_interval": 10, "basis_interval": 200, "reset_interval": 200,
    },
    # See noisy K-FAC's.
    "vime": {
        "prior_variance": 0.25, "beta": 0.01, "adaptive_damping": False, "factor_interval": 10, "basis_interval": 50,
        "reset_interval": 50,
    },
}  # fmt: skip

BY_ROWS = {
    units: {rows: settings | AS_CODE for rows, settings in anchors.items()}
    for units, anchors in natural.TABLE_BY_ROWS.items()
}

CONTRACT: dict[str, object] = {
    "lively": {"beta": 0.1, "omega": 0.2, "basis_interval": 2},
    "forgetful": {"beta": 0.5, "omega": 0.5, "basis_interval": 3},
    "linear": [("covariance", {"lr": 0.2, "beta": 0.05, "omega": 0.05})],
}
