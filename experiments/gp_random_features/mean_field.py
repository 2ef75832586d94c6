"""The best independent Gaussians over the weights of a linear regression, which have a closed form.

    y = Phi w + noise,   w ~ N(0, I),   q(w) = N(m, diag s),   q(tau) = Gam(a, b)
    m = (tau Phi^T Phi + I)^-1 tau Phi^T y,   1 / s_i = 1 + tau sum_j Phi_ji^2          tau = a / b
    a = a0 + N / 2,   b = b0 + (|y - Phi m|^2 + sum_ij Phi_ji^2 s_i) / 2

The mean is that of the exact posterior; only the covariance is not.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from explore.nets.likelihoods import Gaussian

ITERATIONS = 30  # of two lines, until the noise stands still


class Factors(NamedTuple):
    """The densities."""

    mean: Float[Tensor, "R n"]
    variance: Float[Tensor, "R n"]
    noise: Float[Tensor, " R"]  # 1 / E[tau]

    def predict(self, phi: Float[Tensor, "R P n"]) -> tuple[Float[Tensor, "R P"], Float[Tensor, "R P"]]:
        """Mean and standard deviation of the targets."""
        spread = (phi.square() @ self.variance.unsqueeze(2)).squeeze(2)
        return (phi @ self.mean.unsqueeze(2)).squeeze(2), (spread + self.noise.unsqueeze(1)).sqrt()


def optimum(phi: Float[Tensor, "R N n"], y: Float[Tensor, "R N"], likelihood: Gaussian) -> Factors:
    """The maximum of the bound; in double precision, as squared features are nearly singular."""
    phi, y = phi.double(), y.double().unsqueeze(2)
    gram, moment = phi.mT @ phi, phi.mT @ y
    squares = gram.diagonal(dim1=1, dim2=2)
    eye, tau = torch.eye(phi.shape[2], dtype=phi.dtype), torch.ones_like(y[:, 0])
    for _ in range(ITERATIONS):
        mean = torch.linalg.solve(tau.unsqueeze(2) * gram + eye, tau.unsqueeze(2) * moment)
        variance = 1 / (1 + tau * squares)
        errors = (y - phi @ mean).square().sum((1, 2)) + (squares * variance).sum(1)
        shape, rate = likelihood.prior_shape + y.shape[1] / 2, likelihood.prior_rate + errors / 2
        tau = (shape / rate).unsqueeze(1)
    return Factors(mean.squeeze(2), variance, 1 / tau.squeeze(1))
