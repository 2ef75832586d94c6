"""VIME around Gymnasium environments: rewards become r + eta * bonus.

    env = VIME(gym.make("explore/SparseMountainCar-v0"), posterior="noisy-kfac", eta=0.001)

The environment's own reward stays in `info["extrinsic_reward"]`; `info["intrinsic_reward"]` is what was added to it,
`info["intrinsic_raw"]` the same before scaling; outside training both are 0. With the last step of an episode
come the sums over it, `info["extrinsic_return"]` and `info["intrinsic_return"]`. Experience comes step by step here, so
the model is trained after every `interval` steps, and the bonus of a step is divided by the level of the batches
before.
"""

from __future__ import annotations

from typing import Any, NoReturn, cast

import gymnasium as gym
import numpy as np
from gymnasium.utils import RecordConstructorArgs
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.wrappers import NormalizeObservation, NormalizeReward
from gymnasium.wrappers import vector as vectorised

from explore.core.errors import InputError
from explore.vime.spaces import Array
from explore.vime.stepwise import KEYS, RETURNS, Stepwise

NORMALISING = NormalizeObservation, NormalizeReward, vectorised.NormalizeObservation, vectorised.NormalizeReward


class VIME(gym.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """One environment with an intrinsic reward.

    Args:
        env: what to wrap.
        seed: root of the bonus's random numbers; None: the first `reset(seed=...)` says it, else 0.
        settings: of `IntrinsicReward`, such as posterior, eta, bonus, normalise, n_eff, interval, posterior_settings,
            encoder, device. What JSON can hold stands in `env.spec`, so that `gym.make` can rebuild it.

    Attributes:
        training: set it to False for evaluation: rewards pass through, nothing is learnt, and no sums are told. A step
            of stable-baselines3's `evaluate_policy` in the same process is one of evaluation in any case.
        bonus: the `IntrinsicReward`; its `state_dict` is all there is to save.

    Raises:
        InputError: for a wrapper inside that normalises by statistics which still move.
    """

    def __init__(self, env: gym.Env[Any, Any], *, seed: int | None = None, **settings: Any):
        RecordConstructorArgs.__init__(self, seed=seed, **settings)
        gym.Wrapper.__init__(self, env)
        _check_scale(env)
        self._stepwise = Stepwise(env.observation_space, env.action_space, 1, seed, **settings)
        self.bonus = self._stepwise.bonus
        self.training = True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; the first seed is the bonus's too, if it has learnt nothing yet. What was learnt stays."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._stepwise.seed(seed)
        self._stepwise.begin(self.bonus.observations.one(observation))
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step, and add the bonus to the reward."""
        taken = self.bonus.actions.one(action)
        observation, reward, terminated, truncated, info = self.env.step(action)
        paid = self._stepwise.step(
            self.bonus.observations.one(observation), taken, [float(reward)],
            np.array([terminated or truncated]), ends={}, training=self.training,
        )  # fmt: skip
        told = paid.info(0)
        if paid.training:
            reward = told["extrinsic_reward"] + told["intrinsic_reward"]
        return observation, reward, terminated, truncated, info | told

    def compute_reward(self, *_: Any) -> NoReturn:
        """Refuse to compute rewards of other goals, as `HerReplayBuffer` does: they have no bonus."""
        refuse_relabelling("VIME")


class VIMEVector(VectorWrapper):
    """A vector environment with an intrinsic reward; one model learns from all copies.

    Steps that only reset a copy (autoreset mode NEXT_STEP) are no transitions: they get no bonus and are not learnt
    from. In mode SAME_STEP the true last observation is taken from `info["final_obs"]`.

    Args:
        env: what to wrap.
        seed: as for `VIME`.
        settings: as for `VIME`.

    Attributes:
        training: as for `VIME`.
        bonus: as for `VIME`.

    Raises:
        InputError: as for `VIME`.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any], *, seed: int | None = None, **settings: Any):
        super().__init__(env)
        _check_scale(env)
        self._stepwise = Stepwise(env.single_observation_space, env.single_action_space, env.num_envs, seed, **settings)
        self.bonus = self._stepwise.bonus
        self.training = True
        self._mode = AutoresetMode(env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP))
        self._ended = np.zeros(env.num_envs, bool)  # by the last step

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin episodes; the first seed is the bonus's too, if it has learnt nothing yet. What was learnt stays."""
        which = (options or {}).get("reset_mask", np.ones(self.num_envs, bool))  # the environment takes it out
        observations, infos = self.env.reset(seed=cast(Any, seed), options=options)
        self._stepwise.seed(seed if isinstance(seed, int) or seed is None else seed[0])
        self._stepwise.begin(self.bonus.observations.many(observations, self.num_envs), which)
        self._ended = self._ended & ~which
        return observations, infos

    def step(self, actions: Any) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """Step, and add the bonus to the rewards."""
        taken = self.bonus.actions.many(actions, self.num_envs)
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        reset, self._ended = self._ended, terminated | truncated
        paid = self._stepwise.step(
            self.bonus.observations.many(observations, self.num_envs), taken, rewards, self._ended,
            ends={i: infos["final_obs"][i] for i in np.flatnonzero(infos.get("_final_obs", False)).tolist()},
            training=self.training, real=~reset if self._mode == AutoresetMode.NEXT_STEP else None,
        )  # fmt: skip
        infos = _with(infos, dict(zip(KEYS, paid[:3], strict=True)), np.ones(self.num_envs, bool))
        if paid.ended.any():
            infos = _with(infos, dict(zip(RETURNS, np.where(paid.ended, paid.returns, 0.0), strict=True)), paid.ended)
        return observations, rewards + paid.intrinsic if paid.training else rewards, terminated, truncated, infos


def _check_scale(env: Any) -> None:
    """The model would learn from observations, and the bonus be beside rewards, whose scale moves."""
    while isinstance(env, gym.Wrapper | VectorWrapper):
        if isinstance(env, NORMALISING) and env.update_running_mean:
            refuse_moving(type(env).__name__)
        env = env.env
    if isinstance(env, SyncVectorEnv):
        for single in env.envs:
            _check_scale(single)
    elif isinstance(env, AsyncVectorEnv) and any(env.call("has_wrapper_attr", "update_running_mean")):
        if any(
            env.get_attr("update_running_mean")
        ):  # of the outermost that has it: the others cannot be seen from here
            refuse_moving("what normalises")


def refuse_relabelling(name: str) -> NoReturn:
    """Refuse to compute rewards anew, which then have no bonus."""
    raise InputError(
        f"HerReplayBuffer computes rewards anew, without the bonus; use VIMEHerReplayBuffer in place of {name}"
    )


def refuse_moving(name: str) -> NoReturn:
    """Refuse a wrapper inside that normalises by statistics which still move."""
    raise InputError(f"the bonus takes what the environment itself gives; put {name} around it, not inside")


def _with(infos: dict[str, Any], values: dict[str, Any], where: Array) -> dict[str, Any]:
    """Values of the copies `where`, as vector environments tell them."""
    return infos | values | {f"_{key}": where for key in values}
