"""Box2D worlds, one per copy, and parts of its solver for the equations of motion."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from explore.core.errors import InputError

Array = NDArray[Any]
GRAVITY = 10.0
SLOP, ANGULAR_SLOP = 0.005, 2 / 180 * np.pi  # errors of a joint that Box2D lets be (m, rad)
MAX_ROTATION = 0.5 * np.pi  # of a body in a step


class World(NamedTuple):
    """A Box2D world, its moving bodies in simulation order, and the function that applies force or torque."""

    world: Any
    bodies: list[Any]
    act: Callable[[float], None]


def push(body: Any, force: float) -> None:
    """Apply a force (N) at the centre of a body along its own x axis."""
    body.ApplyForce(body.GetWorldVector((force, 0)), body.worldCenter, True)


def drive(joint: Any, torque: float) -> None:
    """Apply a torque (N m): the motor runs at its maximum torque."""
    joint.motorSpeed = 1e5 if torque > 0 else -1e5
    joint.maxMotorTorque = abs(torque)


def load_box2d() -> Any:
    """Return the module Box2D; refuse to go on without it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # SWIG's; made an error, it kills the interpreter
            import Box2D
    except ImportError as error:
        hint = 'cart-pole and double pendulum also run with physics="equations"'
        raise InputError(f'this environment needs Box2D: pip install "box2d>=2.3.10"; {hint}') from error
    return Box2D


class Worlds:
    """Worlds that move the columns of `bodies` [K, 6, n] (see `simulation.RigidBodies`)."""

    def __init__(
        self,
        build: Callable[[Any], World],
        bodies: Array,
        step_size: float,
        iterations: tuple[int, int],
    ) -> None:
        self._box2d = load_box2d()
        self._build, self._bodies = build, bodies
        self._step = (step_size, *iterations)
        self._worlds: dict[int, World] = {}

    def start(self, where: Array) -> None:
        """Replace the worlds of placed bodies: the joints of old ones remember impulses."""
        for i in where.tolist():
            self._worlds[i] = self._build(self._box2d)
            for body, (x, y, angle, vx, vy, spin) in zip(
                self._worlds[i].bodies, self._bodies[:, :, i].tolist(), strict=True
            ):
                body.position, body.angle = (x, y), angle
                body.linearVelocity, body.angularVelocity = (vx, vy), spin

    def step(self, force: Array) -> None:
        """One time step of all worlds under forces [n]."""
        for i, f in enumerate(force.tolist()):
            world = self._worlds[i]
            world.act(f)
            world.world.Step(*self._step)
            for k, body in enumerate(world.bodies):
                velocity = body.linearVelocity
                self._bodies[k, :, i] = (*body.position, body.angle, *velocity, body.angularVelocity)


def solve(a: Array, b: Array, d: Array, x: Array, y: Array) -> tuple[Array, Array]:
    """Solve the symmetric 2 x 2 systems [[a, b], [b, d]] p = (x, y); all [n]."""
    det = a * d - b * b
    return (d * x - b * y) / det, (a * y - b * x) / det


def limited(spin: Array, step_size: float) -> Array:
    """Angular velocities [n], limited to the largest turn in one step."""
    most = MAX_ROTATION / step_size
    return np.minimum(np.maximum(spin, -most), most)


def join(state: Array, correct: Callable[[Array], Array], iterations: int) -> None:
    """Correct positions, state [D, n], until the joints hold or the iterations are used up; `correct` iterates once."""
    off = np.flatnonzero(correct(state))
    for _ in range(iterations - 1):
        if not off.size:
            return
        some = state[:, off]
        still = correct(some)
        state[:, off] = some
        off = off[still]
