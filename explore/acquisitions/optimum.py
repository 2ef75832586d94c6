"""Greedy choice of batches that maximise an expected maximum, as for expected improvement and upper confidence bounds.

f = mean + F^T z with z ~ N(0, I_S) has the mean and covariance of the sampled nets' predictions (F: centred
predictions over sqrt(S - 1)). The values at pending and chosen points are drawn M times: Gram-Schmidt turns the points
into orthonormal directions of z, and M standard normal numbers are drawn along each direction. Given the draws, f at a
candidate is still normal, and its contribution to the maximum has a closed form: exact for the first point, averaged
over draws for later points. Points are chosen greedily, since such maxima are submodular (Wilson, Hutter and Deisenroth
2018, Section 4).
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from explore.acquisitions.base import Choice, View
from explore.acquisitions.conditioning import centred, greedy_given

__all__ = ["SIGNS", "Forecast", "in_turn", "ramp"]

ROUNDING = 1e-10  # relative size of rounding errors of a centred output, in double precision
SIGNS = {"maximise": 1, "minimise": -1}


class Forecast(NamedTuple):
    """The normal distribution of f at some points, given each of the M draws; larger values of f are better."""

    mean: Float[Tensor, "R 1 b"]  # mean without the draws
    shift: Float[Tensor, "R _M b"]  # change of the mean, given each draw
    deviation: Float[Tensor, "R 1 b"]  # standard deviation given a draw


class _Draws(NamedTuple):
    directions: Float[Tensor, "R S n"]  # orthonormal directions of z
    drawn: Float[Tensor, "R n M"]  # draws of z along them
    best: Float[Tensor, "R M"]  # best value in each draw

    def forecast(self, f: Float[Tensor, "R S b"], mean: Float[Tensor, "R b"]) -> tuple[Forecast, Tensor]:
        """Return the forecast for points with centred outputs f, and the part of f orthogonal to all directions."""
        along = self.directions.mT @ f  # [R, n, b]
        rest = f - self.directions @ along
        squares, whole = (v.square().sum(1, keepdim=True) for v in (rest, f))
        # For points already drawn, or duplicates of them, the rest is only rounding errors, not a new direction.
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
    """Choose k points one after another, given M `draws` of the values at pending and earlier points.

    `direction` is "maximise" or "minimise". `best` [R] is the best value before the batch. `value` maps a point's mean
    [R, 1] and the deviations of f from this mean [R, M] to values [R, M]. `score` maps a forecast and the best values
    so far [R, M, 1] to scores [R, M or 1, b].
    """

    def forecast(state: _Draws, out: Float[Tensor, "R S b 1"]) -> tuple[Forecast, Tensor]:
        better = SIGNS[direction] * view.likelihood.mean(out).double()
        return state.forecast(centred(better).squeeze(3), better.mean((1, 3)))

    def update(state: _Draws, out: Float[Tensor, "R S n 1"]) -> _Draws:
        for point in out.split(1, 2):
            at, rest = forecast(state, point)
            # Stratified standard normal numbers: one per quantile, in random order.
            order, within = view.rng.permutation(len(out), draws), view.rng.uniform(len(out), draws).double()
            z = torch.special.ndtri(((order + within) / draws).clamp(1e-9, 1 - 1e-9))
            values = value(at.mean.squeeze(2), at.shift.squeeze(2) + at.deviation.squeeze(2) * z)
            unit = rest / at.deviation.clamp_min(torch.finfo(rest.dtype).tiny)
            directions, drawn = torch.cat([state.directions, unit], 2), torch.cat([state.drawn, z.unsqueeze(1)], 1)
            state = _Draws(directions, drawn, torch.maximum(state.best, values))
        return state

    def scores(view: View, state: _Draws) -> Tensor:
        return view.each(lambda out: score(forecast(state, out)[0], state.best.unsqueeze(2)).mean(1))

    every, samples = best.double().unsqueeze(1).expand(-1, draws), view.predictor.samples
    start = _Draws(every.new_zeros(len(best), samples, 0), every.new_zeros(len(best), 0, draws), every)
    return greedy_given(view, k, start, scores, update)


def ramp(mean: Tensor, deviation: Tensor) -> Tensor:
    """Return E max(0, u) for normal u, in closed form: deviation phi(z) + mean Phi(z), z = mean / deviation."""
    z = mean / deviation.clamp_min(torch.finfo(mean.dtype).tiny)
    # Far below 0, torch.special.ndtr underflows to 0, but erfc stays accurate.
    return deviation * (-0.5 * z.square()).exp() / (2 * torch.pi) ** 0.5 + mean * torch.special.erfc(-z / 2**0.5) / 2
