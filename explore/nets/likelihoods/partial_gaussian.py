"""Gaussian likelihood for several real targets, some of which may be missing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from explore.nets.likelihoods.gaussian import Gamma, Gaussian, half_count


@dataclass(frozen=True)
class PartialGaussian(Gaussian):
    """Gaussian likelihood for several targets; NaN marks a missing target, which is ignored in training."""

    partial: ClassVar[bool] = True

    def log_prob(self, noise: Tensor, out: Tensor, y: Tensor) -> Float[Tensor, "R S B"]:
        normaliser = 0.5 * (noise.unsqueeze(2) / (2 * math.pi)).log()
        return super().log_prob(noise, out, _filled(y, out)) - (y.isnan() * normaliser).sum(-1)

    def score(self, noise: Tensor, out: Tensor, y: Tensor) -> Float[Tensor, "R S B O"]:
        return super().score(noise, out, _filled(y, out))

    def update(self, phi: Gamma, out: Tensor, y: Tensor, n_data: float, kl_weight: float | Tensor) -> Gamma:
        new = super().update(phi, out, _filled(y, out), n_data, kl_weight)
        if self.noise_std is not None:
            return new
        missing = y.isnan().to(out).mean((1, 2))  # the share of examples without this output, [R, O]
        return new._replace(shape=new.shape - self.rate * half_count(n_data, kl_weight) * missing)


def _filled(y: Tensor, out: Tensor) -> Tensor:
    """Replace missing targets (NaN) by the outputs, so that their residuals are 0."""
    return torch.where(y.isnan(), out, y)
