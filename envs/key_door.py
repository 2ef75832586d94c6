"""A corridor with a key at one end and a door, which is rewarded, at the other."""

from collections.abc import Sequence

import gymnasium as gym
import numpy as np

from explore.core.errors import check_range
from explore.envs.simulation import Array, Shape, Simulation, cells


class KeyDoor(Simulation):
    """Places 0 to length - 1. Episodes start in the middle and last 4 * length steps. Actions: 0 left, 1 right.

    Place 0 has the key, which the agent takes when it gets there. In the last place the door opens with it: the reward
    is 1, and the episode ends. Observations are the place (one-hot) and whether the agent has the key.
    """

    about = "fetch a key at one end of a corridor, and open a door at the other"
    time_limit = None
    view = (0.0, 0.0, 1.0)
    frames_per_second = 5

    def __init__(self, n: int = 1, length: int = 20) -> None:
        check_range("length", length, "[3, inf)")
        super().__init__(n)
        self.length, self.horizon = length, 4 * length
        self.observation_space = gym.spaces.Box(0.0, 1.0, (length + 1,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self.place, self.key = np.full(n, length // 2), np.zeros(n, bool)

    def draw(self, rng: np.random.Generator) -> Array:
        return np.zeros(0)

    def start(self, where: Array, draws: Array) -> None:
        self.place[where], self.key[where] = self.length // 2, False

    def step(self, actions: Array) -> tuple[Array, Array]:
        self.place = np.clip(self.place + 2 * np.clip(actions, 0, 1) - 1, 0, self.length - 1)
        self.key = self.key | (self.place == 0)
        opened = self.key & (self.place == self.length - 1)
        return opened.astype(float), opened

    def observe(self) -> Array:
        return np.concatenate([np.eye(self.length)[self.place], self.key[:, None]], 1).astype(np.float32)

    def shapes(self, i: int) -> Sequence[Shape]:
        return cells(1, self.length, (0, self.place[i]), "gold" if self.key[i] else "peru")
