"""Random network distillation: the error of a network that learns a fixed random one (Burda et al. 2018).

Burda, Edwards, Storkey, Klimov: Exploration by Random Network Distillation. i = |f(o') - g(o')|^2 with a fixed network
g and a learning network f. Here the bonus joins the reward, and the policy has one critic for the sum.
"""

from jaxtyping import Float
from torch import Tensor, nn

from explore.core.rng import Rng
from explore.vime.bonuses.base import NetBonus, network


class RND(NetBonus):
    """The squared error of predicted random features of the next observation."""

    def build(self, rng: Rng) -> dict[str, nn.Module]:
        s = self.settings
        fixed = network(rng, self.outputs, (s.units,), s.features).requires_grad_(False)
        return {"fixed": fixed, "learning": network(rng, self.outputs, (s.units, s.units), s.features)}

    def loss(self, inputs: Tensor, following: Tensor) -> Float[Tensor, " n"]:
        return (self.nets["learning"](following) - self.nets["fixed"](following)).square().sum(1)

    def score(self, inputs: Tensor, following: Tensor, rng: Rng) -> Float[Tensor, " n"]:
        return self.loss(*self.standard(inputs, following)).detach()
