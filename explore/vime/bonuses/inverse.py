"""Features of observations that predict the action between two of them, for several bonuses."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from explore.core.rng import Rng
from explore.vime.bonuses.base import NetBonus, network

__all__ = ["InverseBonus"]


class InverseBonus(NetBonus):
    """A bonus on features f(o), learned together with an inverse model that predicts the action from f(o) and f(o')."""

    def build(self, rng: Rng) -> dict[str, nn.Module]:
        s = self.settings
        encoder = network(rng, self.outputs, (s.units,), s.features)
        return {"encoder": encoder, "inverse": network(rng, 2 * s.features, (s.units,), self.inputs - self.outputs)}

    def encode(self, observations: Float[Tensor, "n O"]) -> Float[Tensor, "n F"]:
        features: Tensor = self.nets["encoder"](observations)
        return features

    def loss(self, inputs: Tensor, following: Tensor) -> Float[Tensor, " n"]:
        both = self.encode(inputs[:, : self.outputs]), self.encode(following)
        return self.inverse_loss(*both, inputs[:, self.outputs :])

    def inverse_loss(self, before: Tensor, after: Tensor, actions: Tensor) -> Float[Tensor, " n"]:
        """Return the mean squared error of predicted actions, in standard scores."""
        predicted: Tensor = self.nets["inverse"](torch.cat([before, after], 1))
        return (predicted - actions).square().mean(1)
