"""Nets at the mode of the posterior, the common part of `map`, `ensemble` and `mc-dropout`.

They stand on the sample axis, [R, S, I, O]; each minimises -E[log p(y | x, W)] + |W|^2 / (2 N eta) with Adam.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from explore.core.rng import Rng
from explore.core.shapes import Batch, Info, Weights
from explore.execution.turns import Turn, numbers
from explore.inference.base import Common, Predictive, common
from explore.inference.updates import adam
from explore.inference.updates.steps import end_update, train_pass


class PointState(NamedTuple):
    """The state of a `PointEstimate`."""

    common: Common
    weights: Weights
    moving: adam.Moving


@dataclass(frozen=True, kw_only=True)
class PointEstimate(Predictive):
    """Nets fitted by gradients of the posterior's density."""

    epochs: int = 200
    lr: float = 0.01  # of Adam at the start; it falls to 0 along half a cosine
    prior_variance: float | Literal["learned"] = 1.0  # eta, which these do not learn

    @property
    def nets(self) -> int:
        """The number of nets of a replica."""
        return 1

    def init(self, n_data: float, replicas: int, rng: Rng) -> PointState:
        weights = self.net.initial(replicas, rng, self.nets)
        return PointState(common(self, n_data, replicas, rng, self.nets), weights, adam.start(weights))

    def turn(self, step: int, progress: float) -> Turn:
        return Turn((), adam.rates(self.lr * adam.cosine(progress), step))

    def step(
        self,
        state: PointState,
        batch: Batch,
        progress: float,
        noisy: Sequence[Any] = (),
        penalised: Weights | None = None,
        descend: Callable[..., tuple[Weights, adam.Moving]] = adam.descend,
    ) -> tuple[PointState, Info]:
        """Take a step of `descend`, by default Adam's.

        `noisy` layers run in place of the weights; their `taps` turn taps of the layers into those of the weights. The
        gradient of the penalty is 1 / (N eta) times `penalised`, by default the weights.
        """
        noise, step = self.likelihood.expected(state.common.noise), int(state.common.step) + 1
        seen = train_pass(self, state, noisy or state.weights, noise, batch)
        taps = tuple(layer.taps(t) for layer, t in zip(noisy, seen.taps, strict=True)) if noisy else seen.taps
        assert not isinstance(self.prior_variance, str)
        decay = 1 / (float(state.common.n_data) * self.prior_variance)
        gradients = adam.loss_gradients(taps, penalised or state.weights, decay)
        weights, moving = descend(state.weights, gradients, state.moving, numbers(self.turn(step, progress)))
        return end_update(self, seen, PointState(state.common, weights, moving), state)
