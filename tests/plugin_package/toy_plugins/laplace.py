"""Laplace: absolute deviations from the output, of a known scale."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from explore.nets.likelihoods import Parameterless


@dataclass(frozen=True)
class Laplace(Parameterless):
    scale: float = 0.2

    discrete: ClassVar[bool] = False
    scaling: ClassVar[str] = "affine"

    def mean(self, out):
        return out

    def variance(self, noise, out):
        return torch.full_like(out, 2 * self.scale**2)

    def cdf(self, noise, out, y):
        return torch.distributions.Laplace(out, self.scale).cdf(y)

    def quantile(self, noise, out, level):
        return torch.distributions.Laplace(out, self.scale).icdf(torch.full_like(out, level))

    def log_prob(self, noise, out, y):
        return torch.distributions.Laplace(out, self.scale).log_prob(y).sum(-1)

    def score(self, noise, out, y):
        return (y - out).sign() / self.scale

    def sample(self, noise, out, rng):
        uniform = rng.uniform(*out.shape).clamp(1e-6, 1 - 1e-6)
        return torch.distributions.Laplace(out, self.scale).icdf(uniform)

    def fisher_root(self, noise, out):
        units = torch.eye(out.shape[-1], dtype=out.dtype, device=out.device)[:, None, None, None]
        return units.expand(-1, *out.shape) / self.scale
