"""Quantiles of mixtures of Gaussians, which have no closed form."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

STEPS = 200  # at most
ROOT = math.sqrt(2 * math.pi)


def quantiles(
    mean: Float[Tensor, "R S b O"], sd: Float[Tensor, "R S _b _O"], levels: Sequence[float]
) -> Float[Tensor, "K R b O"]:
    """The numbers below which 1/S sum_s N(mean_s, sd_s^2) has these shares of its mass.

    Newton's method on the distribution function, kept in a bracket as in Press et al., Numerical Recipes, 9.4: the
    bracket is halved instead where a step leaves it, or is not half as long as the one before.

    Args:
        mean: of the S components.
        sd: their standard deviations, which broadcast.
        levels: K numbers between 0 and 1.
    """
    found = torch.stack([_quantile(mean.double(), sd.double(), level) for level in levels])
    return found.to(mean.dtype)


def _quantile(mean: Tensor, sd: Tensor, level: float) -> Float[Tensor, "R b O"]:
    ends = mean + sd * torch.special.ndtri(torch.tensor(level, dtype=mean.dtype, device=mean.device))
    low, high = ends.amin(1), ends.amax(1)  # the components' own quantiles hold the mixture's between them
    x, last = ends.mean(1), high - low
    for _ in range(STEPS):
        score = (x.unsqueeze(1) - mean) / sd
        excess = 0.5 * torch.erfc(score * -math.sqrt(0.5)).mean(1) - level  # ndtr would take three times as long
        density = ((-0.5 * score.square()).exp() / sd).mean(1) / ROOT
        low, high = torch.where(excess < 0, x, low), torch.where(excess < 0, high, x)
        step = -excess / density
        fast = (x + step >= low) & (x + step <= high) & (step.abs() < 0.5 * last)
        last = torch.where(fast, step, 0.5 * (low + high) - x)
        x, last = x + last, last.abs()
        if bool((last <= 1e-9 * sd.amin(1)).all()):
            break
    return x
