"""Deep ensemble: nets fitted one by one to the posterior's mode; their spread is the uncertainty.

Lakshminarayanan, Pritzel, Blundell: Simple and Scalable Predictive Uncertainty Estimation using Deep Ensembles (2017),
without adversarial examples. The members stand on the sample axis, [R, S, I, O]. Each minimises

    -E[log p(y | x, W)] + |W|^2 / (2 N eta)                       with Adam, from its own random start

There is no density, hence no KL and no gain: choose by `information-gain` or `max-variance`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from explore.posteriors import adam
from explore.posteriors.base import Common, Predictive, advance, common, settle, with_norms
from explore.rng import Rng
from explore.shapes import Batch, Info, Weights


class EnsembleState(NamedTuple):
    """The state of `Ensemble`."""

    common: Common
    weights: Weights
    moving: adam.Moving


@dataclass(frozen=True, kw_only=True)
class Ensemble(Predictive):
    """A deep ensemble of maximum a posteriori nets."""

    epochs: int = 200
    members: int = 5
    lr: float = 0.01  # of Adam at the start; it falls to 0 along half a cosine
    prior_variance: float = 1.0  # eta
    ranges: ClassVar[dict[str, str]] = {"members": "[1, 1e4]"}

    @property
    def certain(self) -> bool:
        return self.members == 1

    def init(self, n_data: float, replicas: int, rng: Rng) -> EnsembleState:
        weights = self.net.glorot(replicas, rng, self.members)
        return EnsembleState(common(self, n_data, replicas, rng, self.members), weights, adam.start(weights))

    def update(self, state: EnsembleState, batch: Batch, rng: Rng, progress: float = 0.0) -> tuple[EnsembleState, Info]:
        shared, y = state.common, batch.y.unsqueeze(1)
        n_data, step = float(shared.n_data), int(shared.step) + 1
        noise = self.likelihood.expected(shared.noise)
        out, pullback = self.net.train_forward(self.sample(state, self.members, rng), batch.x)
        taps = pullback(self.likelihood.score(noise, out, y))

        gradients = adam.loss_gradients(taps, state.weights, 1 / (n_data * self.prior_variance))
        weights, moving = adam.descend(state.weights, gradients, state.moving, self.lr * adam.cosine(progress), step)
        shared = advance(shared, self, out, y, taps.norms, 1.0)
        info = {"nll": -self.likelihood.log_prob(noise, out, y).mean((1, 2))}
        return settle(EnsembleState(shared, weights, moving), state), info

    def sample(self, state: EnsembleState, n: int, rng: Rng) -> Weights:
        """The members, at most n of them; nothing is drawn."""
        members = min(n, self.members)
        return with_norms([w[:, :members] for w in state.weights], state.common, members)


PRESETS: dict[str, dict[str, object]] = {"default": {}, "small": {}}
