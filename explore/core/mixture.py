"""Quantiles of mixtures, which have no closed form."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

STEPS = 200  # at most
QUARTILES = 0.25, 0.75


def quantile(
    cdf: Callable[[Float[Tensor, "R 1 b M"]], Float[Tensor, "R S b M"]],
    component: Callable[[float], Float[Tensor, "R S b M"]],
    level: float,
) -> Float[Tensor, "R b M"]:
    """The smallest x at which the mixture's CDF 1/S sum_s F_s reaches this level.

    The secant method on the distribution function, kept in a bracket as Newton's is in Press et al., Numerical Recipes,
    9.4: the bracket is halved instead where a step leaves it, or is not half as long as the one before. A step function
    has its jumps at whole numbers.

    Args:
        cdf: F_s of each of the S components.
        component: the quantile of each, by its level.
        level: between 0 and 1.
    """

    def excess(x: Tensor) -> Tensor:
        return cdf(x.unsqueeze(1)).mean(1) - level

    ends, (lower, upper) = component(level), map(component, QUARTILES)
    low, high = ends.amin(1), ends.amax(1)  # the components' own quantiles hold the mixture's between them
    size = torch.maximum(low.abs(), high.abs())
    precision = 1e-12 * (upper - lower).amin(1) + 1e-17 * size
    before, at_before = low, excess(low)
    x, last = ends.mean(1), high - low
    for _ in range(STEPS):
        at = excess(x)
        low, high = torch.where(at < 0, x, low), torch.where(at < 0, high, x)
        step = -at * (x - before) / (at - at_before)
        fast = (x + step >= low) & (x + step <= high) & (step.abs() < 0.5 * last)
        last = torch.where(fast, step, 0.5 * (low + high) - x)
        before, at_before = x, at
        x, last = x + last, last.abs()
        if bool((last <= precision).all()):
            break
    whole = x.round()
    return torch.where((x - whole).abs() <= 4 * precision + 1e-15 * size, whole, x)
