"""VIME for stable-baselines3: batched environments, a wrapper, a callback for on-policy algorithms, a replay buffer.

    model = TRPO("MlpPolicy", env)
    model.learn(500_000, VIMECallback(posterior="noisy-kfac", eta=0.001))      # PPO, TRPO, A2C: the paper's order
    SAC("MlpPolicy", env, replay_buffer_class=VIMEReplayBuffer, replay_buffer_kwargs={"eta": 0.001})
    env = VIMEVecEnv(env, eta=0.001)                                           # any algorithm: step by step
    PPO("MlpPolicy", env).learn(500_000, VIMELog(env.bonus))

`rollout/ep_rew_mean` is the environment's own return in all of them, as long as episodes are monitored inside of the
bonus: `make_vec_env` does so; for `VIME` around a single environment, `monitored` does.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, cast

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer, RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import is_wrapped
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from stable_baselines3.common.utils import obs_as_tensor
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper, VecNormalize
from torch import Tensor

from explore.errors import InputError
from explore.vime.batched import BatchedVecEnv as BatchedVecEnv
from explore.vime.env_wrappers import KEYS, RETURNS, VIME, Sums
from explore.vime.reward import IntrinsicReward, RolloutBonus, Transitions
from explore.vime.spaces import Array


class Episodes(Sums):
    """Sums that remember what they were when episodes ended."""

    def __init__(self, environments: int):
        super().__init__(environments)
        self.finished: list[float] = []

    def add(self, values: Array, ended: Array) -> Array:
        sums = super().add(values, ended)
        self.finished += sums[ended].tolist()
        return sums

    def record(self, logger: Logger, tag: str) -> None:
        """Log the mean over the episodes that have ended since the last call, if there are any."""
        if self.finished:
            logger.record(tag, float(np.mean(self.finished)))
        self.finished = []


class VIMEVecEnv(VecEnvWrapper):
    """Environments whose rewards have the bonus in them, for any algorithm; the model learns every `interval` steps.

    Put it around the raw environments, and VecNormalize around it: the other way round the bonus would be beside a
    reward whose scale moves.

    Args:
        venv: what to wrap.
        seed: root of the bonus's random numbers.
        training: False for evaluation: rewards pass through, and nothing is learnt.
        settings: of `IntrinsicReward`.

    Attributes:
        training: may be changed at any time.
        bonus: the `IntrinsicReward`; its `state_dict` is all there is to save.
    """

    def __init__(self, venv: VecEnv, *, seed: int = 0, training: bool = True, **settings: Any):
        super().__init__(venv)
        self.bonus = IntrinsicReward(venv.observation_space, venv.action_space, seed=seed, **settings)
        self.training = training
        self._last: Array | None = None
        self._actions: Array | None = None

    def reset(self) -> Any:
        observations = self.venv.reset()
        self._last = self.bonus.observations.many(observations)
        self._returns = Sums(2, self.num_envs)
        return observations

    def step_async(self, actions: Array) -> None:
        self._actions = np.array(actions)
        self.venv.step_async(actions)

    def step_wait(self) -> Any:
        observations, rewards, dones, infos = self.venv.step_wait()
        assert self._last is not None, "reset, then step"
        before, self._last = self._last, self.bonus.observations.many(observations)
        if not self.training:
            self._returns = Sums(2, self.num_envs)
            own = [dict(zip(KEYS, (float(reward), 0.0, 0.0), strict=True)) for reward in rewards]
            return observations, rewards, dones, [info | told for info, told in zip(infos, own, strict=True)]
        following = _following(self.bonus, self._last, _last_observations(infos))
        found = self.bonus.step(Transitions(before, self.bonus.actions.many(self._actions), following))
        shown = zip(rewards.tolist(), found.scaled.tolist(), found.raw.tolist(), strict=True)
        infos = [info | dict(zip(KEYS, values, strict=True)) for info, values in zip(infos, shown, strict=True)]
        sums = self._returns.add(np.stack([rewards, found.scaled]), dones)
        for i in np.flatnonzero(dones):
            infos[i] |= dict(zip(RETURNS, sums[:, i].tolist(), strict=True))
        return observations, rewards + found.scaled.astype(rewards.dtype), dones, infos


class VIMECallback(BaseCallback):
    """VIME for on-policy algorithms, in the order of the paper.

    When a rollout is complete, its transitions are scored by the model of the rollouts before, the bonus is added to
    the rewards of the rollout buffer, returns and advantages are computed anew, and the model learns.

    Args:
        bonus: to continue with, or one of your own, a `RolloutBonus`; None: a fresh `IntrinsicReward`.
        seed: root of a fresh one's random numbers.
        settings: of `IntrinsicReward`, for a fresh one.

    Attributes:
        bonus: the bonus; the `state_dict` of an `IntrinsicReward` is all there is to save.

    Raises:
        InputError: for settings beside a bonus, which has its own.
    """

    bonus: Any  # of the type that was given; `RolloutBonus` is what is relied on

    def __init__(self, bonus: RolloutBonus | None = None, *, seed: int = 0, **settings: Any):
        super().__init__()
        if bonus is not None and settings:
            raise InputError(f"{min(settings)} is a setting of a fresh bonus; the one given has its own")
        self._settings = {"seed": seed, **settings}
        if bonus is not None:
            self.bonus = bonus

    def _init_callback(self) -> None:
        if not isinstance(self.model, OnPolicyAlgorithm):
            raise InputError(
                f"VIMECallback is for on-policy algorithms; for {type(self.model).__name__} use VIMEReplayBuffer"
            )
        env, normalise = self.training_env, self.model.get_vec_normalize_env()
        if normalise is not None and normalise.observation_space != env.observation_space:
            raise InputError(
                f"{type(env).__name__} around VecNormalize changes the observations, of which VecNormalize keeps the "
                "raw ones; put VecNormalize around it"
            )
        if not hasattr(self, "bonus"):
            space = env.observation_space if normalise is None else normalise.venv.observation_space
            self.bonus = IntrinsicReward(space, env.action_space, **self._settings)
        self._extrinsic, self._intrinsic = Episodes(env.num_envs), Episodes(env.num_envs)
        self._ends: dict[int, Any] = {}  # raw last observations of the episodes that the last step has ended

    def _on_training_start(self) -> None:
        self._paid = False
        normalise = self.model.get_vec_normalize_env()
        if normalise is None:
            return
        inner = normalise.venv.step_wait

        def step_wait() -> Any:
            # VecNormalize clips last observations and keeps none; another wrapper would part it from those that
            # EvalCallback compares it with.
            found = inner()
            self._ends = _last_observations(found[3])
            return found

        normalise.venv.step_wait = step_wait  # type: ignore[method-assign]

    def _on_training_end(self) -> None:
        normalise = self.model.get_vec_normalize_env()
        if normalise is not None:
            vars(normalise.venv).pop("step_wait", None)
        if not self._paid:
            self._unpaid()

    def _unpaid(self) -> None:
        warnings.warn(
            "the bonus was 0 throughout: it is paid after a rollout with which `minimum` transitions are stored",
            stacklevel=2,
        )

    def _on_rollout_start(self) -> None:
        self._steps: list[tuple[Array, ...]] = []
        self._last = self._raw(self.model._last_obs)

    def _on_step(self) -> bool:
        normalise, dones = self.model.get_vec_normalize_env(), self.locals["dones"]
        before, self._last = self._last, self._raw(self.locals["new_obs"])
        ends = _last_observations(self.locals["infos"]) if normalise is None else self._ends
        following = _following(self.bonus, self._last, ends)
        # Algorithms of discrete actions alone clip none.
        actions = self.bonus.actions.many(self.locals.get("clipped_actions", self.locals["actions"]))
        self._steps.append((before, actions, following, dones.copy()))
        self._extrinsic.add(normalise.get_original_reward() if normalise else self.locals["rewards"], dones)
        return True

    def _raw(self, observations: Any) -> Array:
        """The observations of now as vectors, as they were before any normalisation."""
        normalise = self.model.get_vec_normalize_env()
        return self.bonus.observations.many(normalise.get_original_obs() if normalise else observations)

    def _last_values(self) -> Tensor:
        """What the critic says of the observations that follow the rollout.

        Algorithms of sb3_contrib do not tell callbacks.
        """
        policy: Any = self.model.policy
        observations = obs_as_tensor(self.locals["new_obs"], self.model.device)
        with torch.no_grad():
            if "lstm_states" not in self.locals:
                return cast(Tensor, policy.predict_values(observations))
            starts = torch.tensor(self.locals["dones"], dtype=torch.float32, device=self.model.device)
            return cast(Tensor, policy.predict_values(observations, self.locals["lstm_states"].vf, starts))

    def _on_rollout_end(self) -> None:
        observations, actions, following, dones = (np.stack(part) for part in zip(*self._steps, strict=True))
        found = self.bonus.batch(
            Transitions(*(part.reshape(-1, part.shape[2]) for part in (observations, actions, following)))
        )
        self._paid |= bool(found.raw.any())
        scaled = found.scaled.reshape(dones.shape)
        buffer: RolloutBuffer = self.locals["rollout_buffer"]
        buffer.rewards += scaled.astype(buffer.rewards.dtype)
        buffer.compute_returns_and_advantage(last_values=self._last_values(), dones=self.locals["dones"])
        for values, ended in zip(scaled, dones, strict=True):
            self._intrinsic.add(values, ended)
        self._extrinsic.record(self.logger, "rollout/ep_extrinsic_mean")
        self._intrinsic.record(self.logger, "rollout/ep_intrinsic_mean")
        for tag, value in self.bonus.metrics.items():
            self.logger.record(tag, value)


class VIMELog(BaseCallback):
    """Logs a bonus that a wrapper or a replay buffer pays: its `vime/` tags, and episodes' returns without and with it.

    Args:
        bonus: of `VIME`, `VIMEVecEnv` or `VIMEReplayBuffer`.
    """

    def __init__(self, bonus: IntrinsicReward):
        super().__init__()
        self._bonus = bonus
        self._returns: dict[str, list[float]] = {key: [] for key in RETURNS}

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            for key, values in self._returns.items():
                values += [info[key]] if key in info else []
        return True

    def _on_rollout_end(self) -> None:
        for tag, value in self._bonus.metrics.items():
            self.logger.record(tag, value)
        for key, values in self._returns.items():
            if values:
                self.logger.record(f"rollout/ep_{key.removesuffix('_return')}_mean", float(np.mean(values)))
            values.clear()


class VIMEReplayBuffer(ReplayBuffer):
    """A replay buffer that adds the bonus when transitions are sampled: as much as the model would gain from them now.

    A bonus stored with the transition would be stale: what was new when it was seen may have been learnt since. Beside
    VecNormalize stable-baselines3 stores last observations of episodes as its `clip_obs` has left them.

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
        InputError: for observations that are dictionaries, and with `optimize_memory_usage`.
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
            raise InputError("VIMEReplayBuffer takes no dictionaries of observations; flatten them first")
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
        rewards = self._normalize_reward(samples.rewards.cpu().numpy(), env)
        fields = {"rewards": self.to_torch(rewards + bonus[:, None].astype(np.float32))}
        for name in ("observations", "next_observations"):
            fields[name] = self.to_torch(cast(Array, self._normalize_obs(getattr(samples, name).cpu().numpy(), env)))
        return samples._replace(**fields)

    def _transitions(self, observations: Array, actions: Array, following: Array) -> Transitions:
        vectors = self.bonus.observations
        return Transitions(vectors.many(observations), self.bonus.actions.many(actions), vectors.many(following))


def monitored(env: gym.Env[Any, Any] | str, **settings: Any) -> VIME:
    """`VIME` around an environment whose episodes are monitored inside, so that ep_rew_mean is without the bonus.

    Stable-baselines3 puts a Monitor around everything that has none inside, which would count the bonus too.
    """
    made = gym.make(env) if isinstance(env, str) else env
    return VIME(made if is_wrapped(made, Monitor) else Monitor(made), **settings)


def _last_observations(infos: Sequence[dict[str, Any]]) -> dict[int, Any]:
    return {i: info["terminal_observation"] for i, info in enumerate(infos) if "terminal_observation" in info}


def _following(bonus: RolloutBonus, current: Array, ends: Mapping[int, Any]) -> Array:
    """The true next observations as vectors: where an episode has ended its last one, not the first of the next."""
    following = current.copy()
    for i, last in ends.items():
        following[i] = bonus.observations.one(last)[0]
    return following
