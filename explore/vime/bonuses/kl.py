"""Information gain of a transition about the dynamics model: KL(q' || q) (VIME, Houthooft et al. 2016).

q is the posterior over the model's weights, and q' the posterior after a small step on the transition alone; in closed
form for posteriors that have `information_gain`.
"""

from typing import Any

from jaxtyping import Float
from torch import Tensor

from explore.core.errors import InputError
from explore.core.rng import Rng
from explore.vime.dynamics import Dynamics, DynamicsSettings


class KL(Dynamics):
    """The information gain, in nats; for posteriors with a density."""

    def __init__(self, settings: DynamicsSettings, inputs: int, outputs: int, rng: Rng):
        super().__init__(settings, inputs, outputs, rng)
        if not hasattr(self.posterior, "gain"):
            asked = settings.posterior
            name = asked if isinstance(asked, str) else type(asked).__name__
            other = f"with {name} use 'expected-gain' or 'variance'"
            raise InputError(f"bonus='kl' needs a posterior with a density; {other}")

    def score(self, inputs: Tensor, following: Tensor, rng: Rng) -> Float[Tensor, " n"]:
        posterior: Any = self.posterior
        state, batch = self.state, self.batch(inputs, following)
        exact = hasattr(posterior, "information_gain")
        gain = posterior.information_gain(state, batch) if exact else posterior.gain(state, batch, rng)
        return gain.squeeze(0)
