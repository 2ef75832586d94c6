"""The expected gain of a batch over the best so far, point by point: expectations of a maximum.

f = mean + F^T z with z ~ N(0, I_S) has the mean and covariance of the predictions of the sampled nets (F: centred over
sqrt(S - 1)). The values of the pending and chosen points are drawn M times: by Gram-Schmidt each adds a direction of z,
and M standard normal numbers along it. Given these, f at a candidate is normal again, and its contribution to the
maximum has a closed form: exact for the first point, for others a mean over the draws. Points are chosen greedily
(Wilson, Hutter and Deisenroth 2018, Section 4): such maxima are submodular.
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
    """F at some points, normal given each of the M draws; larger is better."""

    mean: Float[Tensor, "R 1 b"]  # before any draw
    shift: Float[Tensor, "R _M b"]  # of the mean, by the draw
    deviation: Float[Tensor, "R 1 b"]  # that remains


class _Draws(NamedTuple):
    directions: Float[Tensor, "R S n"]  # of z, orthonormal
    drawn: Float[Tensor, "R n M"]  # z along them
    best: Float[Tensor, "R M"]

    def forecast(self, f: Float[Tensor, "R S b"], mean: Float[Tensor, "R b"]) -> tuple[Forecast, Tensor]:
        """Forecast points of these centred outputs and mean; also return the part of f that no direction explains."""
        along = self.directions.mT @ f  # [R, n, b]
        rest = f - self.directions @ along
        squares, whole = (v.square().sum(1, keepdim=True) for v in (rest, f))
        # The rest of a drawn point, or of its twin, is rounding and no direction of its own.
        rest = torch.where(squares > ROUNDING**2 * whole, rest, 0.0)
        return Forecast(mean.unsqueeze(1), self.drawn.mT @ along, rest.square().sum(1, keepdim=True).sqrt()), rest


def in_turn(
    view: View,
    k: int,
    direction: str,
    draws: int,
    best: Float[Tensor, " R"],
    value: Callable[[Tensor, Tensor], Tensor],
    score: Callable[[Forecast, Tensor], Tensor],
) -> Choice:
    """Choose k points one after another, with M `draws` of the values of those before.

    `best` [R] is the value before the batch; `value` that of a point from its mean [R, 1] and the deviation of f from
    it [R, M]; `score` that of points from their forecast and the best value so far [R, M, 1]: [R, M or 1, b].
    """

    def forecast(state: _Draws, out: Float[Tensor, "R S b 1"]) -> tuple[Forecast, Tensor]:
        better = SIGNS[direction] * view.likelihood.mean(out).double()
        return state.forecast(centred(better).squeeze(3), better.mean((1, 3)))

    def update(state: _Draws, out: Float[Tensor, "R S n 1"]) -> _Draws:
        for point in out.split(1, 2):
            at, rest = forecast(state, point)
            z = _normal(len(out), draws, view.rng)
            values = value(at.mean.squeeze(2), at.shift.squeeze(2) + at.deviation.squeeze(2) * z)
            unit = rest / at.deviation.clamp_min(torch.finfo(rest.dtype).tiny)
            directions, drawn = torch.cat([state.directions, unit], 2), torch.cat([state.drawn, z.unsqueeze(1)], 1)
            state = _Draws(directions, drawn, torch.maximum(state.best, values))
        return state

    def scores(state: _Draws) -> Tensor:
        return view.each(lambda out: score(forecast(state, out)[0], state.best.unsqueeze(2)).mean(1))

    nothing = best.double().unsqueeze(1)
    start = _Draws(
        nothing.new_zeros(len(best), view.predictor.samples, 0),
        nothing.new_zeros(len(best), 0, draws),
        nothing.expand(-1, draws),
    )
    return greedy_given(view, k, start, scores, update)


def highest_mean(view: View, direction: str) -> Float[Tensor, " R"]:
    """The best posterior mean at a labelled point: of noisy labels the largest is mostly noise."""
    return (SIGNS[direction] * view.likelihood.mean(view.outputs_at(view.labelled.x)).mean((1, 3))).amax(1)


def ramp(mean: Tensor, deviation: Tensor) -> Tensor:
    """E max(0, u), u normal: deviation phi(z) + mean Phi(z), z = mean / deviation."""
    z = mean / deviation.clamp_min(torch.finfo(mean.dtype).tiny)
    # torch.special.ndtr is zero far below, where erfc keeps its digits.
    return deviation * (-0.5 * z.square()).exp() / (2 * torch.pi) ** 0.5 + mean * torch.special.erfc(-z / 2**0.5) / 2


def _normal(replicas: int, n: int, rng: Rng) -> Float[Tensor, "R n"]:
    """Stratified standard normal numbers: one per n-quantile, in random order."""
    uniform = (rng.permutation(replicas, n) + rng.uniform(replicas, n).double()) / n
    return torch.special.ndtri(uniform.clamp(1e-9, 1 - 1e-9))
