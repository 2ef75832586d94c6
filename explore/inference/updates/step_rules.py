"""How far a step goes: its schedule, its trust region, its damping, and the average of gradients that it follows."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from explore.core.linalg import over
from explore.core.shapes import Means
from explore.execution.turns import Number

Schedule = Literal["step", "linear"]


def clipped(direction: Means, image: Means, lr: Number, limit: Number | None) -> Means:
    """The direction d, scaled so that the step lr d changes the predictions by no more than a limit.

    The trust region of K-FAC: lr^2 d^T F d, which is twice the KL divergence between the predictions before and after
    the step in nats an example, to second order, stays within the limit (Ba, Grosse, Martens: Distributed second-order
    optimization using Kronecker-factored approximations, 2017, Section 5). With `trust_region` that limit follows from
    the posterior's own deviation.

    Args:
        direction: d.
        image: F d, with or without the damping; where d = F^-1 v, that is v.
        lr: the step's size.
        limit: None for steps of any length.
    """
    if limit is None:
        return direction
    scale = (limit / (lr**2 * inner(direction, image))).sqrt().clamp_max(1.0)[:, None, None]
    return tuple(scale * d for d in direction)


def step_limit(kl_clip: float | None, trust_region: Number | None, scale: Number) -> Number | None:
    """The limit of `clipped`, by what a step may do to the predictions and by how far it may move q.

    A step from M to M + lr d moves q = N(M, scale (F + gamma)^-1) by lr^2 d^T (F + gamma) d / (2 scale) nats:
    with scale = lambda / N, the more examples there are, the shorter are the steps that stay within q's deviation.
    """
    if trust_region is None:
        return kl_clip
    limit = 2 * scale * trust_region
    if kl_clip is None:
        return limit
    return limit.clamp_max(kl_clip) if isinstance(limit, Tensor) else min(limit, kl_clip)


def adapt(
    damping: Float[Tensor, " R"], overshoot: Float[Tensor, " R"]
) -> tuple[Float[Tensor, " R"], Bool[Tensor, " R"]]:
    """The damping after a step, in the manner of Levenberg and Marquardt, and which replicas may take the step.

    Martens and Grosse (Optimizing Neural Networks with Kronecker-factored Approximate Curvature, 2015, Section 6.5)
    compare what a step gained with what the quadratic model promised. That ratio says little where the gradient is a
    batch's and the step follows a moving average; here the curvature is compared.

    Args:
        damping: before the step.
        overshoot: the objective's curvature along the step d, d^T H d, in units of its descent -d^T v at the start. A
            step that ends at the minimum along its line has 1, one that ends as high as it began 2.
    """
    accepted = overshoot < 2  # never, where it is not a number
    factor = torch.ones_like(damping)
    factor[overshoot < 0.5] = 19 / 20
    factor[overshoot > 1] = 20 / 19
    factor[~accepted] = 2.0
    return damping * factor, accepted


def inner(u: Means, v: Means) -> Float[Tensor, " R"]:
    """The inner product over all weights."""
    return torch.stack([(a * b).sum((1, 2)) for a, b in zip(u, v, strict=True)]).sum(0)


def momentum(m: Means, gradient: Means, beta: float, correction: Number | Float[Tensor, " R"]) -> tuple[Means, Means]:
    """The moving average of a gradient, and its value over a correction: 1 - beta^t after t steps from zero."""
    new = tuple(torch.lerp(g, old, beta) for old, g in zip(m, gradient, strict=True))
    correction = over(correction, new[0])
    return new, tuple(x / correction for x in new)


def decay(progress: float, at: float, factor: Number, schedule: Schedule = "step") -> Number:
    """1 before `at`, from there on `factor`; or, linearly, 1 at `at`, `factor` at the end, and between them between."""
    if progress < at or at == 1:
        return 1.0
    return factor if schedule == "step" else 1 - (1 - factor) * (progress - at) / (1 - at)


def power_decay(step: int, power: float) -> float:
    """The schedule 1 / (1 + t^p) at step t, counted from 1; 1 throughout where p is 0."""
    return 1 / (1 + step**power) if power else 1.0
