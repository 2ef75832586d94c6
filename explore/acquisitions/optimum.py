"""How much higher a batch gets than the best so far, one point after another: expectations of a maximum.

f = mean + F^T z, z ~ N(0, I_S), has the mean and covariance of what the sampled nets predict (F: centred over sqrt(S -
1)).
What the pending and the chosen points turn out to be is drawn M times: each such point adds a direction of z, by
Gram-Schmidt, and M standard normal numbers along it. Given these, f at a candidate is normal again, and what it adds to
the maximum is in closed form: exact for the first point, for others a mean over the draws. So no candidate scores 0
only because none of a few sampled nets is higher there. Points are taken greedily, as Wilson, Hutter and Deisenroth
(2018, Section 4) do: such maxima are submodular.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from explore.acquisitions.base import Choice, View
from explore.acquisitions.conditioning import centred, greedy_given
from explore.core.rng import Rng

__all__ = ["SIGNS", "Forecast", "highest_mean", "in_turn", "ramp"]

ROUNDING = 1e-10  # of a centred output, in double precision
SIGNS = {"maximise": 1, "minimise": -1}


class Forecast(NamedTuple):
    """F at some points, normal given each of the M draws; all in the direction in which more is better."""

    mean: Float[Tensor, "R 1 b"]  # before any draw
    shift: Float[Tensor, "R _M b"]  # of the mean by the draw
    deviation: Float[Tensor, "R 1 b"]  # that is left


class _Known(NamedTuple):
    directions: Float[Tensor, "R S n"]  # of z, orthonormal
    drawn: Float[Tensor, "R n M"]  # z along them
    best: Float[Tensor, "R M"]

    def forecast(self, f: Float[Tensor, "R S b"], mean: Float[Tensor, "R b"]) -> tuple[Forecast, Tensor]:
        """At points of these centred outputs and this mean; and the part of f that no direction explains."""
        along = self.directions.mT @ f  # [R, n, b]
        left = f - self.directions @ along
        squares, whole = (v.square().sum(1, keepdim=True) for v in (left, f))
        # What is left of a point that is known, such as a pending one's twin, is rounding, and no direction of its own.
        left = torch.where(squares > ROUNDING**2 * whole, left, 0.0)
        return Forecast(mean.unsqueeze(1), self.drawn.mT @ along, left.square().sum(1, keepdim=True).sqrt()), left

    def given(self, direction: Float[Tensor, "R S 1"], z: Float[Tensor, "R M"], value: Float[Tensor, "R M"]) -> _Known:
        """With f drawn at one point more, whose value this is."""
        return _Known(
            torch.cat([self.directions, direction], 2),
            torch.cat([self.drawn, z.unsqueeze(1)], 1),
            torch.maximum(self.best, value),
        )


def in_turn(
    view: View,
    k: int,
    direction: str,
    draws: int,
    best: Float[Tensor, " R"],
    value: Callable[[Tensor, Tensor], Tensor],
    score: Callable[[Forecast, Tensor], Tensor],
    cost: Float[Tensor, "R C"] | None = None,
) -> Choice:
    """K points, one after another.

    Args:
        view: of a net that predicts one number.
        k: how many.
        direction: "maximise" or "minimise".
        draws: M.
        best: value before the batch.
        value: of a point, by its mean [R, 1] and how far f is from that [R, M].
        score: of points, by their forecast and the best value so far [R, M, 1]; [R, M or 1, b].
        cost: of each candidate, by which scores are divided.
    """

    def forecast(known: _Known, out: Float[Tensor, "R S b 1"]) -> tuple[Forecast, Tensor]:
        better = SIGNS[direction] * view.likelihood.mean(out).double()
        return known.forecast(centred(better).squeeze(3), better.mean((1, 3)))

    def told(known: _Known, out: Float[Tensor, "R S n 1"]) -> _Known:
        for each in out.split(1, 2):
            at, left = forecast(known, each)
            z = _normal(len(out), draws, view.rng)
            there = value(at.mean.squeeze(2), at.shift.squeeze(2) + at.deviation.squeeze(2) * z)
            known = known.given(left / at.deviation.clamp_min(torch.finfo(left.dtype).tiny), z, there)
        return known

    def scores(known: _Known) -> Tensor:
        return view.each(lambda out: score(forecast(known, out)[0], known.best.unsqueeze(2)).mean(1))

    nothing = best.double().unsqueeze(1)
    start = _Known(
        nothing.new_zeros(len(best), view.predictor.samples, 0),
        nothing.new_zeros(len(best), 0, draws),
        nothing.expand(-1, draws),
    )
    return greedy_given(view, k, start, scores, told, cost=cost)


def highest_mean(view: View, direction: str) -> Float[Tensor, " R"]:
    """The best posterior mean at a labelled point: of noisy labels the largest is mostly noise."""
    return (SIGNS[direction] * view.likelihood.mean(view.outputs_at(view.labelled.x)).mean((1, 3))).amax(1)


def ramp(mean: Tensor, deviation: Tensor) -> Tensor:
    """E max(0, u), u normal: deviation phi(z) + mean Phi(z), z = mean / deviation."""
    z = mean / deviation.clamp_min(torch.finfo(mean.dtype).tiny)
    # torch.special.ndtr is zero far below, where erfc keeps its digits.
    return deviation * (-0.5 * z.square()).exp() / (2 * torch.pi) ** 0.5 + mean * torch.special.erfc(-z / 2**0.5) / 2


def _normal(replicas: int, n: int, rng: Rng) -> Float[Tensor, "R n"]:
    """N standard normal numbers, one of each n-th part of the distribution, in random order."""
    uniform = (rng.permutation(replicas, n) + rng.uniform(replicas, n).double()) / n
    return torch.special.ndtri(uniform.clamp(1e-9, 1 - 1e-9))
