"""Adam (Kingma and Ba, 2015) as a pure step, for the posteriors that are trained by plain gradients."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from explore.shapes import Taps, Weights

Tensors = tuple[Tensor, ...]
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8


class Moving(NamedTuple):
    """Moving averages of the gradients and of their squares, without bias correction."""

    first: Tensors
    second: Tensors


def loss_gradients(taps: tuple[Taps, ...], penalised: Weights, decay: float) -> Weights:
    """The gradient of -E[log p(y|x,W)] + decay |W|^2 / 2 for each sample of the weights by itself.

    Args:
        taps: of the log-likelihood.
        penalised: W, or whatever else the gradient of the penalty is `decay` times of.
        decay: 1 / (N eta).
    """
    return tuple(
        decay * w - torch.einsum("rsbti,rsbto->rsio", t.inputs, t.grads) / t.grads.shape[2]
        for w, t in zip(penalised, taps, strict=True)
    )


def start(parameters: Tensors) -> Moving:
    """Averages before the first gradient."""
    return Moving(tuple(map(torch.zeros_like, parameters)), tuple(map(torch.zeros_like, parameters)))


def descend(parameters: Tensors, gradients: Tensors, moving: Moving, lr: float, step: int) -> tuple[Tensors, Moving]:
    """One step against the gradients; `step` counts from 1."""
    first = tuple(torch.lerp(g, m, BETA1) for m, g in zip(moving.first, gradients, strict=True))
    second = tuple(
        torch.addcmul(BETA2 * v, g, g, value=1 - BETA2) for v, g in zip(moving.second, gradients, strict=True)
    )
    size, floor = lr * math.sqrt(1 - BETA2**step) / (1 - BETA1**step), EPSILON * math.sqrt(1 - BETA2**step)
    new = tuple(
        torch.addcdiv(p, m, v.sqrt() + floor, value=-size) for p, m, v in zip(parameters, first, second, strict=True)
    )
    return new, Moving(first, second)


def cosine(progress: float) -> float:
    """A step schedule that falls from 1 to 0 along half a cosine."""
    return 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))
