"""Five functions with closed forms, known from the analysis of computer experiments, on the unit cube.

Formulas and ranges: Surjanovic and Bingham, Virtual Library of Simulation Experiments; there Borehole is ascribed to
Harper and Gupta (1983), OTL circuit to Ben-Ari and Steinberg (2007), Robot arm to An and Owen (2001).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor


def borehole(x: Float[Tensor, "... 8"]) -> Float[Tensor, "..."]:
    """Water flow through a borehole, in m^3 a year.

    Args:
        x: radius of the borehole and of its influence (m), transmissivity (m^2 a year) and head (m) of the upper
            aquifer, those of the lower one, length (m), conductivity (m a year).
    """
    r_w, r, t_u, h_u, t_l, h_l, length, k_w = x.unbind(-1)
    log = (r / r_w).log()
    return 2 * math.pi * t_u * (h_u - h_l) / (log * (1 + 2 * length * t_u / (log * r_w**2 * k_w) + t_u / t_l))


ALPHA = (1.0, 1.2, 3.0, 3.2)
HARTMANN_A = (
    (10, 3, 17, 3.5, 1.7, 8), (0.05, 10, 17, 0.1, 8, 14), (3, 3.5, 1.7, 10, 17, 8), (17, 8, 0.05, 10, 0.1, 14),
)  # fmt: skip
HARTMANN_P = (
    (0.1312, 0.1696, 0.5569, 0.0124, 0.8283, 0.5886), (0.2329, 0.4135, 0.8307, 0.3736, 0.1004, 0.9991),
    (0.2348, 0.1451, 0.3522, 0.2883, 0.3047, 0.6650), (0.4047, 0.8828, 0.8732, 0.5743, 0.1091, 0.0381),
)  # fmt: skip


def hartmann(x: Float[Tensor, "... 6"]) -> Float[Tensor, "..."]:
    """Four negative bumps in six dimensions; the least value is -3.32237."""
    a, p = (torch.tensor(values, dtype=x.dtype) for values in (HARTMANN_A, HARTMANN_P))
    squares = (a * (x.unsqueeze(-2) - p).square()).sum(-1)
    return -(torch.tensor(ALPHA, dtype=x.dtype) * (-squares).exp()).sum(-1)


def rastrigin(x: Float[Tensor, "... D"]) -> Float[Tensor, "..."]:
    """A bowl with a wave of period 1 along every axis; the least value is 0, at 0."""
    return 10 * x.shape[-1] + (x.square() - 10 * (2 * math.pi * x).cos()).sum(-1)


def otl_circuit(x: Float[Tensor, "... 6"]) -> Float[Tensor, "..."]:
    """Midpoint voltage of a push-pull circuit without a transformer, in V.

    Args:
        x: resistances b1, b2, f, c1, c2 (kOhm), and the current gain.
    """
    b1, b2, f, c1, c2, gain = x.unbind(-1)
    load = gain * (c2 + 9)
    base = 12 * b2 / (b1 + b2)
    return (base + 0.74) * load / (load + f) + 11.35 * f / (load + f) + 0.74 * f * load / ((load + f) * c1)


def robot_arm(x: Float[Tensor, "... 8"]) -> Float[Tensor, "..."]:
    """How far the end of an arm of four segments is from its shoulder.

    Args:
        x: the angle of each segment to the one before, then the four lengths.
    """
    direction, length = x[..., :4].cumsum(-1), x[..., 4:]
    return torch.hypot((length * direction.cos()).sum(-1), (length * direction.sin()).sum(-1))


class Function(NamedTuple):
    """A function and the box on which it is looked at."""

    evaluate: Callable[[Tensor], Tensor]
    low: tuple[float, ...]
    high: tuple[float, ...]

    def __call__(self, unit: Float[Tensor, "... D"]) -> Float[Tensor, "..."]:
        """Values at points of the unit cube."""
        low, high = (torch.tensor(ends, dtype=unit.dtype) for ends in (self.low, self.high))
        return self.evaluate(low + (high - low) * unit)


FUNCTIONS = {
    "borehole": Function(
        borehole, (0.05, 100, 63070, 990, 63.1, 700, 1120, 9855), (0.15, 50000, 115600, 1110, 116, 820, 1680, 12045)
    ),
    "hartman6": Function(hartmann, (0,) * 6, (1,) * 6),
    "rastrigin5": Function(rastrigin, (-5.12,) * 5, (5.12,) * 5),
    "otl-circuit": Function(otl_circuit, (50, 25, 0.5, 1.2, 0.25, 50), (150, 70, 3, 2.5, 1.2, 300)),
    "robot-arm": Function(robot_arm, (0,) * 8, (2 * math.pi,) * 4 + (1,) * 4),
}
