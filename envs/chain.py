"""A chain of states with the reward at its far end: Osband et al. 2016, "Deep Exploration via Bootstrapped DQN"."""

from collections.abc import Sequence
from typing import ClassVar

import gymnasium as gym
import numpy as np

from explore.core.errors import check_range
from explore.envs.simulation import LARGE, Array, Shape, Simulation, cells


class Chain(Simulation):
    """A chain of states 0 to length - 1. Episodes start in state 1 and last length + 9 steps. Actions: 0 left, 1 right.

    The reward after a step is 0.001 in state 0 and 1 in the last state. Always going right is optimal and returns 12.
    With `noise` columns, action 2 stays and shows normal noise in them, which tells nothing: a noisy television. All
    other actions show 0.
    """

    about = "walk to the far end of a row of states; the best return is known"
    variants: ClassVar = {
        "": ("", {}),
        "NoisyTV": ("a third action shows noise, which tells nothing", {"noise": 8}),
    }
    time_limit = None
    view = (0.0, 0.0, 1.0)
    frames_per_second = 5

    def __init__(self, n: int = 1, length: int = 20, noise: int = 0) -> None:
        check_range("length", length, "[3, inf)")
        check_range("noise", noise, "[0, 1e4]")
        super().__init__(n)
        self.length, self.noise, self.horizon = length, noise, length + 9
        low, high = (np.repeat(ends, (length, noise)).astype(np.float32) for ends in ((0, -LARGE), (1, LARGE)))
        self.observation_space = gym.spaces.Box(low, high)
        self.action_space = gym.spaces.Discrete(3 if noise else 2)
        self.state, self.steps = np.ones(n, int), np.zeros(n, int)
        self.shown, self.static = np.zeros((n, noise)), np.zeros((n, length + 9, noise))

    def draw(self, rng: np.random.Generator) -> Array:
        return rng.standard_normal(self.static[0].size)

    def start(self, where: Array, draws: Array) -> None:
        self.state[where], self.steps[where], self.shown[where] = 1, 0, 0
        self.static[where] = draws.reshape(len(draws), *self.static.shape[1:])

    def step(self, actions: Array) -> tuple[Array, Array]:
        actions = np.clip(actions, 0, 2 if self.noise else 1)
        watches = actions == 2
        self.state = np.clip(self.state + np.where(watches, 0, 2 * actions - 1), 0, self.length - 1)
        self.shown = watches[:, None] * self.static[np.arange(self.n), np.minimum(self.steps, self.length + 8)]
        self.steps = self.steps + 1
        reward = np.where(self.state == 0, 0.001, 0.0) + (self.state == self.length - 1)
        return reward, np.zeros(self.n, bool)

    def observe(self) -> Array:
        return np.concatenate([np.eye(self.length)[self.state], self.shown], 1).astype(np.float32)

    def shapes(self, i: int) -> Sequence[Shape]:
        return cells(1, self.length, (0, self.state[i]))
