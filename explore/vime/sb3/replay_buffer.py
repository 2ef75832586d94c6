"""VIME for off-policy algorithms: the bonus of a transition is computed when it is sampled."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from stable_baselines3.common.vec_env import VecNormalize

from explore.errors import InputError
from explore.vime.bonus import Transitions
from explore.vime.reward import IntrinsicReward
from explore.vime.sb3.wrappers import check_rewards
from explore.vime.spaces import Array


class VIMEReplayBuffer(ReplayBuffer):
    """A replay buffer that adds the bonus when transitions are sampled: as much as the model would gain from them now.

    A bonus stored with the transition would be stale: what was new when it was seen may have been learnt since. Beside
    VecNormalize stable-baselines3 stores last observations of episodes as its `clip_obs` has left them. It gives single
    steps: `n_steps` of the algorithm has no effect beside it.

    Args:
        buffer_size: as in `ReplayBuffer`.
        observation_space: as in `ReplayBuffer`.
        action_space: as in `ReplayBuffer`.
        device: of the sampled tensors, and of the dynamics model.
        n_envs: as in `ReplayBuffer`.
        optimize_memory_usage: must be False, as it stores no observation that an episode ended with.
        handle_timeout_termination: as in `ReplayBuffer`.
        seed: root of the bonus's random numbers.
        settings: of `IntrinsicReward`.

    Attributes:
        bonus: the `IntrinsicReward`.

    Raises:
        InputError: for observations that are dictionaries, and with `optimize_memory_usage`; when it is sampled, beside
            a VecNormalize that normalises rewards.
    """

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
        seed: int = 0,
        **settings: Any,
    ):
        if isinstance(observation_space, spaces.Dict):
            raise InputError(
                "VIMEReplayBuffer takes no dictionaries of observations; flatten them, or take an on-policy algorithm "
                "(ppo, trpo)"
            )
        if optimize_memory_usage:
            raise InputError("optimize_memory_usage=True keeps no last observations of episodes; leave it out")
        super().__init__(
            buffer_size, observation_space, action_space, device, n_envs, optimize_memory_usage,
            handle_timeout_termination,
        )  # fmt: skip
        self.bonus = IntrinsicReward(observation_space, action_space, seed=seed, device=self.device, **settings)

    def add(self, obs: Array, next_obs: Array, action: Array, reward: Array, done: Array, infos: Any) -> None:
        super().add(obs, next_obs, action, reward, done, infos)
        self.bonus.step(self._transitions(obs, action, next_obs))

    def _get_samples(self, batch_inds: Array, env: VecNormalize | None = None) -> ReplayBufferSamples:
        samples = super()._get_samples(batch_inds)  # not normalised: the model has its own scale
        parts = (t.cpu().numpy() for t in (samples.observations, samples.actions, samples.next_observations))
        bonus = self.bonus.scaled(self.bonus.score(self._transitions(*parts)))
        check_rewards(env)
        rewards = self._normalize_reward(samples.rewards.cpu().numpy(), env)  # by what no longer moves
        fields = {"rewards": self.to_torch(rewards + bonus[:, None].astype(np.float32))}
        for name in ("observations", "next_observations"):
            fields[name] = self.to_torch(cast(Array, self._normalize_obs(getattr(samples, name).cpu().numpy(), env)))
        return samples._replace(**fields)

    def _transitions(self, observations: Array, actions: Array, following: Array) -> Transitions:
        vectors = self.bonus.observations
        return Transitions(vectors.many(observations), self.bonus.actions.many(actions), vectors.many(following))
