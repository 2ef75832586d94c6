"""Exact references for tests: dense Gaussians, and random streams that remove sampling error."""

from typing import Any

import torch
from torch import Tensor

from explore.core.rng import Rng
from explore.core.shapes import State, flatten as flat, unflatten as unflat
from explore.inference.gaussian import GaussianPosterior

normal = torch.distributions.MultivariateNormal


def kl(mean: Tensor, covariance: Tensor, mean0: Tensor, covariance0: Tensor) -> Tensor:
    """Return KL(N(mean, covariance) || N(mean0, covariance0))."""
    return torch.distributions.kl_divergence(normal(mean, covariance), normal(mean0, covariance0))


def implied_gaussian(posterior: Any, state: State) -> tuple[Tensor, Tensor]:
    """Return mean [R, n] and covariance [R, n, n] of `posterior.gaussian`, from solutions for the n unit vectors."""
    mean, precision, scale = posterior.gaussian(state)
    centre = flat(tuple(m.unsqueeze(1) for m in mean)).squeeze(1)
    units = torch.eye(centre.shape[1]).to(centre).expand(len(centre), -1, -1)
    return centre, flat(precision.solve(unflat(units, posterior.coordinates))) * scale


def log_prob(posterior: Any, state: State, points: Tensor) -> Tensor:
    """Return the log density [R, S] at points [R, S, n]; a posterior that is not Gaussian has a method `log_prob`."""
    if isinstance(posterior, GaussianPosterior):
        return normal(*implied_gaussian(posterior, state)).log_prob(points.transpose(0, 1)).mT
    values: Tensor = posterior.log_prob(state, unflat(points, posterior.coordinates))
    return values


def slope(posterior: Any, state: State, points: Tensor) -> Tensor:
    """Return the gradient [R, S, n] of `log_prob` at points [R, S, n]."""
    points = points.clone().requires_grad_()
    return torch.autograd.grad(log_prob(posterior, state, points).sum(), points)[0]


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
