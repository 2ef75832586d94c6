"""Calibration of regressions: one factor on the predictive variance, fitted to examples held out of the training data.

A factor c stretches the predictive distribution of each point about its mean m by sqrt(c): the density at y becomes
p(m + (y - m) / sqrt(c)) / sqrt(c). The fitted c maximises the likelihood of the held-out examples.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from explore.core import tree
from explore.core.errors import InputError, check_range
from explore.core.linalg import least_on_grid
from explore.core.rng import Rng
from explore.inference import candidates
from explore.inference.base import Predictive
from explore.inference.predict import Predictor
from explore.learning.fit import last_epoch
from explore.nets import protocols

LEAST, MOST = 1e-2, 1e2  # limits of a factor
ROUNDS = 4  # of the search, for a relative error of the factor below 0.001


def held_out_factors(
    posteriors: Sequence[Predictive], x: Float[Tensor, "R n ..."], y: Tensor, rng: Rng, share: float, samples: int
) -> list[Float[Tensor, " R"]]:
    """Return the variance factors [R] of each regression posterior, to apply to its fit to all examples.

    In each replica, each posterior is fitted from scratch to a random part of the examples, in parallel (see
    `explore.inference.candidates`). The factor is then fitted to the held-out `share` of the examples, in (0, 0.5].
    All posteriors use the same random numbers.
    """
    if posteriors[0].likelihood.discrete:
        raise InputError("calibrate applies to regression only: it scales the predictive variance. Leave it out")
    protocols.find_part(posteriors[0].likelihood, "scaled_noise")
    check_range("calibrate", share, "(0, 0.5]")
    replicas, n = x.shape[:2]
    if n < 2:
        raise InputError(f"calibrate holds out part of the data and needs at least 2 examples; got {n}")
    count = len(posteriors)
    rng = rng.in_arms(count) if count > 1 else rng
    order, held = rng.permutation(count * replicas, n), max(1, round(share * n))
    rows = torch.arange(replicas, device=x.device).repeat(count).unsqueeze(1)
    held_out, rest = order[:, :held], order[:, held:]
    fitted = candidates.together(posteriors, replicas, rng)
    state, after, factors = last_epoch(fitted, x[rows, rest], y[rows, rest], rng).state, rng.generator.get_state(), []
    for posterior, part in zip(posteriors, candidates.blocks(count, replicas), strict=True):
        replica_state, stream = tree.part(state, part), rng.in_arms(1)
        stream.generator.set_state(after)
        predictor = Predictor.sample(posterior, replica_state, samples, stream)
        factor = variance_factor(predictor, x[rows[part], held_out[part]], y[rows[part], held_out[part]])
        factors.append(torch.where(replica_state.common.alive, factor, 1.0))
    return factors


def variance_factor(
    predictor: Predictor, x: Float[Tensor, "R P ..."], y: Float[Tensor, "R P O"]
) -> Float[Tensor, " R"]:
    """Return the variance factor in [0.01, 100] that maximises the likelihood of targets y, by grid refinement."""

    def cost(factor: Float[Tensor, " R"]) -> Float[Tensor, " R"]:
        return -predictor.stretched(factor).log_prob(x, y).logsumexp(1).sum(1)

    return least_on_grid(cost, y[:, 0, 0], LEAST, MOST, ROUNDS)
