"""Batched Gymnasium environments as stable-baselines3 takes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from stable_baselines3.common.vec_env import VecEnv

from explore.core.errors import InputError
from explore.vime.spaces import Array


class BatchedVecEnv(VecEnv):
    """A `gymnasium.vector.VectorEnv` as stable-baselines3 takes it.

    Args:
        env: in autoreset mode SAME_STEP, the one that stable-baselines3 has.

    Raises:
        InputError: for another mode.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any]):
        if not same_step(env):
            raise InputError("stable-baselines3 resets in the same step; make the environment with SAME_STEP autoreset")
        self.env = env
        self._actions: Array | None = None
        super().__init__(env.num_envs, env.single_observation_space, env.single_action_space)

    def reset(self) -> Any:
        seeds = self._seeds if any(seed is not None for seed in self._seeds) else None
        observations, _ = self.env.reset(seed=cast(Any, seeds))
        self._reset_seeds()
        return observations

    def step_async(self, actions: Array) -> None:
        self._actions = actions

    def step_wait(self) -> Any:
        observations, rewards, terminated, truncated, found = self.env.step(self._actions)
        infos, last = _each(found, self.num_envs), _each(found.get("final_info", {}), self.num_envs)
        ended = terminated | truncated
        for i in np.flatnonzero(ended):
            infos[i] = last[i]  # of the step that ended the episode, not of the reset after it
            infos[i]["terminal_observation"] = found["final_obs"][i]
            infos[i]["TimeLimit.truncated"] = bool(truncated[i] and not terminated[i])
        return observations, rewards.astype(np.float32), ended, infos

    def close(self) -> None:
        self.env.close()

    def get_images(self) -> Sequence[Array | None]:
        return cast(Sequence[Array | None], self.env.render() or [None] * self.num_envs)

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [getattr(self.env, attr_name) for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        setattr(self.env, attr_name, value)

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        raise NotImplementedError("the environments are one object; call its methods on `env`")

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False for _ in self._get_indices(indices)]


def same_step(env: VectorEnv[Any, Any, Any]) -> bool:
    """Whether copies are reset in the step that ends their episode."""
    return env.metadata.get("autoreset_mode") == AutoresetMode.SAME_STEP


def _each(infos: dict[str, Any], n: int) -> list[dict[str, Any]]:
    """The infos of a vector environment, which says by masks whose they are, as those of its n environments."""
    each: list[dict[str, Any]] = [{} for _ in range(n)]
    for key, values in infos.items():
        if key.startswith("_") and key[1:] in infos or key in ("final_obs", "final_info"):
            continue
        parts = _each(values, n) if isinstance(values, dict) else values
        for i in np.flatnonzero(infos.get(f"_{key}", np.ones(n, bool))).tolist():
            each[i][key] = parts[i]
    return each
