"""Intrinsic curiosity module: the error of a forward model of learned features (Pathak et al. 2017).

Pathak, Agrawal, Efros, Darrell: Curiosity-driven Exploration by Self-supervised Prediction. i = 1/2 |F(f(o), a) -
f(o')|^2; an inverse model, which predicts a from f(o) and f(o'), trains the features f.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from explore.core.rng import Rng
from explore.vime.bonuses.base import InverseBonus, NetSettings, network


@dataclass(frozen=True, kw_only=True)
class ICMSettings(NetSettings):
    """Settings of the intrinsic curiosity module."""

    forward_weight: float = 0.2  # beta: weight of the forward model's loss; the inverse model's has 1 - beta

    ranges: ClassVar[dict[str, str]] = {"forward_weight": "(0, 1)"}


class ICM(InverseBonus):
    """Half the squared error of predicted features of the next observation."""

    Settings = ICMSettings

    def build(self, rng: Rng) -> dict[str, nn.Module]:
        s, actions = self.settings, self.inputs - self.outputs
        return super().build(rng) | {"dynamics": network(rng, s.features + actions, (s.units,), s.features)}

    def loss(self, inputs: Tensor, following: Tensor) -> Float[Tensor, " n"]:
        beta, observations = self.settings.forward_weight, inputs[:, : self.outputs]
        before, after, actions = self.encode(observations), self.encode(following), inputs[:, self.outputs :]
        return beta * self._error(before, after, actions) + (1 - beta) * self.inverse_loss(before, after, actions)

    def score(self, inputs: Tensor, following: Tensor, rng: Rng) -> Float[Tensor, " n"]:
        x, y = self.standard(inputs, following)
        with torch.no_grad():
            return self._error(self.encode(x[:, : self.outputs]), self.encode(y), x[:, self.outputs :])

    def _error(self, before: Tensor, after: Tensor, actions: Tensor) -> Float[Tensor, " n"]:
        return (self.nets["dynamics"](torch.cat([before, actions], 1)) - after).square().sum(1) / 2
