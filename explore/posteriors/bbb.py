"""Bayes by Backprop: a factorised Gaussian over the weights, fitted by gradients through its samples.

Blundell, Cornebise, Kavukcuoglu, Wierstra: Weight Uncertainty in Neural Networks (2015); with the local
reparameterisation of Kingma, Salimans, Welling (2015) by default:

    q(W) = N(M, sigma^2),  sigma = log(1 + e^rho)
    h = a M + sqrt(a^2 sigma^2) o eps              fresh eps for every example: a weight's noise is not shared
    minimise  -E[log p(y | x, W)] + (lambda / N) KL(q || N(0, eta))          per example, with Adam

In a convolution the noise is independent over positions too, where the weights' noise would be shared; set
`reparameterisation` to "weights" for the exact form.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F

from explore.nets import Layer
from explore.posteriors import adam
from explore.posteriors.base import Common, advance, common, settle
from explore.posteriors.gaussian import GaussianPosterior
from explore.posteriors.norms import expand_norms
from explore.posteriors.reparam import Local
from explore.posteriors.structures import Blocks, Diagonal
from explore.rng import Rng
from explore.shapes import Batch, Info, Means, NormTaps


class BBBState(NamedTuple):
    """The state of `BBB`."""

    common: Common
    mean: Means  # M
    rho: Means  # sigma = softplus(rho)
    moving: adam.Moving


@dataclass(frozen=True, kw_only=True)
class BBB(GaussianPosterior):
    """Bayes by Backprop."""

    samples: int = 10  # S, samples a step
    lr: float = 0.01  # of Adam at the start; it falls to 0 along half a cosine
    initial_std: float = 0.05
    reparameterisation: Literal["local", "weights"] = "local"

    def init(self, n_data: float, replicas: int, rng: Rng) -> BBBState:
        shared = common(self, n_data, replicas, rng)
        mean = self.net.glorot(replicas, rng)
        rho = tuple(torch.full_like(m, self.initial_std).expm1().log() for m in mean)
        return BBBState(shared, mean, rho, adam.start((*mean, *rho)))

    def update(self, state: BBBState, batch: Batch, rng: Rng, progress: float = 0.0) -> tuple[BBBState, Info]:
        shared, y = state.common, batch.y.unsqueeze(1)
        n_data, step = float(shared.n_data), int(shared.step) + 1
        noise = self.likelihood.draw(shared.noise, self.samples, rng)

        with torch.enable_grad():
            parameters = tuple(p.detach().requires_grad_() for p in (*state.mean, *state.rho))
            norms = tuple(v.detach().requires_grad_() for v in expand_norms(shared.norms, self.samples))
            half = len(state.mean)
            here = state._replace(mean=parameters[:half], rho=parameters[half:])
            layers: tuple[Layer, ...]
            if self.reparameterisation == "local":
                layers = tuple(
                    Local(m, F.softplus(r), self.samples, rng) for m, r in zip(here.mean, here.rho, strict=True)
                )
            else:
                layers = self.sample(here, self.samples, rng)[:half]
            out, statistics = self.net.train_output((*layers, *norms), batch.x, samples=self.samples)
            nll = -self.likelihood.log_prob(noise, out, y).mean((1, 2))
            loss = nll + (self.kl_weight / n_data) * self.kl_prior(here)
            gradients = torch.autograd.grad(loss.sum(), (*parameters, *norms))  # replicas do not meet

        values, moving = adam.descend(
            (*state.mean, *state.rho), gradients[: 2 * half], state.moving, self.lr * adam.cosine(progress), step
        )
        count = out.shape[1] * out.shape[2]
        taps = tuple(NormTaps(s, -count * g[:, :, :2]) for s, g in zip(statistics, gradients[2 * half :], strict=True))
        shared = advance(shared, self, out.detach(), y, taps, self.kl_weight)
        new = BBBState(shared, values[:half], values[half:], moving)
        return settle(new, state), {"nll": nll.detach()}

    def gaussian(self, state: BBBState) -> tuple[Means, Blocks, float]:
        return state.mean, Blocks(tuple(Diagonal(F.softplus(r) ** -2) for r in state.rho)), 1.0


PRESETS: dict[str, dict[str, object]] = {
    "default": {},
    "small": {"batch_size": 30, "samples": 5, "prior_variance": 0.3, "kl_weight": 0.35},
    # See noisy K-FAC's.
    "vime": {"prior_variance": 0.25},
}  # fmt: skip
