"""VIME around Gymnasium environments: rewards become r + eta * bonus.

    env = VIME(gym.make("explore/SparseMountainCar-v0"), posterior="noisy-kfac", eta=0.001)

The environment's own reward stays in `info["extrinsic_reward"]`; `info["intrinsic_reward"]` is what was added to it,
`info["intrinsic_raw"]` what that was before it was scaled; out of training both are 0. With the last step of an episode
come the sums over it, `info["extrinsic_return"]` and `info["intrinsic_return"]`. Experience comes step by step here, so
the model is trained after every `interval` steps, and the bonus of a step is divided by the level of the batches
before.
"""

from __future__ import annotations

from typing import Any, cast

import gymnasium as gym
import numpy as np
from gymnasium.utils import RecordConstructorArgs
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper

from explore.vime.reward import IntrinsicReward, Reward, Transitions
from explore.vime.spaces import Array

KEYS = ("extrinsic_reward", "intrinsic_reward", "intrinsic_raw")
RETURNS = ("extrinsic_return", "intrinsic_return")


class Sums:
    """Sums over the episodes of parallel environments."""

    def __init__(self, *shape: int):
        self._open = np.zeros(shape)

    def add(self, values: Array, ended: Array) -> Array:
        """The sums [..., n] with this step's values [..., n], after which those of episodes that `ended` begin anew."""
        sums = self._open + values
        self._open = sums
        self.begin(ended)
        return sums

    def begin(self, where: Array) -> None:
        """Begin the sums of these environments, a mask [n], anew."""
        self._open = np.where(where, 0.0, self._open)


class VIME(gym.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """One environment with an intrinsic reward.

    Args:
        env: what to wrap.
        seed: root of the bonus's random numbers; None: the first `reset(seed=...)` says it, else 0.
        settings: of `IntrinsicReward`, such as posterior, eta, bonus, normalise, n_eff, interval, posterior_settings,
            encoder, device. What JSON can hold stands in `env.spec`, so that `gym.make` can rebuild it.

    Attributes:
        training: set it to False for evaluation: rewards pass through, nothing is learnt, and no sums are told.
        bonus: the `IntrinsicReward`; its `state_dict` is all there is to save.
    """

    def __init__(self, env: gym.Env[Any, Any], *, seed: int | None = None, **settings: Any):
        RecordConstructorArgs.__init__(self, seed=seed, **settings)
        gym.Wrapper.__init__(self, env)
        self.bonus = IntrinsicReward(env.observation_space, env.action_space, seed=seed or 0, **settings)
        self.training = True
        self._seeded = seed is not None
        self._last: Array | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; the first seed is the bonus's too, if it has learnt nothing yet. What was learnt stays."""
        observation, info = self.env.reset(seed=seed, options=options)
        if seed is not None and not (self._seeded or self.bonus.replay.seen):
            self.bonus.seed(seed)
            self._seeded = True
        self._last = self.bonus.observations.one(observation)
        self._returns = Sums(2, 1)
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step, and add the bonus to the reward."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        assert self._last is not None, "Gymnasium's order: reset, then step"
        before, self._last = self._last, self.bonus.observations.one(observation)
        if not self.training:
            self._returns = Sums(2, 1)
            return observation, reward, terminated, truncated, info | _told(float(reward), 0.0, 0.0)
        found = self.bonus.step(Transitions(before, self.bonus.actions.one(action), self._last))
        own, raw, paid = float(reward), float(found.raw[0]), float(found.scaled[0])
        info = info | _told(own, paid, raw)
        ended = terminated or truncated
        sums = self._returns.add(np.array([[own], [paid]]), np.array([ended]))
        if ended:
            info |= dict(zip(RETURNS, sums[:, 0].tolist(), strict=True))
        return observation, own + paid, terminated, truncated, info


class VIMEVector(VectorWrapper[Any, Any, Any]):
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
    """

    def __init__(self, env: VectorEnv[Any, Any, Any], *, seed: int | None = None, **settings: Any):
        super().__init__(env)
        spaces = (env.single_observation_space, env.single_action_space)
        self.bonus = IntrinsicReward(*spaces, seed=seed or 0, **settings)
        self.training = True
        self._seeded = seed is not None
        self._mode = AutoresetMode(env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP))
        self._last: Array | None = None
        self._ended = np.zeros(env.num_envs, bool)  # by the last step
        self._returns = Sums(2, env.num_envs)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin episodes; the first seed is the bonus's too, if it has learnt nothing yet. What was learnt stays."""
        which = (options or {}).get("reset_mask", np.ones(self.num_envs, bool))  # the environment takes it out
        observations, infos = self.env.reset(seed=cast(Any, seed), options=options)
        first = seed if isinstance(seed, int) or seed is None else seed[0]
        if first is not None and not (self._seeded or self.bonus.replay.seen):
            self.bonus.seed(first)
            self._seeded = True
        self._last = self.bonus.observations.many(observations)
        self._ended = self._ended & ~which
        self._returns.begin(which)
        return observations, infos

    def step(self, actions: Any) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """Step, and add the bonus to the rewards."""
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        assert self._last is not None, "Gymnasium's order: reset, then step"
        before, self._last = self._last, self.bonus.observations.many(observations)
        reset, self._ended = self._ended, terminated | truncated
        every, raw, paid = np.ones(self.num_envs, bool), np.zeros(self.num_envs), np.zeros(self.num_envs)
        if not self.training:
            self._returns.begin(every)
            told = _told(np.asarray(rewards, float), paid, raw)
            return observations, rewards, terminated, truncated, _with(infos, told, every)
        following = self._last.copy()
        for i in np.flatnonzero(infos.get("_final_obs", np.zeros(self.num_envs, bool))):
            following[i] = self.bonus.observations.one(infos["final_obs"][i])[0]
        real = ~reset if self._mode == AutoresetMode.NEXT_STEP else every
        taken = Transitions(before[real], self.bonus.actions.many(actions)[real], following[real])
        found = self.bonus.step(taken) if real.any() else Reward(np.zeros(0), np.zeros(0))
        raw[real], paid[real] = found
        infos = _with(infos, _told(np.asarray(rewards, float), paid, raw), every)
        sums = self._returns.add(np.stack([rewards, paid]), self._ended)
        if self._ended.any():
            sums = np.where(self._ended, sums, 0.0)
            infos = _with(infos, dict(zip(RETURNS, sums, strict=True)), self._ended)
        return observations, rewards + paid, terminated, truncated, infos


def _told(extrinsic: Any, paid: Any, raw: Any) -> dict[str, Any]:
    return dict(zip(KEYS, (extrinsic, paid, raw), strict=True))


def _with(infos: dict[str, Any], values: dict[str, Any], where: Array) -> dict[str, Any]:
    """Values of the copies `where`, as vector environments tell them."""
    return infos | values | {f"_{key}": where for key in values}
