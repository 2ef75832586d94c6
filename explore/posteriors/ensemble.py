"""Deep ensemble: independently trained MAP networks, whose disagreement measures uncertainty.

Lakshminarayanan, Pritzel, Blundell: Simple and Scalable Predictive Uncertainty Estimation using Deep Ensembles (2017),
without adversarial training. With the likelihood `heteroscedastic`, members have a variance head; with others, they
share the noise. For N examples and prior variance eta, each member minimises

    -E[log p(y | x, W)] + |W|^2 / (2 N eta)                       with Adam, from different random weights

There is no density, hence no KL and no gain; as acquisition, use `information-gain` or `max-variance`.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from explore.core.rng import Rng
from explore.inference.updates.points import PointEstimate, PointState


@dataclass(frozen=True, kw_only=True)
class Ensemble(PointEstimate):
    """A deep ensemble of MAP networks; the members are the sample axis of the weights [R, S, I, O]."""

    members: int = 5
    ranges: ClassVar[dict[str, str]] = {"members": "[1, 1e4]"}
    pretrained_error: ClassVar[str] = "ensemble members need different initial weights"
    prior_error: ClassVar[str] = "members differ only by their initial weights"
    mixture_error: ClassVar[str] = "an ensemble is already a mixture; set its number of members instead"

    @property
    def certain(self) -> bool:
        return self.members == 1

    @property
    def nets(self) -> int:
        return self.members

    def sample(self, state: PointState, n: int, rng: Rng) -> tuple[Tensor, ...]:
        """Return the first n members, or all if there are fewer; `rng` is not used."""
        return self.layers(state, [w[:, :n] for w in state.weights])


PRESETS: dict[str, dict[str, object]] = {
    # The baseline for noisy K-FAC's preset `default`: experiments/table_defaults.
    "default": {"epochs": 200, "lr": 0.003, "batch_size": 32},
    "small": {},
}

# Few rows get more and larger steps. With small steps from 250 rows on, 512 do worse than 256.
BY_ROWS = {10: {500: {"epochs": 200, "lr": 0.01, "batch_size": 10}, 1000: PRESETS["default"]}}

# Members with a variance head overfit: fewer epochs and weight decay. experiments/few_labels, experiments/large_tables
INPUT_NOISE: dict[int, dict[str, object]] = {
    512: {"epochs": 60, "lr": 0.01, "batch_size": 16, "prior_variance": 0.3},
    16000: {"epochs": 60, "lr": 0.003, "batch_size": 64, "prior_variance": 0.01},
}
