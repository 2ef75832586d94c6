"""Gaussian likelihood for several real targets, some of which may be missing."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from explore.core.linalg import over
from explore.nets.likelihoods.gaussian import Gamma, Gaussian


@dataclass(frozen=True)
class PartialGaussian(Gaussian):
    """Gaussian likelihood for several targets; NaN marks a missing target, which is ignored in training."""

    partial: ClassVar[bool] = True

    def log_prob(self, noise: Tensor, out: Tensor, y: Tensor) -> Float[Tensor, "R S B"]:
        normaliser = 0.5 * (self.precision(noise, out) / (2 * math.pi)).log()
        return super().log_prob(noise, out, y) - (y.isnan() * normaliser).sum(-1)

    def score(self, noise: Tensor, out: Tensor, y: Tensor) -> Float[Tensor, "R S B O"]:
        score = super().score(noise, out, self._filled(y, out))
        return score.masked_fill(y.isnan().repeat(1, 1, 1, self.outputs_per_target), 0)

    def squares(self, out: Tensor, y: Tensor) -> Float[Tensor, "R S B M"]:
        return super().squares(out, self._filled(y, out)).masked_fill(y.isnan(), 0)

    def update(self, phi: Gamma, out: Tensor, y: Tensor, n_data: float, kl_weight: float | Tensor) -> Gamma:
        new = super().update(phi, out, y, n_data, kl_weight)
        if self.noise_std is not None:
            return new
        missing = y.isnan().to(out).mean((1, 2))  # the share of examples without this target, [R, M]
        half = n_data / (2 * over(kl_weight, new.rate))  # as in `Gaussian`
        return new._replace(shape=new.shape - self.rate * half * missing)

    def _filled(self, y: Tensor, out: Tensor) -> Tensor:
        """Replace missing targets (NaN) by their means, so that residuals are 0."""
        return torch.where(y.isnan(), self.mean(out), y)
