"""Expected information gain about the dynamics model, given observation and action: 1/2 log det(I + Cov_f / s^2)."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from explore.acquisitions.conditioning import joint_gain, signals
from explore.core.rng import Rng
from explore.vime.dynamics import Dynamics


class ExpectedGain(Dynamics):
    """The expected information gain, in nats; noise that cannot be learned earns nothing."""

    def score(self, inputs: Tensor, following: Tensor, rng: Rng) -> Float[Tensor, " n"]:
        posterior: Any = self.posterior
        state, x = self.state, self.batch(inputs, following).x
        if hasattr(posterior, "expected_gain"):  # in closed form
            return posterior.expected_gain(state, x).squeeze(0)
        noise = posterior.expected_noise(state)
        outs = (out for _, out in self.predictor(rng).outputs(x))
        return torch.cat([joint_gain(signals(posterior.likelihood, noise, out), None) for out in outs], 1).squeeze(0)
