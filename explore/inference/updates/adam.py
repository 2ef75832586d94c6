"""Adam (Kingma and Ba, 2015) as a pure function, and the parameters that it trains beside every posterior.

These are the scales and shifts of batch norm, and the parameters of a network that are point estimates.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from explore.core.linalg import over
from explore.core.shapes import NormTaps, Taps, Weights
from explore.execution import parallel
from explore.nets.protocols import Network

Tensors = tuple[Tensor, ...]
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8


class Moving(NamedTuple):
    """Moving averages of gradients and squared gradients, without bias correction."""

    first: Tensors
    second: Tensors


def loss_gradients(taps: tuple[Taps, ...], penalised: Weights, decay: float) -> Weights:
    """Return the gradient of -E[log p(y|x,W)] for each sample, plus decay * `penalised` (W for an L2 penalty)."""
    gradients = parallel.mean(tuple(t.gradients() / t.grads.shape[2] for t in taps))
    return tuple(decay * w - g for w, g in zip(penalised, gradients, strict=True))


def start(parameters: Tensors) -> Moving:
    """Return the initial moving averages, zeros in the shapes of `parameters`."""
    return Moving(tuple(map(torch.zeros_like, parameters)), tuple(map(torch.zeros_like, parameters)))


def rates(lr: Any, step: Any) -> tuple[Any, Any]:
    """Return the bias-corrected learning rate and epsilon at a step, counted from 1: numbers, or tensors [R]."""
    root = (1 - BETA2**step) ** 0.5
    return lr * root / (1 - BETA1**step), EPSILON * root


def descend(parameters: Tensors, gradients: Tensors, moving: Moving, rates: tuple[Any, ...]) -> tuple[Tensors, Moving]:
    """Take one Adam step with the result of `rates`. Return the new parameters and moving averages."""
    size, floor = rates
    first = tuple(torch.lerp(g, m, BETA1) for m, g in zip(moving.first, gradients, strict=True))
    pairs = zip(moving.second, gradients, strict=True)
    second = tuple(torch.addcmul(BETA2 * v, g, g, value=1 - BETA2) for v, g in pairs)
    moves = zip(parameters, first, second, strict=True)
    new = tuple(torch.addcdiv(p, over(size, m) * m, v.sqrt() + over(floor, v), value=-1) for p, m, v in moves)
    return new, Moving(first, second)


def cosine(progress: float) -> float:
    """Return the factor of a cosine schedule, which falls from 1 to 0 over training."""
    return 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))


# Besides weights with a distribution ------------------------------------------------------------------------

NormPolicy = Literal["frozen", "adam"]
"""Batch-norm scales and shifts: "frozen" at 1 and 0, or trained by "adam" on the likelihood alone."""


class Trained(NamedTuple):
    """Parameters beside the weights, for each of M members or one for all, and Adam's state for those it trains."""

    values: tuple[Float[Tensor, "R _M ..."], ...] = ()
    moving: Moving = Moving((), ())


def advance_norms(
    norms: Trained, net: Network, taps: tuple[NormTaps, ...], count: tuple[int, int], lr: float, step: Tensor
) -> Trained:
    """Update running statistics, scales and shifts of batch-norm layers from the taps of a training pass.

    `count` is (number of samples, number of examples), `step` the number of this step for each replica, [R].
    """
    values, gradients = [], []
    for v, t, norm in zip(norms.values, taps, net.norms, strict=True):
        statistics = t.statistics.mean(1, keepdim=True) if v.shape[1] == 1 else t.statistics
        statistics, gradient = parallel.mean((statistics, _mean_gradient(v, t.grads, count)))
        values.append(torch.cat([v[:, :, :2], torch.lerp(v[:, :, 2:], statistics, norm.momentum)], 2))
        gradients.append(-gradient * norm.affine)  # zero for layers without scale and shift
    if not norms.moving.first:
        return Trained(tuple(values), norms.moving)
    points = tuple(v[:, :, :2] for v in values)
    points, moving = descend(points, tuple(gradients), norms.moving, rates(lr, step.double()))
    return Trained(tuple(torch.cat([p, v[:, :, 2:]], 2) for p, v in zip(points, values, strict=True)), moving)


def advance_points(
    points: Trained, grads: tuple[Tensor, ...], count: tuple[int, int], lr: float, step: Tensor
) -> Trained:
    """Take one step of Adam on the point estimates; the arguments are those of `advance_norms`."""
    if not points.values:
        return points
    descents = tuple(-_mean_gradient(v, g, count) for v, g in zip(points.values, grads, strict=True))
    size = rates(lr, step.double())
    return Trained(*descend(points.values, parallel.mean(descents), points.moving, size))


def _mean_gradient(values: Tensor, grads: Tensor, count: tuple[int, int]) -> Tensor:
    """Return the mean over examples, and over samples if they share the values, of gradients summed over both."""
    return grads.sum(1, keepdim=True) / math.prod(count) if values.shape[1] == 1 else grads / count[1]
