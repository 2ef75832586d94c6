"""A grid in which only one path of actions is rewarded: DeepSea of bsuite.

Osband et al. 2019, "Behaviour Suite for Reinforcement Learning" and "Deep Exploration via Randomized Value Functions".
"""

from collections.abc import Sequence
from typing import ClassVar

import gymnasium as gym
import numpy as np

from explore.core.errors import check_range
from explore.envs.simulation import Array, Shape, Simulation, cells


class DeepSea(Simulation):
    """A grid of size x size cells, entered at the top left. Each step goes down a row, to the left or to the right.

    Which action goes right differs between cells and is drawn from `mapping`. A step to the right costs 0.01 / size.
    The reward is 1 for going right in the bottom right cell, so the best return is 0.99. Episodes last `size` steps.
    With `stochastic`, a step to the right fails with probability 1 / size, and normal noise is added to the reward of
    the last step in the two bottom corners.
    """

    about = "dive to the far corner of a grid"
    variants: ClassVar = {
        "": ("rewarded in one corner only", {"stochastic": False}),
        "Stochastic": ("steps to the right may fail, with noise in two corners", {"stochastic": True}),
    }
    time_limit = None
    view = (0.0, 0.0, 1.5)
    frames_per_second = 5

    def __init__(self, n: int = 1, size: int = 10, stochastic: bool = False, mapping: int = 0) -> None:
        check_range("size", size, "[2, inf)")
        super().__init__(n)
        self.size, self.horizon, self.stochastic = size, size, stochastic
        self.observation_space = gym.spaces.Box(0.0, 1.0, (size * size,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self.right = np.random.default_rng(mapping).integers(0, 2, (size, size))
        self.row, self.column = np.zeros(n, int), np.zeros(n, int)
        self.chances = np.zeros((n, 2 * size))

    def draw(self, rng: np.random.Generator) -> Array:
        if not self.stochastic:
            return np.zeros(0)
        return np.concatenate([rng.random(self.size), rng.standard_normal(self.size)])

    def start(self, where: Array, draws: Array) -> None:
        self.row[where], self.column[where] = 0, 0
        self.chances[where] = draws if self.stochastic else 0

    def step(self, actions: Array) -> tuple[Array, Array]:
        copies, row, last = np.arange(self.n), np.minimum(self.row, self.size - 1), self.size - 1
        right = np.clip(actions, 0, 1) == self.right[row, self.column]
        found = right & (row == last) & (self.column == last)
        corner = (row == last) & np.isin(self.column, (0, last))
        reward = found - right * 0.01 / self.size + corner * self.chances[copies, self.size + row]
        moves = right & (self.chances[copies, row] >= self.stochastic / self.size)
        self.column = np.clip(self.column + np.where(right, moves, -1), 0, last)
        self.row = self.row + 1
        return reward, self.row >= self.size

    def observe(self) -> Array:
        cells = np.zeros((self.n, self.size, self.size), np.float32)
        inside = np.flatnonzero(self.row < self.size)  # below the last row, nothing is observed
        cells[inside, self.row[inside], self.column[inside]] = 1
        return cells.reshape(self.n, -1)

    def shapes(self, i: int) -> Sequence[Shape]:
        return cells(self.size, self.size, (self.row[i], self.column[i]))
