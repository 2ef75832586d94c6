"""Upper confidence bound (Auer 2002; Srinivas et al. 2010), in batches (Wilson et al. 2018, Table 1).

    qUCB(x_1..x_k) = E max_i (mean_i + kappa sqrt(pi / 2) |f(x_i) - mean_i|)

f is the output without noise. For one point, qUCB is mean + kappa * (standard deviation). Pending points count as part
of the batch. The scores are the bounds of single points.
"""

from dataclasses import dataclass
from math import pi
from typing import Literal

import torch
from torch import Tensor

from explore.acquisitions.base import Choice, Needs, View
from explore.acquisitions.optimum import SIGNS, Forecast, in_turn, ramp
from explore.core.errors import Checked


@Needs(spread=True, targets="numbers", single=True)
@dataclass(frozen=True)
class UpperConfidenceBound(Checked):
    """A rule for the k points with the highest joint bound; scores are standardised bounds of single points."""

    direction: Literal["maximise", "minimise"] = "maximise"  # direction of improvement
    kappa: float = 2.0  # number of standard deviations added to the mean
    draws: int = 500  # number of draws of the values at pending and chosen points

    def __call__(self, view: View, k: int) -> Choice:
        width = self.kappa * (pi / 2) ** 0.5

        def bound(at: Forecast, best: Tensor) -> Tensor:  # E max(best, mean + width |f - mean|)
            above = ((best - at.mean) / width).clamp_min(0)
            excess = ramp(at.shift - above, at.deviation) + ramp(-at.shift - above, at.deviation)
            return torch.maximum(best, at.mean) + width * excess

        chosen = in_turn(
            view, k, self.direction, self.draws,
            best=view.uniform.new_full((len(view.uniform),), -torch.inf),
            value=lambda mean, shift: mean + width * shift.abs(),
            score=bound,
        ).indices  # fmt: skip
        f = view.likelihood.mean(view.outputs(chosen)).squeeze(3)
        return Choice(chosen, f.mean(1) + SIGNS[self.direction] * self.kappa * f.std(1))
