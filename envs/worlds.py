"""Box2D worlds, one a copy, stepped one after another."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

from numpy.typing import NDArray

from explore.core.errors import InputError


class World(NamedTuple):
    """A Box2D world, its moving bodies in the order of the simulation, and what applies a force or torque."""

    world: Any
    bodies: list[Any]
    act: Callable[[float], None]


def push(body: Any, force: float) -> None:
    """Apply a force (N) at the centre of a body along its own x axis."""
    body.ApplyForce(body.GetWorldVector((force, 0)), body.worldCenter, True)


def drive(joint: Any, torque: float) -> None:
    """Apply a torque (N m): the motor gives all it has, as its speed is out of reach."""
    joint.motorSpeed = 1e5 if torque > 0 else -1e5
    joint.maxMotorTorque = abs(torque)


def load_box2d() -> Any:
    """The module Box2D.

    Raises:
        InputError: where it is not installed.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # SWIG's; made an error, it kills the interpreter
            import Box2D
    except ImportError as error:
        raise InputError(
            'this environment needs Box2D: pip install "box2d>=2.3.10" (wheels for Python 3.11 to 3.13); the cart-pole '
            'and the double pendulum also run without it, by physics="equations"'
        ) from error
    return Box2D


class Worlds:
    """Worlds that move the columns of `bodies` [K, 6, n] (see `simulation.RigidBodies`)."""

    def __init__(
        self,
        build: Callable[[Any], World],
        bodies: NDArray[Any],
        step_size: float,
        iterations: tuple[int, int],
    ) -> None:
        self._box2d = load_box2d()
        self._build, self._bodies = build, bodies
        self._step = (step_size, *iterations)
        self._worlds: dict[int, World] = {}

    def start(self, where: NDArray[Any]) -> None:
        """Put new worlds where bodies have been placed: an old one's joints remember impulses."""
        for i in where.tolist():
            self._worlds[i] = self._build(self._box2d)
            for body, (x, y, angle, vx, vy, spin) in zip(
                self._worlds[i].bodies, self._bodies[:, :, i].tolist(), strict=True
            ):
                body.position, body.angle = (x, y), angle
                body.linearVelocity, body.angularVelocity = (vx, vy), spin

    def step(self, force: NDArray[Any]) -> None:
        """One time step of all worlds under forces [n]."""
        for i, f in enumerate(force.tolist()):
            world = self._worlds[i]
            world.act(f)
            world.world.Step(*self._step)
            for k, body in enumerate(world.bodies):
                velocity = body.linearVelocity
                self._bodies[k, :, i] = (*body.position, body.angle, *velocity, body.angularVelocity)
