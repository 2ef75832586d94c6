"""Bayes by Backprop: a factorised Gaussian over the weights, fitted with reparameterisation gradients.

Blundell, Cornebise, Kavukcuoglu, Wierstra: Weight Uncertainty in Neural Networks (2015); by default with the local
reparameterisation of Kingma, Salimans, Welling (2015):

    q(W) = N(M, sigma^2),  sigma = log(1 + e^rho)
    h = a M + sqrt(a^2 sigma^2) o eps              new eps for every example: weight noise is not shared
    minimise  -E[log p(y | x, W)] + (lambda / N) KL(q || N(0, eta))          per example, with Adam

for layer inputs a, pre-activations h, prior variance eta, KL weight lambda and N examples. If an example has several
positions (tokens, pixels), all positions share one draw of the weights, by Flipout (Wen et al. 2018), see
`inference.updates.noisy_layers`. `reparameterisation="local"` draws per position, as is common for convolutions.
"""

from dataclasses import dataclass
from functools import cached_property

from explore.inference.updates.reparam import SMALL, TABLE, Factorised, Form, Reparameterised


@dataclass(frozen=True, kw_only=True)
class BBB(Reparameterised):
    """Bayes by Backprop: a `Reparameterised` posterior in which the coordinates z are the weights."""

    @cached_property
    def forms(self) -> tuple[Form, ...]:
        return tuple(Factorised(*shape) for shape in self.net.shapes)


PRESETS: dict[str, dict[str, object]] = {
    "default": TABLE | {"kl_weight": 0.2},
    "small": SMALL,
    "hundreds": SMALL,
    # As in noisy K-FAC.
    "vime": {"prior_variance": 0.25},
}  # fmt: skip

TRAINED: dict[str, object] = {"lr": 0.001}  # each of Adam's first steps moves every weight by lr
