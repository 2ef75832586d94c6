"""One seed of `explore rl`: its environments, policy and bonus, trained, evaluated, saved and restored."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import KVWriter, Logger
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from explore import files
from explore.cli import rl_model, rl_problem
from explore.cli.problem import Settings
from explore.cli.rl_callbacks import Iterations, TimedVIME
from explore.errors import InputError
from explore.vime.reward import IntrinsicReward
from explore.vime.sb3 import VIMEReplayBuffer

EPISODES = 10  # of an evaluation
FORMAT = 1  # of the files of a checkpoint


class Training:
    """A seed.

    Args:
        settings: of the run.
        seed: root of all its random numbers.
        device: of policy and bonus.
        folder: a checkpoint to continue from; None: begin.

    Attributes:
        model: the algorithm with its policy.
        bonus: the intrinsic reward; None: there is none.
    """

    bonus: IntrinsicReward | None = None

    def __init__(self, settings: Settings, seed: int, device: str, folder: Path | None = None):
        self._settings, self._seed = settings, seed
        env = rl_problem.environments(settings, settings["n_envs"])
        if settings["vec_normalize"]:
            env = rl_problem.normalised(env)
        self.model = rl_problem.algorithm(settings, env, seed, rl_problem.derived(seed, 0), device)
        self._timed: TimedVIME | None = None
        buffer = getattr(self.model, "replay_buffer", None)
        if isinstance(buffer, VIMEReplayBuffer):
            self.bonus = buffer.bonus
        elif settings["vime"]:
            # The model's environments, which have the channels of images first.
            self.bonus = rl_problem.intrinsic_reward(settings, cast(VecEnv, self.model.get_env()), seed, device)
            self._timed = TimedVIME(self.bonus)
        if folder:
            self._load(folder)

    @property
    def batch(self) -> int:
        """Steps of an iteration."""
        return rl_problem.batch(self._settings)

    def learn(self, writer: KVWriter, number: int, **events: Callable[..., None]) -> None:
        """Train until the end, `number` iterations being done; `events` are those of `Iterations`."""
        self.model.set_logger(Logger(None, [writer]))
        callbacks: list[BaseCallback] = [Iterations(self.batch, number, self.bonus, self._timed, **events)]
        if self._timed is not None:
            callbacks.append(self._timed)
        left = self._settings["timesteps"] - self.model.num_timesteps
        self.model.learn(left, callbacks, log_interval=None, reset_num_timesteps=False)  # type: ignore[arg-type]

    def evaluate(self) -> tuple[float, float]:
        """Mean return and length of episodes without noise and bonus, from the same beginnings each time."""
        env = rl_problem.environments(self._settings, min(EPISODES, self._settings["n_envs"]))
        normalise = self.model.get_vec_normalize_env()
        if normalise is not None:
            env = VecNormalize(env, training=False, norm_reward=False)
            env.obs_rms = normalise.obs_rms
        env.seed(rl_problem.derived(self._seed, 0, 1))
        returns, lengths = evaluate_policy(self.model, env, EPISODES, return_episode_rewards=True)
        env.close()
        return float(np.mean(returns)), float(np.mean(lengths))

    def save_policy(self, folder: Path) -> None:
        """All that acting needs, and the same once more for stable-baselines3."""
        files.save(folder / "model.pt", "model", FORMAT, rl_model.state_dict(self.model))
        self.model.save(folder / "model.zip")
        normalise = self.model.get_vec_normalize_env()
        if normalise is not None:
            normalise.save(str(folder / "vecnormalize.pkl"))

    def save(self, folder: Path) -> None:
        """All that continuing needs."""
        self.save_policy(folder)
        if self.bonus is not None:
            files.save(folder / "bonus.pt", "bonus", FORMAT, self.bonus.state_dict())
        if isinstance(self.model, OffPolicyAlgorithm):
            buffer = cast(ReplayBuffer, self.model.replay_buffer)
            files.save(folder / "replay_buffer.pt", "replay buffer", FORMAT, rl_model.replay(buffer))

    def _load(self, folder: Path) -> None:
        with reading(folder / "model.pt", "model") as saved:
            rl_model.load_state_dict(self.model, saved)
        # Else the seed of the beginning would give the same noise and episodes again.
        self.model.set_random_seed(rl_problem.derived(self._seed, self.model.num_timesteps))
        if self.bonus is not None:
            with reading(folder / "bonus.pt", "bonus") as saved:
                self.bonus.load_state_dict(saved)
        if isinstance(self.model, OffPolicyAlgorithm):
            with reading(folder / "replay_buffer.pt", "replay buffer") as saved:
                rl_model.load_replay(cast(ReplayBuffer, self.model.replay_buffer), saved)

    def close(self) -> None:
        """Close the environments."""
        cast(VecEnv, self.model.get_env()).close()


@contextmanager
def reading(path: Path, kind: str) -> Iterator[Any]:
    """The content of a file that `save` wrote.

    Raises:
        InputError: when it is damaged, or none of this run's: whatever it makes of its readers, it is what is wrong.
    """
    content = files.load(path, kind, FORMAT)
    try:
        yield content
    except Exception as error:
        reason = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
        reason = reason.partition("\n")[0][:300]
        raise InputError(f"{path} does not belong to this run: {reason}") from error
