"""The steps that natural-gradient posteriors are made of. Pure functions; each method orders them as its paper does."""

from __future__ import annotations

import torch
from torch import Tensor

from explore.shapes import Means, Taps


def mean_gradient(taps: tuple[Taps, ...]) -> Means:
    """The gradient of the mean log-likelihood over samples and examples, a tuple of [R, I, O]."""
    return tuple(_sum_outer(t) / (t.grads.shape[1] * t.grads.shape[2]) for t in taps)


def _sum_outer(t: Taps) -> Tensor:
    a, g = t.inputs, t.grads
    if a.shape[1] == 1:
        g = g.sum(1, keepdim=True)
    a, g = a.flatten(1, 3), g.flatten(1, 3)
    return a.mT @ g if a.shape[2] < g.shape[2] else (g.mT @ a).mT  # a batched product is fast when it is wide


def momentum(m: Means, gradient: Means, beta: float, step: int) -> tuple[Means, Means]:
    """The moving average of a gradient, and its bias-corrected value (step counts from 1)."""
    new = tuple(torch.lerp(g, old, beta) for old, g in zip(m, gradient, strict=True))
    correction = 1 - beta**step
    return new, tuple(x / correction for x in new)


def decay(progress: float, at: float, factor: float) -> float:
    """A step schedule: 1 before `at`, `factor` from there on."""
    return 1.0 if progress < at else factor
