"""Exact references for tests: dense Gaussians, and random streams that remove sampling error."""

from typing import Any

import torch
from torch import Tensor

from explore.core.rng import Rng
from explore.core.shapes import State
from explore.core.shapes import flatten as flat  # noqa: F401
from explore.core.shapes import unflatten as unflat

normal = torch.distributions.MultivariateNormal


def kl(mean: Tensor, covariance: Tensor, mean0: Tensor, covariance0: Tensor) -> Tensor:
    """Return KL(N(mean, covariance) || N(mean0, covariance0))."""
    return torch.distributions.kl_divergence(normal(mean, covariance), normal(mean0, covariance0))


def implied_gaussian(posterior: Any, state: State, replicas: int) -> tuple[Tensor, Tensor]:
    """Return mean [R, n] and covariance [R, n, n] of the Gaussian whose log density is `posterior.log_prob`.

    The gradient of a Gaussian log density is linear, so its values at 0 and at the n unit vectors suffice.
    """
    n = sum(i * o for i, o in posterior.coordinates)
    points = torch.cat([torch.zeros(1, n), torch.eye(n)]).double().expand(replicas, -1, -1)
    slopes = slope(posterior, state, points)
    covariance = torch.linalg.inv(slopes[:, :1] - slopes[:, 1:])
    return torch.einsum("rij,rj->ri", covariance, slopes[:, 0]), covariance


def slope(posterior: Any, state: State, points: Tensor) -> Tensor:
    """Return the gradient [R, S, n] of `posterior.log_prob` at points [R, S, n]."""
    points = points.clone().requires_grad_()
    log_prob = posterior.log_prob(state, unflat(points, posterior.coordinates))
    return torch.autograd.grad(log_prob.sum(), points)[0]


def ridge(x: Tensor, y: Tensor, noise_std: float, prior_variance: float) -> tuple[Tensor, Tensor]:
    """Return mean [R, I] and covariance [R, I, I] of Bayesian linear regression with one output; the bias is last."""
    a = torch.cat([x, torch.ones_like(x[..., :1])], -1)
    precision = a.mT @ a / noise_std**2 + torch.eye(a.shape[-1], dtype=a.dtype) / prior_variance
    covariance = torch.linalg.inv(precision)
    return (covariance @ a.mT @ y / noise_std**2).squeeze(-1), covariance


class Lone(Rng):
    """A random stream for one replica alone, with the numbers that this replica draws in a run of `of` replicas."""

    def __init__(self, replica: int, of: int, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.replica, self.of = replica, of

    def draw(self, kind: Any, shape: Any) -> Tensor:
        every = super().draw(kind, (self.of * shape[0], *shape[1:]))
        return every[self.replica * shape[0] : (self.replica + 1) * shape[0]]


class Matched(Rng):
    """A random stream whose normal samples have exactly mean 0 and variance 1 over the sample axis, if longer than 1.

    A linear-Gaussian model depends on the samples through these two moments only, so its fixed points become exact.
    """

    def normal(self, *shape: int) -> Tensor:
        eps = super().normal(*shape)
        if shape[1] == 1:
            return eps
        eps = eps - eps.mean(1, keepdim=True)
        return eps / eps.square().mean(1, keepdim=True).sqrt()
