"""A weak car in a valley: rllab's MountainCar and VIME's sparse version of it.

Duan et al. 2016, "Benchmarking Deep Reinforcement Learning for Continuous Control"; Houthooft et al. 2016, "VIME".
"""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from explore.core.errors import InputError, check_range
from explore.envs.simulation import Array, RigidBodies, Shape, box

_I = np.arange(-100, 101)
TRACK = np.stack([_I / 50, 1 + np.sin((_I / 100 - 0.5) * np.pi)], axis=1)


def load_box2d() -> Any:
    """Return the module Box2D. Raise InputError if it is not installed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # SWIG's; as an error, it would kill the interpreter
            import Box2D
    except ImportError as error:
        raise InputError('the mountain car needs Box2D: pip install "box2d>=2.3.10"') from error
    return Box2D


class MountainCar(RigidBodies):
    """A car in a valley, driven by a force of up to 1 N along its axis; simulated by Box2D.

    Observations: position x of the car, and the velocity along x. The episode ends if x >= threshold or abs(x) >= 2.
    Sparse reward: 1 in the step that ends the episode. Dense reward: the height of the car minus 1.
    """

    about = "drive a weak car out of a valley"
    limit = 1.0
    initial = np.array([(0, 0.05)])
    observations = 2
    view = (0.0, 1.0, 2.4)

    def __init__(self, n: int = 1, sparse: bool = True, threshold: float = 0.6) -> None:
        super().__init__(n, sparse)
        check_range("threshold", threshold, "(0, 2]")
        self.threshold, self.box2d = threshold, load_box2d()
        self.worlds: dict[int, tuple[Any, Any]] = {}  # by copy: the Box2D world, and the car in it

    def draw(self, rng: np.random.Generator) -> Array:
        return rng.random(1)

    def place(self, bodies: Array, draws: Array) -> None:
        bodies[0, 3] = 2 * draws[0] - 1

    def start(self, where: Array, draws: Array) -> None:
        super().start(where, draws)
        for i in where.tolist():  # new worlds, since old ones store impulses
            world = self.box2d.b2World(doSleep=False)
            car = world.CreateDynamicBody(position=(0, 0.05))
            car.CreatePolygonFixture(box=(0.2, 0.1), density=5, friction=0.0005)
            track = world.CreateStaticBody(position=(0, 1))
            track.CreateChainFixture(vertices_chain=(TRACK - (0, 1)).tolist())
            x, y, car.angle, vx, vy, car.angularVelocity = self.bodies[0, :, i].tolist()
            car.position, car.linearVelocity = (x, y), (vx, vy)
            self.worlds[i] = world, car

    def advance(self, force: Array) -> None:
        for i, f in enumerate(force.tolist()):
            world, car = self.worlds[i]
            car.ApplyForce(car.GetWorldVector((f, 0)), car.worldCenter, True)
            world.Step(self.step_size, *self.iterations)
            self.bodies[0, :, i] = (*car.position, car.angle, *car.linearVelocity, car.angularVelocity)

    def outcome(self) -> tuple[Array, Array]:
        x, y = self.bodies[0, :2]
        done = (x >= self.threshold) | (np.abs(x) >= 2)
        return done.astype(float) if self.sparse else y - 1, done

    def observe(self) -> Array:
        return self.bodies[0, [0, 3]].T.astype(np.float32)

    def shapes(self, i: int) -> Sequence[Shape]:
        t = self.threshold
        flag = Shape(np.array([(t, 1 - np.cos(np.pi * t / 2)), (t, 1.5 - np.cos(np.pi * t / 2))]), None)
        return [Shape(TRACK, None), flag, *self.outlines(i, [box(0.4, 0.2, -0.1)], ["steelblue"])]
