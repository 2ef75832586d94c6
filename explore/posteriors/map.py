"""MAP: one net at the mode of the posterior, the baseline without uncertainty.

It minimises, by Adam or by gradient descent with momentum,

    -E[log p(y | x, W)] + |W|^2 / (2 N eta)

i.e. weight decay 1 / (N eta). There is no density and the weights do not vary: variances over them say nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch

from explore.core.linalg import moved
from explore.core.rng import Rng
from explore.core.shapes import Batch, Info, Weights
from explore.execution.turns import Number, Turn
from explore.inference.updates import adam
from explore.inference.updates.points import PointEstimate, PointState


@dataclass(frozen=True, kw_only=True)
class MAP(PointEstimate):
    """The maximum a posteriori net: `init` is that of `PointEstimate`."""

    optimiser: Literal["adam", "sgd"] = "adam"
    momentum: float = 0.9  # of sgd

    ranges: ClassVar[dict[str, str]] = {"momentum": "[0, 1)"}
    by_replica = frozenset({"lr", "prior_variance"})

    @property
    def certain(self) -> bool:
        return True

    def update(self, state: PointState, batch: Batch, rng: Rng, progress: float = 0.0) -> tuple[PointState, Info]:
        descend = adam.descend if self.optimiser == "adam" else partial(descend_with_momentum, self.momentum)
        return self.step(state, batch, progress, descend=descend)

    def turn(self, step: int, progress: float) -> Turn:
        if self.optimiser == "adam":
            return super().turn(step, progress)
        return Turn((), (self.lr * adam.cosine(progress),))

    def sample(self, state: PointState, n: int, rng: Rng) -> Weights:
        """The one net; nothing is drawn."""
        return self.layers(state, state.weights)


def descend_with_momentum(
    beta: float, weights: Weights, gradients: Weights, moving: adam.Moving, rates: tuple[Number]
) -> tuple[Weights, adam.Moving]:
    """One step of gradient descent; the velocity stands in `first`."""
    velocity = tuple(torch.add(g, v, alpha=beta) for v, g in zip(moving.first, gradients, strict=True))
    new = tuple(moved(w, v, -rates[0]) for w, v in zip(weights, velocity, strict=True))
    return new, moving._replace(first=velocity)


PRESETS: dict[str, dict[str, object]] = {
    # experiments/table_defaults/others.py
    "default": {"epochs": 200, "batch_size": 32, "lr": 0.003, "prior_variance": 1.0},
    "small": {},
}

# As the ensemble's.
BY_ROWS = {10: {500: {"epochs": 200, "lr": 0.01, "batch_size": 10, "prior_variance": 1.0}, 1000: PRESETS["default"]}}
