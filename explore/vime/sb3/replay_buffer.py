"""VIME for off-policy algorithms: the bonus of a transition is computed when the transition is sampled."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.vec_env import VecNormalize
from stable_baselines3.her import HerReplayBuffer

from explore.core.errors import InputError
from explore.vime.reward import IntrinsicReward, Transitions
from explore.vime.sb3.wrappers import check_rewards
from explore.vime.spaces import Array


class _Rewards:
    """A view of stored rewards that records the index of the last access."""

    def __init__(self, rewards: Array):
        self._rewards = rewards
        self.where: Any = None

    def __getitem__(self, where: Any) -> Array:
        self.where = where
        return self._rewards[where]


class VIMEReplayBuffer(ReplayBuffer):
    """A replay buffer that adds the bonus, under the current dynamics model, to the rewards of sampled transitions.

    Arguments: those of `ReplayBuffer` except `optimize_memory_usage`; the `settings` of `IntrinsicReward`; and `seed`,
    the root of the bonus's random numbers (default: from NumPy's generator). Attribute `bonus`: the `IntrinsicReward`.
    VecNormalize must not normalise rewards, and clips the last observations of episodes at `clip_obs`.
    """

    _more: ClassVar[tuple[str, ...]] = ()  # names of further arguments

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: torch.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        *,
        seed: int | None = None,
        **settings: Any,
    ):
        name = type(self).__name__
        if isinstance(observation_space, spaces.Dict) and not isinstance(self, DictReplayBuffer):
            advice = "use VIMEDictReplayBuffer, flatten them, or use an on-policy algorithm (ppo, trpo)"
            raise InputError(f"{name} does not support Dict observations; {advice}")
        if isinstance(self, DictReplayBuffer) and not isinstance(observation_space, spaces.Dict):
            raise InputError(f"{name} supports Dict observations only; use VIMEReplayBuffer")
        if optimize_memory_usage:
            why = "it drops the last observations of episodes, which the bonus needs"
            raise InputError(f"optimize_memory_usage=True is not supported: {why}; leave it out")
        if {"n_steps", "gamma"} & settings.keys() - set(self._more):
            raise InputError(f"{name} does not support n_steps and gamma; use VIMENStepReplayBuffer")
        more = {key: settings.pop(key) for key in self._more if key in settings}
        super().__init__(
            buffer_size, observation_space, action_space, device=device, n_envs=n_envs,
            handle_timeout_termination=handle_timeout_termination, **more,
        )  # fmt: skip
        if seed is None:
            _, key, position, *_ = np.random.get_state()
            seed = int(np.random.SeedSequence([int(position), *map(int, key)]).generate_state(1)[0])
        self.bonus = IntrinsicReward(observation_space, action_space, seed=seed, device=self.device, **settings)
        if self.bonus.model.episodic:
            why = f"{self.bonus.settings.bonus} needs the episode so far, which sampled transitions do not have"
            raise InputError(f"{why}; use VIMEVecEnv, an on-policy algorithm, or another bonus")

    def add(self, obs: Any, next_obs: Any, action: Array, reward: Array, done: Array, infos: Any) -> None:
        super().add(obs, next_obs, action, reward, done, infos)
        self.bonus.saw(reward, done)
        vectors = self.bonus.observations
        self.bonus.step(Transitions(vectors.many(obs), self.bonus.actions.many(action), vectors.many(next_obs)))

    @contextmanager
    def _paying(self, where: Any = None) -> Iterator[None]:
        """Add bonuses to the rewards of sampled transitions `where` (None: those whose stored rewards are read)."""
        rewards, watched = self.rewards, _Rewards(self.rewards)
        watched.where = where
        self.rewards = watched  # type: ignore[assignment]
        try:
            yield
        finally:
            self.rewards = rewards

    def _get_samples(self, batch_inds: Array, env: VecNormalize | None = None) -> Any:
        with self._paying():
            return super()._get_samples(batch_inds, env)

    def _normalize_reward(  # type: ignore[override]  # a static method there, called on the buffer
        self, reward: Array, env: VecNormalize | None = None
    ) -> Array:
        check_rewards(env)  # they must not be scaled by a running deviation
        where = self.rewards.where  # type: ignore[attr-defined]
        bonus = self.bonus.scaled(self.bonus.score(self.stored(where))).reshape(reward.shape)
        return super()._normalize_reward(reward, env) + bonus.astype(np.float32)

    def stored(self, where: Any) -> Transitions:
        """Return the raw transitions at buffer index `where`; the dynamics model standardises them itself."""

        def rows(stored: Any) -> Any:
            if isinstance(stored, dict):
                return {key: rows(values) for key, values in stored.items()}
            return stored[where].reshape(-1, *stored.shape[2:])

        vectors = self.bonus.observations
        before, after = vectors.many(rows(self.observations)), vectors.many(rows(self.next_observations))
        return Transitions(before, self.bonus.actions.many(rows(self.actions)), after)


class VIMEDictReplayBuffer(VIMEReplayBuffer, DictReplayBuffer):
    """A `VIMEReplayBuffer` for observations that are dictionaries."""


class VIMENStepReplayBuffer(VIMEReplayBuffer, NStepReplayBuffer):
    """A `VIMEReplayBuffer` for n-step returns, with a bonus for each step. Further arguments: `n_steps` and `gamma`."""

    _more = ("n_steps", "gamma")


class VIMEHerReplayBuffer(VIMEDictReplayBuffer, HerReplayBuffer):
    """A `VIMEReplayBuffer` for hindsight experience replay. Transitions relabelled with a new goal keep their bonus."""

    _more = ("env", "n_sampled_goal", "goal_selection_strategy", "copy_info_dict")

    def _get_real_samples(self, batch_indices: Array, env_indices: Array, env: VecNormalize | None = None) -> Any:
        with self._paying():
            return super()._get_real_samples(batch_indices, env_indices, env)

    def _get_virtual_samples(self, batch_indices: Array, env_indices: Array, env: VecNormalize | None = None) -> Any:
        with self._paying((batch_indices, env_indices)):
            return super()._get_virtual_samples(batch_indices, env_indices, env)
