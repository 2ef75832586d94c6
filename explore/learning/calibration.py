"""Calibration of regressions: one factor on the predictive variance, fitted to examples held out of the training data.

A factor c stretches the predictive distribution of each point about its mean m by sqrt(c): the density at y becomes
p(m + (y - m) / sqrt(c)) / sqrt(c). The fitted c maximises the likelihood of the held-out examples.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from explore.core.errors import InputError, check_range
from explore.core.linalg import least_on_grid
from explore.core.rng import Rng
from explore.inference.base import Predictive
from explore.inference.predict import Predictor
from explore.learning.fit import last_epoch
from explore.nets import protocols

LEAST, MOST = 1e-2, 1e2  # limits of a factor
ROUNDS = 4  # of the search, for a relative error of the factor below 0.001


def held_out_factor(
    posterior: Predictive, x: Float[Tensor, "R n ..."], y: Tensor, rng: Rng, share: float, samples: int
) -> Float[Tensor, " R"]:
    """Return the variance factors of a regression posterior, to apply to its fit to all examples.

    In each replica, the posterior is fitted from scratch to a random part of the examples. The factor is then fitted to
    the held-out `share` of the examples, in (0, 0.5].
    """
    if posterior.likelihood.discrete:
        raise InputError("calibrate applies to regression only: it scales the predictive variance. Leave it out")
    protocols.find_part(posterior.likelihood, "scaled_noise")
    check_range("calibrate", share, "(0, 0.5]")
    replicas, n = x.shape[:2]
    if n < 2:
        raise InputError(f"calibrate holds out part of the data and needs at least 2 examples; got {n}")
    order, held = rng.permutation(replicas, n), max(1, round(share * n))
    rows = torch.arange(replicas, device=x.device).unsqueeze(1)
    held_out, rest = order[:, :held], order[:, held:]
    state = last_epoch(posterior, x[rows, rest], y[rows, rest], rng).state
    predictor = Predictor.sample(posterior, state, samples, rng)
    return torch.where(state.common.alive, variance_factor(predictor, x[rows, held_out], y[rows, held_out]), 1.0)


def variance_factor(
    predictor: Predictor, x: Float[Tensor, "R P ..."], y: Float[Tensor, "R P O"]
) -> Float[Tensor, " R"]:
    """Return the variance factor in [0.01, 100] that maximises the likelihood of targets y, by grid refinement."""

    def cost(factor: Float[Tensor, " R"]) -> Float[Tensor, " R"]:
        return -predictor.stretched(factor).log_prob(x, y).logsumexp(1).sum(1)

    return least_on_grid(cost, y[:, 0, 0], LEAST, MOST, ROUNDS)
