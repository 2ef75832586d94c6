"""MAP: one network at the mode of the posterior, the baseline without uncertainty.

Adam, or gradient descent with momentum, minimises -E[log p(y | x, W)] + |W|^2 / (2 N eta) for N examples and prior
variance eta. The penalty is weight decay 1 / (N eta). There is no density. All samples are the same network, so a
variance over samples says nothing about uncertainty.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from explore.core.context import Turn
from explore.core.linalg import moved
from explore.core.rng import Rng
from explore.core.shapes import Weights
from explore.inference.updates import adam
from explore.inference.updates.points import PointEstimate, PointState


@dataclass(frozen=True, kw_only=True)
class MAP(PointEstimate):
    """The maximum a posteriori (MAP) estimate of a network."""

    optimiser: Literal["adam", "sgd"] = "adam"
    momentum: float = 0.9  # of sgd

    ranges: ClassVar[dict[str, str]] = {"momentum": "[0, 1)"}
    certain = True

    def turn(self, step: int, progress: float) -> Turn:
        if self.optimiser == "adam":
            return super().turn(step, progress)
        return Turn((), (self.lr * adam.cosine(progress),))

    def sample(self, state: PointState, n: int, rng: Rng) -> tuple[Tensor, ...]:
        """Return the network as the only sample."""
        return self.layers(state, state.weights)

    def descend(
        self, weights: Weights, gradients: Weights, moving: adam.Moving, rates: Any
    ) -> tuple[Weights, adam.Moving]:
        """Take one step of Adam, or of gradient descent with momentum, whose velocity is stored in `moving.first`."""
        if self.optimiser == "adam":
            return super().descend(weights, gradients, moving, rates)
        velocity = tuple(torch.add(g, v, alpha=self.momentum) for v, g in zip(moving.first, gradients, strict=True))
        new = tuple(moved(w, v, -rates[0]) for w, v in zip(weights, velocity, strict=True))
        return new, moving._replace(first=velocity)


PRESETS: dict[str, dict[str, object]] = {
    # experiments/table_defaults/others.py
    "default": {"epochs": 200, "batch_size": 32, "lr": 0.003, "prior_variance": 1.0},
    "small": {},
}

# The same rule as for the ensemble.
BY_ROWS = {10: {500: {"epochs": 200, "lr": 0.01, "batch_size": 10, "prior_variance": 1.0}, 1000: PRESETS["default"]}}
