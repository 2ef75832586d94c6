"""Simulations as Gymnasium environments: a single copy as `gymnasium.Env`, several copies as a `VectorEnv`."""

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from PIL import Image, ImageDraw

from explore.core.errors import InputError, one_of
from explore.envs.simulation import Array, Simulation, simulate

WIDTH, HEIGHT = 480, 320


def picture(simulation: Simulation, i: int = 0) -> Array:
    """Return a picture of copy `i` of a simulation, uint8 [320, 480, 3]."""
    x, y, half = simulation.view
    image = Image.new("RGB", (WIDTH, HEIGHT), "white")
    draw = ImageDraw.Draw(image)
    for points, fill in simulation.shapes(i):
        pixels = (points - (x, y)) * (1, -1) * (WIDTH / 2 / half) + (WIDTH / 2, HEIGHT / 2)
        corners = [tuple(p) for p in pixels.tolist()]
        if fill is None:
            draw.line(corners, "black", 2)
        else:
            draw.polygon(corners, fill, "black")
    return np.array(image)


class SimulationEnv(gym.Env[Array, Any]):
    """An environment with one copy of the simulation class `simulation`, "module:Class"; `settings` are its arguments.

    `gym.make(name, render_mode="human")` wraps the environment in Gymnasium's `HumanRendering`, which needs pygame.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 20}

    def __init__(self, simulation: str, render_mode: str | None = None, **settings: Any) -> None:
        self.simulation = simulate(simulation, 1, **settings)
        self.metadata = self.metadata | {"render_fps": self.simulation.frames_per_second}
        self.render_mode = render_mode
        self.observation_space = self.simulation.observation_space
        self.action_space = self.simulation.action_space
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        self.simulation.start(np.zeros(1, int), self.simulation.draw(self.np_random)[None])
        return self.simulation.observe()[0], {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        reward, terminated = self.simulation.step(np.asarray(action)[None])
        self._steps += 1
        observation = self.simulation.observe()[0]
        return observation, float(reward[0]), bool(terminated[0]), self._steps == self.simulation.horizon, {}

    def render(self) -> Any:
        return picture(self.simulation) if self.render_mode == "rgb_array" else None


MODES = (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP)


class SimulationVectorEnv(VectorEnv[Array, Any, Any]):
    """A vector environment of `num_envs` simulation copies, which behave like single environments with the same seeds.

    Autoreset mode NEXT_STEP: the step after the last step of an episode only resets the copy and ignores the action.
    SAME_STEP: the last step of an episode returns the observation after the reset; `info["final_obs"]` has the last
    observation of the episode.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}

    def __init__(
        self,
        simulation: str,
        num_envs: int = 1,
        max_episode_steps: int | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        render_mode: str | None = None,
        **settings: Any,
    ) -> None:
        if autoreset_mode not in (*MODES, *(mode.value for mode in MODES)):
            raise one_of("autoreset_mode", str(autoreset_mode), [mode.value for mode in MODES])
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise one_of("render_mode", str(render_mode), self.metadata["render_modes"])
        self.simulation = simulate(simulation, num_envs, **settings)
        self.num_envs, self.render_mode = num_envs, render_mode
        self._mode = AutoresetMode(autoreset_mode)
        self.metadata = self.metadata | {"autoreset_mode": self._mode, "render_fps": self.simulation.frames_per_second}
        self.single_observation_space = self.simulation.observation_space
        self.single_action_space = self.simulation.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        limits = [limit for limit in (max_episode_steps, self.simulation.horizon) if limit is not None]
        self._limit = min(limits, default=np.inf)
        self._steps, self._ended = np.zeros(num_envs, int), np.zeros(num_envs, bool)
        self._rngs: list[np.random.Generator] = []

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Reset all copies; an integer seed gives copy i the seed `seed + i`."""
        if seed is None:
            seeds: Sequence[int | None] = [None] * self.num_envs
        else:
            seeds = [seed + i for i in range(self.num_envs)] if isinstance(seed, int) else seed
        if len(seeds) != self.num_envs:
            raise InputError(f"got {len(seeds)} seeds for {self.num_envs} environments; pass one per environment")
        old: Sequence[np.random.Generator | None] = self._rngs or [None] * self.num_envs
        self._rngs = [rng if s is None and rng else seeding.np_random(s)[0] for s, rng in zip(seeds, old, strict=True)]
        self._begin(np.arange(self.num_envs))
        return self.simulation.observe(), {}

    def step(self, actions: Any) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        if not self._rngs:
            raise ResetNeeded("call reset before step")
        waiting = np.flatnonzero(self._ended)
        rewards, terminated = self.simulation.step(np.asarray(actions))
        rewards = np.asarray(rewards, np.float64)
        self._steps += 1
        truncated = self._steps >= self._limit
        if waiting.size:  # NEXT_STEP: this step resets them
            self._begin(waiting)
            rewards[waiting], terminated[waiting], truncated[waiting] = 0.0, False, False
        observations, infos = self.simulation.observe(), {}
        self._ended = terminated | truncated
        if self._mode == AutoresetMode.SAME_STEP and self._ended.any():
            where, last = np.flatnonzero(self._ended), np.full(self.num_envs, None, object)
            for i in where:
                last[i] = observations[i].copy()
            infos = {"final_obs": last, "_final_obs": self._ended, "final_info": {}, "_final_info": self._ended.copy()}
            self._begin(where)
            observations = self.simulation.observe()
        return observations, rewards, terminated, truncated, infos

    def render(self) -> tuple[Array, ...] | None:
        return tuple(picture(self.simulation, i) for i in range(self.num_envs)) if self.render_mode else None

    def _begin(self, where: Array) -> None:
        self.simulation.start(where, np.stack([self.simulation.draw(self._rngs[i]) for i in where]))
        self._steps[where], self._ended = 0, np.zeros(self.num_envs, bool)
