"""Expected improvement over the best point so far, in batches (Jones et al. 1998; Wilson et al. 2018).

    qEI(x_1..x_k) = E max(0, max_i f(x_i) - best)

f is the output without noise, and best is the highest posterior mean at a labelled point. Pending points count as part
of the batch. The i-th score is the contribution of the i-th point to qEI (see `optimum`); the first has a closed form.
"""

from dataclasses import dataclass
from typing import Literal

from explore.acquisitions.base import Choice, Needs, View
from explore.acquisitions.optimum import SIGNS, in_turn, ramp
from explore.core.errors import Checked


@Needs(spread=True, targets="numbers", costs=True, single=True)
@dataclass(frozen=True)
class ExpectedImprovement(Checked):
    """A rule for the k points with the largest joint expected improvement; scores in standard deviations of labels."""

    direction: Literal["maximise", "minimise"] = "maximise"  # direction of improvement
    draws: int = 500  # number of draws of the values at pending and chosen points

    def __call__(self, view: View, k: int) -> Choice:
        # The best posterior mean at a labelled point is less noisy than the best label.
        means = SIGNS[self.direction] * view.likelihood.mean(view.outputs_at(view.labelled.x)).mean((1, 3))
        return in_turn(
            view, k, self.direction, self.draws,
            best=means.amax(1),
            value=lambda mean, shift: mean + shift,
            score=lambda at, best: ramp(at.mean + at.shift - best, at.deviation),
        )  # fmt: skip
