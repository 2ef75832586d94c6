"""MAP: one net at the mode of the posterior, the baseline without uncertainty.

It minimises, by Adam or by gradient descent with momentum,

    -E[log p(y | x, W)] + |W|^2 / (2 N eta)

i.e. weight decay 1 / (N eta). There is no density and the weights do not vary: variances over them say nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch

from explore.posteriors import adam
from explore.posteriors.base import Common, Predictive, advance, common, settle, with_norms
from explore.rng import Rng
from explore.shapes import Batch, Info, Weights


class MAPState(NamedTuple):
    """The state of `MAP`."""

    common: Common
    weights: Weights  # S = 1
    moving: adam.Moving  # gradient descent keeps its velocity in `first`


@dataclass(frozen=True, kw_only=True)
class MAP(Predictive):
    """The maximum a posteriori net."""

    epochs: int = 200
    optimiser: Literal["adam", "sgd"] = "adam"
    lr: float = 0.01  # at the start; it falls to 0 along half a cosine
    momentum: float = 0.9  # of sgd
    prior_variance: float = 1.0  # eta

    ranges: ClassVar[dict[str, str]] = {"momentum": "[0, 1)"}

    @property
    def certain(self) -> bool:
        return True

    def init(self, n_data: float, replicas: int, rng: Rng) -> MAPState:
        weights = self.net.glorot(replicas, rng, 1)
        return MAPState(common(self, n_data, replicas, rng), weights, adam.start(weights))

    def update(self, state: MAPState, batch: Batch, rng: Rng, progress: float = 0.0) -> tuple[MAPState, Info]:
        shared, y = state.common, batch.y.unsqueeze(1)
        n_data, step = float(shared.n_data), int(shared.step) + 1
        noise = self.likelihood.expected(shared.noise)
        out, pullback = self.net.train_forward(self.sample(state, 1, rng), batch.x)
        taps = pullback(self.likelihood.score(noise, out, y))

        gradients = adam.loss_gradients(taps, state.weights, 1 / (n_data * self.prior_variance))
        lr = self.lr * adam.cosine(progress)
        if self.optimiser == "adam":
            weights, moving = adam.descend(state.weights, gradients, state.moving, lr, step)
        else:
            velocity = tuple(
                torch.add(g, v, alpha=self.momentum) for v, g in zip(state.moving.first, gradients, strict=True)
            )
            weights = tuple(torch.sub(w, v, alpha=lr) for w, v in zip(state.weights, velocity, strict=True))
            moving = state.moving._replace(first=velocity)
        shared = advance(shared, self, out, y, taps.norms, 1.0)
        info = {"nll": -self.likelihood.log_prob(noise, out, y).mean((1, 2))}
        return settle(MAPState(shared, weights, moving), state), info

    def sample(self, state: MAPState, n: int, rng: Rng) -> Weights:
        """The one net; nothing is drawn."""
        return with_norms(state.weights, state.common, 1)


PRESETS: dict[str, dict[str, object]] = {"default": {}, "small": {}}
