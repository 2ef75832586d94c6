"""VIME wrappers for Gymnasium environments: rewards become r + eta * bonus.

    env = VIME(gym.make("explore/SparseMountainCar-v0"))

Each `info` has "extrinsic_reward", "intrinsic_reward" (the bonus that was added) and "intrinsic_raw" (the bonus before
scaling). Outside training, the last two are 0. At the last step of an episode, `info` also has the sums over the
episode, "extrinsic_return" and "intrinsic_return". The model is trained after every batch of `interval` steps. Earlier
batches determine the divisor of the bonus.
"""

import itertools
import sys
from collections.abc import Iterable, Mapping, Sequence
from types import FrameType
from typing import Any, NoReturn, cast

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Space
from gymnasium.utils import RecordConstructorArgs
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.wrappers import NormalizeObservation, NormalizeReward, vector as vectorised
from jaxtyping import Float

from explore.core.errors import InputError
from explore.vime.reward import IntrinsicReward, Transitions
from explore.vime.spaces import Array, Vectors

KEYS = ("extrinsic_reward", "intrinsic_reward", "intrinsic_raw")
RETURNS = ("extrinsic_return", "intrinsic_return")


class Numbers:
    """The number of the current episode of each parallel environment; no two episodes have the same."""

    _unused = itertools.count()  # shared by all environments of this process

    def __init__(self, environments: int):
        self._now = np.zeros(environments, int)
        self.begin(np.ones(environments, bool))

    def begin(self, where: Array) -> None:
        """Begin new episodes in the environments of the mask `where` [n]."""
        self._now[where] = [next(self._unused) for _ in range(int(where.sum()))]

    def episodes(self) -> Array:
        """Return the index of each environment and the number of its episode, [n, 2]."""
        return np.stack([np.arange(len(self._now)), self._now], 1)


class Sums:
    """Running sums over the current episode of each parallel environment."""

    def __init__(self, *shape: int):
        self._open = np.zeros(shape)

    def add(self, values: Array, ended: Array) -> Array:
        """Add a step's values [..., n], and return the sums [..., n]. Then reset the sums of `ended` episodes to 0."""
        self._open = sums = self._open + values
        self.begin(ended)
        return sums

    def begin(self, where: Array) -> None:
        """Reset the sums to 0 in the environments of the mask `where` [n]."""
        self._open = np.where(where, 0.0, self._open)


class Stepwise:
    """The part of a wrapper that converts steps of n environment copies to transitions, which `bonus` learns from."""

    training = True

    def _prepare(self, spaces: tuple[Space[Any], Space[Any]], copies: int, seed: int | None, **settings: Any) -> None:
        """Create the bonus for these observations and actions of one copy."""
        self.bonus = IntrinsicReward(*spaces, seed=seed or 0, **settings)
        self._seeded = seed is not None
        self._last: Array | None = None
        self._returns, self._numbers = Sums(2, copies), Numbers(copies)

    def _seed_bonus(self, seed: int | None) -> None:
        """Seed the bonus with the environment's seed, unless the bonus already has a seed or transitions."""
        if seed is not None and not (self._seeded or self.bonus.replay.total):
            self.bonus.seed(seed)
            self._seeded = True

    def _begin(self, observations: Float[Array, "n O"], where: Array | bool = True) -> None:
        """Begin episodes with these observations, in the copies of the mask `where` [n] (True: all copies)."""
        self._last = observations
        self._returns.begin(np.asarray(where))
        self._numbers.begin(np.broadcast_to(where, len(observations)))

    def _pay(
        self,
        observations: Float[Array, "n O"],
        actions: Float[Array, "n A"],
        rewards: Any,
        ended: Array,
        *,
        ends: Mapping[int, Any],
        real: Array | None = None,
    ) -> tuple[Float[Array, " n"] | None, dict[str, Array]]:
        """Compute the bonus of a step, in which `actions` [n, A] led to `observations` [n, O].

        Return the bonus to add to the rewards, and the infos of this module, in the format of vector environments.

        `ends` has, for each copy that was reset, the last observation before the reset. `real` is a mask of copies that
        took a step (None: all). Without `training`, or in `evaluate_policy`, the bonus is None, nothing is learned,
        and the sums are reset.
        """
        assert self._last is not None, "reset, then step"
        before, self._last = self._last, observations
        n, every = len(observations), np.ones(len(observations), bool)
        extrinsic, raw, paid = np.asarray(rewards, float), np.zeros(n), np.zeros(n)
        if not self.training or is_evaluating():
            self._returns.begin(every)
            return None, _masked(KEYS, (extrinsic, paid, raw), every)
        real = every if real is None else real
        if real.any():
            self.bonus.saw(extrinsic[real], np.asarray(ended)[real])
            after = following(self.bonus.observations, observations, ends)
            episodes = self._numbers.episodes()[real]
            raw[real], paid[real] = self.bonus.step(Transitions(before[real], actions[real], after[real], episodes))
        self._numbers.begin(np.asarray(ended))
        returns = self._returns.add(np.stack([extrinsic, paid]), ended)
        infos = _masked(KEYS, (extrinsic, paid, raw), every)
        return paid, infos | _masked(RETURNS, np.where(ended, returns, 0.0), ended) if ended.any() else infos


def is_evaluating() -> bool:
    """Return whether stable-baselines3's `evaluate_policy` is running; calls by the algorithm ARS count as training."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_name != "evaluate_policy":
        frame = frame.f_back
    return frame is not None and (frame.f_back is None or frame.f_back.f_code.co_name != "evaluate_candidates")


def following(vectors: Vectors, current: Array, ends: Mapping[int, Any]) -> Array:
    """Return the next observations as vectors: `current` or, where an episode ended, its last observation in `ends`."""
    following = current.copy()
    for i, last in ends.items():
        following[i] = vectors.one(last)[0]
    return following


NORMALISING = NormalizeObservation, NormalizeReward, vectorised.NormalizeObservation, vectorised.NormalizeReward


class VIME(gym.Wrapper[Any, Any, Any, Any], RecordConstructorArgs, Stepwise):
    """An environment with an intrinsic reward; inner wrappers must not normalise by running statistics.

    Args:
        env: the environment.
        seed: root of the bonus's random numbers; None: the seed of the first `reset(seed=...)`, else 0.
        settings: arguments of `IntrinsicReward`. `env.spec` stores arguments that JSON supports, so that `gym.make` can
            rebuild the environment.

    Attributes:
        training: whether to add the bonus. Set it to False for evaluation: nothing is learned, no sums are reported.
            Steps of stable-baselines3's `evaluate_policy` in the same process always count as evaluation.
        bonus: the `IntrinsicReward`; only its `state_dict` needs to be saved.
    """

    def __init__(self, env: gym.Env[Any, Any], *, seed: int | None = None, **settings: Any):
        RecordConstructorArgs.__init__(self, seed=seed, **settings)
        gym.Wrapper.__init__(self, env)
        _check_scale(env)
        self._prepare((env.observation_space, env.action_space), 1, seed, **settings)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode. The bonus keeps its model and data; a bonus without seed and data takes this seed."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._seed_bonus(seed)
        self._begin(self.bonus.observations.one(observation))
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take a step, and add the bonus to the reward."""
        taken = self.bonus.actions.one(action)
        observation, reward, terminated, truncated, info = self.env.step(action)
        after, ended = self.bonus.observations.one(observation), np.array([terminated or truncated])
        paid, infos = self._pay(after, taken, [float(reward)], ended, ends={})
        if paid is not None:
            reward = float(reward) + float(paid[0])
        return observation, reward, terminated, truncated, info | info_of(infos, 0)

    def compute_reward(self, *_: Any) -> NoReturn:
        """Raise InputError, since rewards that `HerReplayBuffer` recomputes for other goals would have no bonus."""
        refuse_relabelling("VIME")


class VIMEVector(VectorWrapper, Stepwise):
    """A vector environment with an intrinsic reward, like `VIME`; one model learns from all copies.

    Steps that only reset a copy get no bonus and are not used for training.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any], *, seed: int | None = None, **settings: Any):
        super().__init__(env)
        _check_scale(env)
        self._prepare((env.single_observation_space, env.single_action_space), env.num_envs, seed, **settings)
        self._mode = AutoresetMode(env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP))
        self._ended = np.zeros(env.num_envs, bool)  # by the last step

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin episodes. The bonus keeps its model and data; a bonus without seed and data takes the first seed."""
        which = (options or {}).get("reset_mask", np.ones(self.num_envs, bool))  # the environment removes it
        observations, infos = self.env.reset(seed=cast(Any, seed), options=options)
        self._seed_bonus(seed if isinstance(seed, int) or seed is None else seed[0])
        self._begin(self.bonus.observations.many(observations, self.num_envs), which)
        self._ended = self._ended & ~which
        return observations, infos

    def step(self, actions: Any) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """Take a step, and add the bonus to the rewards."""
        taken = self.bonus.actions.many(actions, self.num_envs)
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        reset, self._ended = self._ended, terminated | truncated
        after = self.bonus.observations.many(observations, self.num_envs)
        ends = {i: infos["final_obs"][i] for i in np.flatnonzero(infos.get("_final_obs", False)).tolist()}
        real = ~reset if self._mode == AutoresetMode.NEXT_STEP else None
        paid, ours = self._pay(after, taken, rewards, self._ended, ends=ends, real=real)
        return observations, rewards if paid is None else rewards + paid, terminated, truncated, infos | ours


def _check_scale(env: Any) -> None:
    """Raise InputError for wrappers that change the scale of observations or rewards during training."""
    while isinstance(env, gym.Wrapper | VectorWrapper):
        if isinstance(env, NORMALISING) and env.update_running_mean:
            refuse_moving(type(env).__name__)
        env = env.env
    if isinstance(env, SyncVectorEnv):
        for single in env.envs:
            _check_scale(single)
    elif isinstance(env, AsyncVectorEnv) and any(env.call("has_wrapper_attr", "update_running_mean")):
        if any(env.get_attr("update_running_mean")):  # of the outermost such wrapper; inner ones are not accessible
            refuse_moving("the normalising wrapper")


def refuse_relabelling(name: str) -> NoReturn:
    """Raise InputError, since recomputed rewards would lose the bonus of the wrapper `name`."""
    raise InputError(f"HerReplayBuffer recomputes rewards without the bonus; use VIMEHerReplayBuffer instead of {name}")


def refuse_moving(name: str) -> NoReturn:
    """Raise InputError, since the wrapper `name` normalises by running statistics inside a VIME wrapper."""
    raise InputError(f"the bonus needs raw observations and rewards; put {name} around it, not inside")


def _masked(keys: Sequence[str], values: Iterable[Array], where: Array) -> dict[str, Array]:
    """Return infos of the copies in the mask `where`, in the format of vector environments."""
    return dict(zip(keys, values, strict=True)) | {f"_{key}": where for key in keys}


def info_of(infos: Mapping[str, Array], copy: int) -> dict[str, float]:
    """Return the `info` dictionary of one copy, from the infos of all."""
    return {key: float(infos[key][copy]) for key in KEYS + RETURNS if f"_{key}" in infos and infos[f"_{key}"][copy]}
