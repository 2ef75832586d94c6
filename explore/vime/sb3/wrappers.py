"""Environments for stable-baselines3: vector environments of Gymnasium, and rewards that include the bonus."""

from collections.abc import Sequence
from typing import Any, cast

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from stable_baselines3.common.env_util import is_wrapped
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper, VecNormalize, unwrap_vec_normalize

from explore.core.errors import InputError
from explore.vime.env_wrappers import NORMALISING, VIME, Stepwise, info_of, refuse_moving, refuse_relabelling
from explore.vime.spaces import Array


class VIMEVecEnv(VecEnvWrapper, Stepwise):
    """A `VecEnv` whose rewards include the bonus, for any algorithm; arguments and attributes as in `VIME`.

    The algorithm's seed also seeds the bonus. VecNormalize belongs around this wrapper, not inside.
    """

    def __init__(self, venv: VecEnv, *, seed: int | None = None, training: bool = True, **settings: Any):
        if unwrap_vec_normalize(venv) is not None:
            raise InputError("VIMEVecEnv needs raw observations and rewards; put VecNormalize around it, not inside")
        check_wrapped(venv)
        super().__init__(venv)
        self._prepare((venv.observation_space, venv.action_space), venv.num_envs, seed, **settings)
        self.training = training
        self._actions: Array | None = None

    def reset(self) -> Any:
        observations = self.venv.reset()
        self._begin(self.bonus.observations.many(observations, self.num_envs))
        return observations

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """Seed the environments, and also the bonus if the bonus has no seed and no data yet."""
        seeds = self.venv.seed(seed)
        self._seed_bonus(seed)
        return seeds

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        """Call a method of the environments. Raise InputError for `compute_reward`, whose rewards have no bonus."""
        if method_name == "compute_reward":
            refuse_relabelling("VIMEVecEnv")
        return self.venv.env_method(method_name, *args, indices=indices, **kwargs)

    def step_async(self, actions: Array) -> None:
        self._actions = self.bonus.actions.many(actions, self.num_envs)
        self.venv.step_async(actions)

    def step_wait(self) -> Any:
        observations, rewards, dones, infos = self.venv.step_wait()
        after, ends = self.bonus.observations.many(observations, self.num_envs), last_observations(infos)
        paid, ours = self._pay(after, cast(Array, self._actions), rewards, dones, ends=ends)
        infos = [info | info_of(ours, i) for i, info in enumerate(infos)]
        # Integer rewards would truncate the bonus.
        kind = rewards.dtype if np.issubdtype(rewards.dtype, np.floating) else np.float32
        return observations, (rewards if paid is None else rewards + paid).astype(kind), dones, infos


def monitored(env: gym.Env[Any, Any] | str, **settings: Any) -> VIME:
    """Wrap an environment in `Monitor` and then in `VIME`, so that ep_rew_mean does not include the bonus."""
    env = gym.make(env) if isinstance(env, str) else env
    return VIME(env if is_wrapped(env, Monitor) else Monitor(env), **settings)


def check_wrapped(venv: VecEnv) -> None:
    """Raise InputError if wrappers of single environments normalise by running statistics."""
    for kind in NORMALISING:
        for i in np.flatnonzero(venv.env_is_wrapped(cast(Any, kind))).tolist():
            if venv.get_attr("update_running_mean", i)[0]:
                refuse_moving(kind.__name__)


def check_rewards(normalise: VecNormalize | None) -> None:
    """Raise InputError if VecNormalize would divide rewards, but not the bonus, by a running standard deviation."""
    if normalise is not None and normalise.norm_reward and normalise.training:
        advice = "set norm_reward=False, or put VecNormalize around VIMEVecEnv to scale both"
        raise InputError(f"VecNormalize scales rewards by a running standard deviation, but not the bonus; {advice}")


def last_observations(infos: Sequence[dict[str, Any]]) -> dict[int, Any]:
    """Return the last observation of each episode that just ended, by the index of its environment."""
    return {i: info["terminal_observation"] for i, info in enumerate(infos) if "terminal_observation" in info}


class BatchedVecEnv(VecEnv):
    """A stable-baselines3 `VecEnv` that wraps a `gymnasium.vector.VectorEnv` in autoreset mode SAME_STEP."""

    def __init__(self, env: VectorEnv[Any, Any, Any]):
        if env.metadata.get("autoreset_mode") != AutoresetMode.SAME_STEP:
            raise InputError(
                "stable-baselines3 needs autoreset in the step that ends an episode; give autoreset_mode='SameStep' to "
                "gymnasium.make_vec for environments of explore, for others AutoresetMode.SAME_STEP in vector_kwargs"
            )
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
        observations, rewards, terminated, truncated, batched = self.env.step(self._actions)
        infos, last = _each(batched, self.num_envs), _each(batched.get("final_info", {}), self.num_envs)
        ended = terminated | truncated
        for i in np.flatnonzero(ended):
            infos[i] = last[i]  # of the step that ended the episode, not of the reset after it
            infos[i]["terminal_observation"] = batched["final_obs"][i]
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
        raise NotImplementedError(
            "`env_method` is not supported: BatchedVecEnv wraps one Gymnasium vector environment. Call the method on "
            "`.env`, that vector environment."
        )

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False for _ in self._get_indices(indices)]


def _each(infos: dict[str, Any], n: int) -> list[dict[str, Any]]:
    """Split the infos of a vector environment, which include masks, into one dictionary per environment."""
    each: list[dict[str, Any]] = [{} for _ in range(n)]
    for key, values in infos.items():
        if key.startswith("_") and key[1:] in infos or key in ("final_obs", "final_info"):
            continue
        parts = _each(values, n) if isinstance(values, dict) else values
        for i in np.flatnonzero(infos.get(f"_{key}", np.ones(n, bool))).tolist():
            each[i][key] = parts[i]
    return each
