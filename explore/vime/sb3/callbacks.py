"""Callbacks for stable-baselines3: VIME for on-policy algorithms, and logging for wrappers and replay buffers."""

import warnings
from typing import Any, cast

import numpy as np
import torch
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.utils import obs_as_tensor
from torch import Tensor

from explore.core.errors import InputError
from explore.vime.env_wrappers import RETURNS, Numbers, Sums, following
from explore.vime.reward import IntrinsicReward, Transitions
from explore.vime.sb3.wrappers import check_rewards, check_wrapped, last_observations
from explore.vime.spaces import Array


class Episodes(Sums):
    """Running sums that also store the total of each finished episode."""

    def __init__(self, environments: int):
        super().__init__(environments)
        self.finished: list[float] = []

    def add(self, values: Array, ended: Array) -> Array:
        sums = super().add(values, ended)
        self.finished += sums[ended].tolist()
        return sums

    def record(self, logger: Logger, tag: str) -> None:
        """Log, under `tag`, the mean total of the episodes that ended since the last call, if any."""
        if self.finished:
            logger.record(tag, float(np.mean(self.finished)))
        self.finished = []


class VIMELog(BaseCallback):
    """A callback that logs metrics of the bonus (tags `vime/*`) and, for a wrapper, mean returns (tags `rollout/*`)."""

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

    def _on_training_end(self) -> None:
        if not self._bonus.paid:
            bonus = self._bonus
            start = f"the batch of `interval` ({bonus.settings.interval}) transitions that brings the replay to"
            counts = f"`minimum` ({bonus.model_settings.minimum}); {bonus.replay.total} were stored"
            advice = "train longer, or lower `interval` or `minimum`"
            warnings.warn(f"the bonus was always 0: it starts after {start} {counts}; {advice}", stacklevel=2)


class VIMECallback(BaseCallback):
    """VIME for on-policy algorithms, in the order of the paper.

    After each rollout, the model, so far trained on earlier rollouts, scores the new transitions. The bonus is added to
    the rewards in the rollout buffer. Then returns and advantages are recomputed, and the model is trained on the
    rollout. At the start of training, InputError is raised if wrappers normalise rewards, or observations inside the
    environments, by running statistics.

    Args:
        bonus: an `IntrinsicReward` to continue with, or the name of a bonus for a new one; None: a new one with the
            default bonus.
        seed: root of the random numbers of a new bonus; None: the algorithm's seed, or 0 if it has none.
        settings: settings of a new `IntrinsicReward`, except `interval`.
    """

    bonus: IntrinsicReward

    def __init__(self, bonus: IntrinsicReward | str | None = None, *, seed: int | None = None, **settings: Any):
        super().__init__()
        if isinstance(bonus, str):
            settings["bonus"], bonus = bonus, None
        if bonus is not None and settings:
            raise InputError(f"{min(settings)} applies to a new bonus only; leave it out, or leave bonus out")
        if "interval" in settings:
            raise InputError("interval does not apply to VIMECallback, which learns after every rollout; leave it out")
        self._seed, self._settings = seed, settings
        if bonus is not None:
            self.bonus = bonus

    def _init_callback(self) -> None:
        if not isinstance(self.model, OnPolicyAlgorithm):
            other = "VIMEReplayBuffer" if isinstance(self.model, OffPolicyAlgorithm) else "VIMEVecEnv"
            raise InputError(f"VIMECallback is for on-policy algorithms; for {type(self.model).__name__} use {other}")
        env, normalise = self.training_env, self.model.get_vec_normalize_env()
        self._normalise = normalise
        if normalise is not None and normalise.observation_space != env.observation_space:
            inner = type(env).__name__
            raise InputError(f"{inner} changes observations outside VecNormalize; put VecNormalize around {inner}")
        check_rewards(normalise)
        check_wrapped(env)
        if not hasattr(self, "bonus"):
            space = env.observation_space if normalise is None else normalise.venv.observation_space
            seed = (self.model.seed or 0) if self._seed is None else self._seed
            self.bonus = IntrinsicReward(space, env.action_space, seed=seed, **self._settings)
        self._extrinsic, self._intrinsic = Episodes(env.num_envs), Episodes(env.num_envs)
        self._numbers = Numbers(env.num_envs)
        self._ends: dict[int, Any] = {}  # raw last observations of the episodes that ended in the last step

    def _on_training_start(self) -> None:
        self._paid = False
        if self._normalise is None:
            return
        inner = self._normalise.venv.step_wait

        def step_wait() -> Any:
            # VecNormalize clips last observations and does not store raw ones. A wrapper would do, but EvalCallback
            # expects the same wrappers around its own environments.
            step = inner()
            self._ends = last_observations(step[3])
            return step

        self._normalise.venv.step_wait = step_wait  # type: ignore[method-assign]

    def _on_training_end(self) -> None:
        if self._normalise is not None:
            vars(self._normalise.venv).pop("step_wait", None)
        if not self._paid:
            self._unpaid()

    def _unpaid(self) -> None:
        start = "it starts after the rollout that brings the stored transitions to `minimum`"
        warnings.warn(f"the bonus was always 0: {start}; train longer, or lower `minimum`", stacklevel=2)

    def _on_rollout_start(self) -> None:
        self._steps: list[tuple[Array, ...]] = []
        self._last = self._raw(self.model._last_obs)

    def _on_step(self) -> bool:
        dones = self.locals["dones"]
        before, self._last = self._last, self._raw(self.locals["new_obs"])
        ends = last_observations(self.locals["infos"]) if self._normalise is None else self._ends
        after = following(self.bonus.observations, self._last, ends)
        # Algorithms that support only discrete actions have no clipped ones.
        actions = self.bonus.actions.many(self.locals.get("clipped_actions", self.locals["actions"]))
        self._steps.append((before, actions, after, self._numbers.episodes(), dones.copy()))
        self._numbers.begin(dones)
        rewards = self._normalise.get_original_reward() if self._normalise else self.locals["rewards"]
        self.bonus.saw(rewards, dones)
        self._extrinsic.add(rewards, dones)
        return True

    def _raw(self, observations: Any) -> Array:
        """Return the current observations as vectors, without the normalisation of VecNormalize."""
        return self.bonus.observations.many(self._normalise.get_original_obs() if self._normalise else observations)

    def _last_values(self) -> Tensor:
        """Compute the critic's values of the observations after the rollout, which sb3_contrib does not provide."""
        policy: Any = self.model.policy
        if not hasattr(policy, "predict_values"):  # of sbx, stable-baselines3 in JAX
            seen, _ = policy.prepare_obs(self.locals["new_obs"])
            return torch.tensor(np.asarray(policy.predict_all(seen, policy.noise_key)[2]).flatten())
        observations = obs_as_tensor(self.locals["new_obs"], self.model.device)
        with torch.no_grad():
            if "lstm_states" not in self.locals:
                return cast(Tensor, policy.predict_values(observations))
            starts = torch.tensor(self.locals["dones"], dtype=torch.float32, device=self.model.device)
            return cast(Tensor, policy.predict_values(observations, self.locals["lstm_states"].vf, starts))

    def _on_rollout_end(self) -> None:
        *vectors, dones = (np.stack(part) for part in zip(*self._steps, strict=True))
        reward = self.bonus.batch(Transitions(*(part.reshape(-1, part.shape[2]) for part in vectors)))
        self._paid |= bool(reward.raw.any())
        scaled = reward.scaled.reshape(dones.shape)
        buffer: RolloutBuffer = self.locals["rollout_buffer"]
        buffer.rewards += scaled.astype(buffer.rewards.dtype)
        buffer.compute_returns_and_advantage(last_values=self._last_values(), dones=self.locals["dones"])
        for values, ended in zip(scaled, dones, strict=True):
            self._intrinsic.add(values, ended)
        self._extrinsic.record(self.logger, "rollout/ep_extrinsic_mean")
        self._intrinsic.record(self.logger, "rollout/ep_intrinsic_mean")
        for tag, value in self.bonus.metrics.items():
            self.logger.record(tag, value)
