"""Deep ensemble: nets fitted one by one to the posterior's mode; their spread is the uncertainty.

Lakshminarayanan, Pritzel, Blundell: Simple and Scalable Predictive Uncertainty Estimation using Deep Ensembles (2017),
without adversarial examples and without variance head: members share the likelihood's noise. Each minimises

    -E[log p(y | x, W)] + |W|^2 / (2 N eta)                       with Adam, from its own random start

There is no density, hence no KL and no gain: choose by `information-gain` or `max-variance`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from explore.core.rng import Rng
from explore.core.shapes import Weights
from explore.inference.updates.points import PointEstimate, PointState


@dataclass(frozen=True, kw_only=True)
class Ensemble(PointEstimate):
    """A deep ensemble of maximum a posteriori nets, [R, S, I, O]."""

    members: int = 5
    ranges: ClassVar[dict[str, str]] = {"members": "[1, 1e4]"}
    by_replica = frozenset({"lr", "prior_variance"})
    pretrained_error: ClassVar[str] = "ensemble members need different initial weights"
    mixture_error: ClassVar[str] = "an ensemble is already a mixture; set its number of members instead"

    @property
    def certain(self) -> bool:
        return self.members == 1

    @property
    def nets(self) -> int:
        return self.members

    def sample(self, state: PointState, n: int, rng: Rng) -> Weights:
        """The members, at most n of them; nothing is drawn."""
        return self.layers(state, [w[:, :n] for w in state.weights])


PRESETS: dict[str, dict[str, object]] = {
    # What noisy K-FAC's is compared with: experiments/table_defaults.
    "default": {"epochs": 200, "lr": 0.003, "batch_size": 32},
    "small": {},
}

# Few rows get more and longer steps: experiments/few_rows. With shorter ones from 250 on, 512 rows are worse than 256.
BY_ROWS = {10: {500: {"epochs": 200, "lr": 0.01, "batch_size": 10}, 1000: PRESETS["default"]}}
