"""Noisy EK-FAC: a Gaussian per layer, diagonal in the Kronecker eigenbasis of the Fisher matrix.

Bae, Zhang, Grosse: Eigenvalue Corrected Noisy Natural Gradient (2018), Algorithm 1. With the moments A, S of noisy
K-FAC and their eigenvectors Q_A, Q_S,

    q(W): W = M + Q_A [E o ((lambda/N) / (r + gamma))^1/2] Q_S^T,  E white noise          gamma = lambda / (N eta)
    r <- (1 - omega) r + omega E[(Q_A^T dW Q_S)^2]         dW: per-example gradient, targets drawn from the model
    M <- M + alpha Q_A [(Q_A^T V~ Q_S) / (r + gamma')] Q_S^T                       gamma' = gamma + extrinsic damping

V~ is as in noisy K-FAC. Every T_eig steps the basis is recomputed, and r is set to the diagonal of the old Fisher
matrix in the new basis; the authors leave r unchanged. For layers with several positions (tokens, pixels), dW is the
sum over positions; see `explore.inference.structures.kronecker` for A and S.

In the paper, r is reset to the eigenvalues of K-FAC every T_reset steps. Here, a reset (`reset_interval`) comes after
the corrected r was used in the factors of the step, and only if T_reset more steps follow. The paper's text resets
every 50 steps (preset `paper-text`). The authors' code (preset `paper`) resets at every step, to the eigenvalues of
A^gamma and S^gamma (`reset_damped`), and adds gamma again when sampling. The result is noisy K-FAC with damping added
twice, in which the last batch contributes a share omega to the diagonal.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from explore.core.context import Turn
from explore.core.linalg import over
from explore.inference.structures.base import Diagonal, PerLayer, Statistics
from explore.inference.structures.kronecker import EigenRule, KroneckerRule, WeightSharing
from explore.inference.updates import natural
from explore.inference.updates.damped import AS_PAPER, DampedNaturalGradient
from explore.inference.updates.natural import TABLE, NaturalState


@dataclass(frozen=True, kw_only=True)
class NoisyEKFAC(DampedNaturalGradient):
    """Noisy EK-FAC; the defaults follow the paper for the UCI sets, except for resets and `adaptive_damping`.

    A, S, the basis and r are each updated at the common multiples of an interval and of `statistics_interval`.
    """

    omega: float = 0.01  # averaging rate of r
    moments_interval: int = 1  # T_stats: steps between updates of A and S
    basis_interval: int = 5  # T_eig: steps between eigendecompositions
    reset_interval: int | None = None  # T_reset: steps between resets of r; None: no resets
    reset_damped: bool = False  # whether to reset r to A^gamma (x) S^gamma, so that damping is added twice
    scale_interval: int = 1  # T_scale: steps between updates of r
    weight_sharing: WeightSharing = "auto"  # A and S for layers with several positions, see `structures.kronecker`

    ranges: ClassVar[dict[str, str]] = {"omega": "(0, 1]"}

    @property
    def structure(self) -> PerLayer:
        return PerLayer(self._rule)

    def turn(self, step: int, progress: float) -> Turn:
        observed = step % self.statistics_interval == 0
        if observed and step % self.basis_interval == 0:
            return super().turn(step, progress)._replace(kind=None)  # an eigendecomposition blocks
        due = step % self.moments_interval == 0, step % self.scale_interval == 0, self._restarts(step, progress)
        turn = super().turn(step, progress)
        return turn._replace(kind=(turn.kind, due))

    def spectra(self, state: NaturalState) -> Iterator[tuple[Diagonal, Diagonal]]:
        gamma = self.gamma(state.common)
        for q in state.statistics:
            more = over(gamma, q.scale)
            exact = self._rule.restart(q).scale if self.reset_damped else q.scale  # r has the damping of its resets
            factor = Diagonal(exact + more, q.inputs, q.outputs)
            yield factor, factor._replace(precision=q.scale + more)

    def once_factored(self, statistics: Statistics, state: NaturalState, progress: float) -> Statistics:
        if not self._restarts(int(state.common.step) + 1, progress):
            return statistics
        gamma = self.gamma(state.common) if self.reset_damped else None
        return tuple(self._rule.restart(q, gamma) for q in statistics)

    def _restarts(self, step: int, progress: float) -> bool:
        """Return whether to reset r after this step; at least one full reset interval must follow."""
        if self.reset_interval is None or step % self.reset_interval:
            return False
        # `progress` gives the number of remaining steps; the half step allows for rounding.
        remaining = (step - 1) * (1 / progress - 1) - 1 if progress else math.inf
        return remaining >= self.reset_interval - 0.5

    @property
    def _rule(self) -> EigenRule:
        moments = KroneckerRule(self.beta, weight_sharing=self.weight_sharing)
        return EigenRule(moments, self.omega, self.moments_interval, self.basis_interval, self.scale_interval)


AS_CODE: dict[str, object] = {"reset_interval": 1, "reset_damped": True}  # resets as in the authors' code

PRESETS: dict[str, dict[str, object]] = {
    "default": TABLE | AS_CODE,
    "hundreds": natural.HUNDREDS | AS_CODE,
    "classes": natural.CLASSES | AS_CODE,
    # For the data sets of the noisy K-FAC presets: `paper` follows the authors' code, `paper-text` the text.
    "paper": AS_PAPER | AS_CODE | {"adaptive_damping": False},
    "paper-text": AS_PAPER | {"adaptive_damping": False, "reset_interval": 50},
    "paper-batch-100": AS_PAPER | AS_CODE | {"adaptive_damping": False, "batch_size": 100},
    "paper-protein": AS_PAPER | AS_CODE | {"adaptive_damping": False, "batch_size": 100, "epochs": 500},
    "small": natural.SMALL | {"basis_interval": 10, "omega": 0.05, "predictive": "mixed"},
    "image": natural.IMAGE | AS_PAPER | {"omega": 0.02, "basis_interval": 50, "reset_interval": 50},
    # As in noisy K-FAC, whose module lists differences from the paper's code.
    "paper-image": natural.IMAGE | AS_PAPER | {
        "lr": 0.1, "beta": 0.01, "kl_weight": 0.5, "extrinsic_damping": 1e-3, "kl_clip": 0.1,
        "prior_variance": 0.1, "statistics_interval": 10, "basis_interval": 200, "reset_interval": 200,
    },
    # As in noisy K-FAC.
    "vime": AS_PAPER | {
        "prior_variance": 0.25, "beta": 0.01, "adaptive_damping": False, "factor_interval": 10, "basis_interval": 50,
        "reset_interval": 50,
    },
}  # fmt: skip

INPUT_NOISE = natural.INPUT_NOISE
BY_COLUMNS = natural.BY_COLUMNS

BY_ROWS = {
    units: {rows: settings | AS_CODE for rows, settings in anchors.items()}
    for units, anchors in natural.TABLE_BY_ROWS.items()
}
