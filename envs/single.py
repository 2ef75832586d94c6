"""One environment as `gymnasium.Env`."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from explore.envs.render import Window, picture
from explore.envs.simulation import Array, simulate


class SimulationEnv(gym.Env[Array, Any]):
    """A simulation of one copy.

    Args:
        simulation: "module:Class" of a `Simulation`.
        render_mode: None, "rgb_array" or "human".
        settings: of the simulation.
    """

    metadata: dict[str, Any] = {"render_modes": ["human", "rgb_array"], "render_fps": 20}

    def __init__(self, simulation: str, render_mode: str | None = None, **settings: Any) -> None:
        self.simulation = simulate(simulation, 1, **settings)
        self.metadata = self.metadata | {"render_fps": self.simulation.frames_per_second}
        self.render_mode = render_mode
        self.observation_space = self.simulation.observation_space
        self.action_space = self.simulation.action_space
        self._window: Window | None = Window(self.simulation.frames_per_second) if render_mode == "human" else None
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        self.simulation.start(np.zeros(1, int), self.simulation.draw(self.np_random)[None])
        self._show()
        return self.simulation.observe()[0], {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        reward, terminated = self.simulation.step(np.asarray(action)[None])
        self._steps += 1
        self._show()
        observation = self.simulation.observe()[0]
        return observation, float(reward[0]), bool(terminated[0]), self._steps == self.simulation.horizon, {}

    def render(self) -> Any:
        return picture(self.simulation) if self.render_mode == "rgb_array" else None

    def close(self) -> None:
        if self._window:
            self._window.close()
            self._window = None

    def _show(self) -> None:
        if self._window:
            self._window.show(picture(self.simulation))
