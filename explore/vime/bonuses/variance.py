"""Mean variance of the predicted next observation over the posterior of the dynamics model."""

from jaxtyping import Float
from torch import Tensor

from explore.core.rng import Rng
from explore.vime.dynamics import Dynamics


class Variance(Dynamics):
    """The predictive variance without noise, averaged over standardised outputs."""

    def score(self, inputs: Tensor, following: Tensor, rng: Rng) -> Float[Tensor, " n"]:
        return self.predictor(rng).moments(self.batch(inputs, following).x).variance.mean(-1).squeeze(0)
