"""Environments of stable-baselines3 whose rewards have the bonus in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import gymnasium as gym
import numpy as np
from stable_baselines3.common.env_util import is_wrapped
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper, VecNormalize, unwrap_vec_normalize

from explore.core.errors import InputError
from explore.vime.env_wrappers import NORMALISING, VIME, refuse_moving, refuse_relabelling
from explore.vime.spaces import Array
from explore.vime.stepwise import Stepwise


class VIMEVecEnv(VecEnvWrapper):
    """Environments whose rewards have the bonus in them, for any algorithm; the model learns every `interval` steps.

    Put it around the raw environments, and VecNormalize around it: the other way round the bonus would be beside a
    reward whose scale moves, and the model would see observations whose scale does.

    Args:
        venv: what to wrap.
        seed: root of the bonus's random numbers; None: the first `seed(...)` gives it, as an algorithm's seed does,
            else 0.
        training: False for evaluation: rewards pass through, and nothing is learnt. So do steps of `evaluate_policy`,
            and of `EvalCallback`, which calls it.
        settings: of `IntrinsicReward`.

    Attributes:
        training: may be changed at any time.
        bonus: the `IntrinsicReward`; its `state_dict` is all there is to save.

    Raises:
        InputError: for what normalises inside; when `HerReplayBuffer` computes rewards, which would have no bonus.
    """

    def __init__(self, venv: VecEnv, *, seed: int | None = None, training: bool = True, **settings: Any):
        if unwrap_vec_normalize(venv) is not None:
            raise InputError(
                "VIMEVecEnv takes observations and rewards as the environment gives them; put VecNormalize around it, "
                "not inside"
            )
        check_wrapped(venv)
        super().__init__(venv)
        self._stepwise = Stepwise(venv.observation_space, venv.action_space, venv.num_envs, seed, **settings)
        self.bonus = self._stepwise.bonus
        self.training = training
        self._actions: Array | None = None

    def reset(self) -> Any:
        observations = self.venv.reset()
        self._stepwise.begin(self.bonus.observations.many(observations, self.num_envs))
        return observations

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """Seed the environments, and the bonus if it has no seed yet and has learnt nothing."""
        seeds = self.venv.seed(seed)
        self._stepwise.seed(seed)
        return seeds

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        """Call a method of the environments; `compute_reward` is refused, whose rewards have no bonus."""
        if method_name == "compute_reward":
            refuse_relabelling("VIMEVecEnv")
        return self.venv.env_method(method_name, *args, indices=indices, **kwargs)

    def step_async(self, actions: Array) -> None:
        self._actions = self.bonus.actions.many(actions, self.num_envs)
        self.venv.step_async(actions)

    def step_wait(self) -> Any:
        observations, rewards, dones, infos = self.venv.step_wait()
        paid = self._stepwise.step(
            self.bonus.observations.many(observations, self.num_envs), cast(Array, self._actions), rewards, dones,
            ends=last_observations(infos), training=self.training,
        )  # fmt: skip
        infos = [info | paid.info(i) for i, info in enumerate(infos)]
        # Rewards that are whole numbers would cut the bonus off.
        kind = rewards.dtype if np.issubdtype(rewards.dtype, np.floating) else np.float32
        return observations, (rewards + paid.intrinsic).astype(kind), dones, infos


def monitored(env: gym.Env[Any, Any] | str, **settings: Any) -> VIME:
    """`VIME` around an environment whose episodes are monitored inside, so that ep_rew_mean is without the bonus.

    Stable-baselines3 puts a Monitor around everything that has none inside, which would count the bonus too.
    """
    made = gym.make(env) if isinstance(env, str) else env
    return VIME(made if is_wrapped(made, Monitor) else Monitor(made), **settings)


def check_wrapped(venv: VecEnv) -> None:
    """Refuse single environments whose wrappers normalise by statistics that still move."""
    for kind in NORMALISING:
        for i in np.flatnonzero(venv.env_is_wrapped(cast(Any, kind))).tolist():
            if venv.get_attr("update_running_mean", i)[0]:
                refuse_moving(kind.__name__)


def check_rewards(normalise: VecNormalize | None) -> None:
    """Refuse a bonus beside rewards that are divided by a deviation which still moves."""
    if normalise is not None and normalise.norm_reward and normalise.training:
        raise InputError(
            "VecNormalize divides rewards by a deviation that moves, and the bonus would not be; give it "
            "norm_reward=False, or put it around VIMEVecEnv, for it to divide both"
        )


def last_observations(infos: Sequence[dict[str, Any]]) -> dict[int, Any]:
    """The observations that episodes have just ended with, by environment."""
    return {i: info["terminal_observation"] for i, info in enumerate(infos) if "terminal_observation" in info}
