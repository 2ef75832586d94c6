"""A chain of states with the reward at its far end: Osband et al. 2016, "Deep Exploration via Bootstrapped DQN"."""

from collections.abc import Sequence

import gymnasium as gym
import numpy as np

from explore.core.errors import InputError
from explore.envs.simulation import Array, Shape, Simulation, box


class Chain(Simulation):
    """A chain of states 0 to length - 1. Episodes start in state 1 and last length + 9 steps. Actions: 0 left, 1 right.

    The reward after a step is 0.001 in state 0 and 1 in the last state. Always going right is optimal and returns 12.
    """

    about = "walk to the far end of a row of states; the best return is known"
    time_limit = None
    view = (0.0, 0.0, 1.0)
    frames_per_second = 5
    best_return = 12.0

    def __init__(self, n: int = 1, length: int = 20) -> None:
        if length < 3:
            raise InputError(f"length is {length}; it must be at least 3")
        super().__init__(n)
        self.length, self.horizon = length, length + 9
        self.observation_space = gym.spaces.Box(0.0, 1.0, (length,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self.state = np.ones(n, int)

    def draw(self, rng: np.random.Generator) -> Array:
        return np.zeros(0)

    def start(self, where: Array, draws: Array) -> None:
        self.state[where] = 1

    def step(self, actions: Array) -> tuple[Array, Array]:
        self.state = np.clip(self.state + 2 * np.clip(actions, 0, 1) - 1, 0, self.length - 1)
        reward = np.where(self.state == 0, 0.001, 0.0) + (self.state == self.length - 1)
        return reward, np.zeros(self.n, bool)

    def observe(self) -> Array:
        return np.eye(self.length, dtype=np.float32)[self.state]

    def shapes(self, i: int) -> Sequence[Shape]:
        side = 1.8 / self.length
        centres = np.arange(self.length) * side - 0.9 + side / 2
        return [
            Shape(box(0.9 * side, 0.9 * side, -side / 2) + (x, 0), "peru" if s == self.state[i] else "lightgrey")
            for s, x in enumerate(centres)
        ]
