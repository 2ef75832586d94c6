"""A weak car in a valley: rllab's MountainCar and VIME's sparse version of it.

Duan et al. 2016, "Benchmarking Deep Reinforcement Learning for Continuous Control"; Houthooft et al. 2016, "VIME".
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from explore.core.errors import InputError, check_range
from explore.envs.simulation import Array, RigidBodies, Shape, World, box, push

_I = np.arange(-100, 101)
TRACK = np.stack([_I / 50, 1 + np.sin((_I / 100 - 0.5) * np.pi)], axis=1)


class MountainCar(RigidBodies):
    """A car in a valley, driven by a force of up to 1 N along its axis; simulated by Box2D only.

    Observations: position x of the car, and the velocity along x. The episode ends if x >= threshold or abs(x) >= 2.
    Sparse reward: 1 in the step that ends the episode. Dense reward: the height of the car minus 1.
    """

    about = "drive a weak car out of a valley"
    limit = 1.0
    initial = np.array([(0, 0.05)])
    observations = 2
    view = (0.0, 1.0, 2.4)

    def __init__(self, n: int = 1, physics: str = "box2d", sparse: bool = True, threshold: float = 0.6) -> None:
        if physics == "equations":
            raise InputError('the mountain car has no physics "equations"; allowed: box2d')
        super().__init__(n, physics, sparse)
        check_range("threshold", threshold, "(0, 2]")
        self.threshold = threshold

    @staticmethod
    def build(box2d: Any) -> World:
        world = box2d.b2World(doSleep=False)
        car = world.CreateDynamicBody(position=(0, 0.05))
        car.CreatePolygonFixture(box=(0.2, 0.1), density=5, friction=0.0005)
        track = world.CreateStaticBody(position=(0, 1))
        track.CreateChainFixture(vertices_chain=(TRACK - (0, 1)).tolist())
        return World(world, [car], partial(push, car))

    def draw(self, rng: np.random.Generator) -> Array:
        return rng.random(1)

    def place(self, bodies: Array, draws: Array) -> None:
        bodies[0, 3] = 2 * draws[0] - 1

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
