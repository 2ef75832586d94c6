"""What the equations of motion have in common with Box2D's solver."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from explore.envs.simulation import Array

GRAVITY = 10.0
SLOP, ANGULAR_SLOP = 0.005, 2 / 180 * np.pi  # errors of a joint that Box2D lets be (m, rad)
MAX_ROTATION = 0.5 * np.pi  # of a body in a step


def solve(a: Array, b: Array, d: Array, x: Array, y: Array) -> tuple[Array, Array]:
    """Solve the symmetric 2 x 2 systems [[a, b], [b, d]] p = (x, y); all [n]."""
    det = a * d - b * b
    return (d * x - b * y) / det, (a * y - b * x) / det


def limited(spin: Array, step_size: float) -> Array:
    """Angular velocities [n], none of which turns a body too far in one step."""
    most = MAX_ROTATION / step_size
    return np.minimum(np.maximum(spin, -most), most)


def join(state: Array, correct: Callable[[Array], Array], iterations: int) -> None:
    """Correct positions, state [D, n], until the joints hold or the iterations are used up.

    `correct` changes a state by one iteration and says where [n] a joint had been off before it.
    """
    off = np.flatnonzero(correct(state))
    for _ in range(iterations - 1):
        if not off.size:
            return
        some = state[:, off]
        still = correct(some)
        state[:, off] = some
        off = off[still]
