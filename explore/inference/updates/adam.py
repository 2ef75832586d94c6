"""Adam (Kingma and Ba, 2015) as a pure function, for posteriors trained with ordinary gradients."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from explore.core.linalg import over
from explore.core.shapes import Taps, Weights
from explore.execution import parallel

Tensors = tuple[Tensor, ...]
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8


class Moving(NamedTuple):
    """Moving averages of gradients and squared gradients, without bias correction."""

    first: Tensors
    second: Tensors


def loss_gradients(taps: tuple[Taps, ...], penalised: Weights, decay: float | Tensor) -> Weights:
    """Return the gradient of -E[log p(y|x,W)] for each sample, plus decay * `penalised` (W for an L2 penalty)."""
    gradients = parallel.mean(tuple(t.gradients() / t.grads.shape[2] for t in taps))
    return tuple(over(decay, w) * w - g for w, g in zip(penalised, gradients, strict=True))


def start(parameters: Tensors) -> Moving:
    """Return the initial moving averages, zeros in the shapes of `parameters`."""
    return Moving(tuple(map(torch.zeros_like, parameters)), tuple(map(torch.zeros_like, parameters)))


def rates(lr: Any, step: Any) -> tuple[Any, Any]:
    """Return the bias-corrected learning rate and epsilon at a step, counted from 1: numbers, or tensors [R]."""
    root = (1 - BETA2**step) ** 0.5
    return lr * root / (1 - BETA1**step), EPSILON * root


def descend(parameters: Tensors, gradients: Tensors, moving: Moving, rates: tuple[Any, Any]) -> tuple[Tensors, Moving]:
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
