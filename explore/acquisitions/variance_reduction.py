"""Largest reduction of the pool's predictive variance: active learning Cohn (Cohn et al. 1996).

Cohn, Ghahramani, Jordan: Active Learning with Statistical Models (1996), Section 4. The rule estimates, for each
candidate, how much its label lowers the epistemic variance of predictions, averaged over the pool or the `targets` of
the learner. For Gaussian functions this is the expected fall of the squared error, exactly up to the S samples.
`bait` divides the variance at each target by the noise there; here all targets count equally.
"""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from explore.acquisitions.bait import BAIT
from explore.acquisitions.base import View
from explore.acquisitions.conditioning import centred


@dataclass(frozen=True)
class VarianceReduction(BAIT):
    """A rule for the k points that lower the mean variance of predictions most; scores are in standardised units."""

    def spread(self, view: View, out: Float[Tensor, "R S b O"]) -> Float[Tensor, "R S b M"]:
        return centred(view.likelihood.mean(out))
