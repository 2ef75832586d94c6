"""One seed of `explore rl`: its environments, policy and bonus, trained, evaluated, saved and restored."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import KVWriter, Logger
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from explore.cli import rl_problem
from explore.cli.problem import Settings
from explore.cli.rl_callbacks import Iterations, TimedVIME
from explore.vime.reward import IntrinsicReward
from explore.vime.sb3 import VIMEReplayBuffer

EPISODES = 10  # of an evaluation


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
            env = rl_problem.normalised(env, folder / "vecnormalize.pkl" if folder else None)
        if folder:
            cls = rl_problem.ALGORITHMS[settings["algo"]]
            self.model = cls.load(folder / "model.zip", env, device)
            # Else the seed of the beginning would give the same noise and episodes again.
            self.model.set_random_seed(rl_problem.derived(seed, self.model.num_timesteps))
        else:
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
            if self.bonus is not None:
                self.bonus.load_state_dict(_read(folder / "bonus.pt"))
            if isinstance(buffer, ReplayBuffer):
                _fill(buffer, _read(folder / "replay_buffer.pt"))

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
        """All that acting needs."""
        self.model.save(folder / "model.zip")
        normalise = self.model.get_vec_normalize_env()
        if normalise is not None:
            normalise.save(str(folder / "vecnormalize.pkl"))

    def save(self, folder: Path) -> None:
        """All that continuing needs."""
        self.save_policy(folder)
        if self.bonus is not None:
            torch.save(self.bonus.state_dict(), folder / "bonus.pt")
        if isinstance(self.model, OffPolicyAlgorithm):
            torch.save(_filled(cast(ReplayBuffer, self.model.replay_buffer)), folder / "replay_buffer.pt")

    def close(self) -> None:
        """Close the environments."""
        cast(VecEnv, self.model.get_env()).close()


def _read(path: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    return found


def _filled(buffer: ReplayBuffer) -> dict[str, torch.Tensor]:
    """The transitions there are: SB3's own file has the empty rows too, mostly more than the full ones."""
    rows = {name: torch.from_numpy(array[: buffer.size()].copy()) for name, array in _arrays(buffer).items()}
    return rows | {"pos": torch.tensor(buffer.pos)}


def _fill(buffer: ReplayBuffer, saved: dict[str, torch.Tensor]) -> None:
    for name, array in _arrays(buffer).items():
        array[: len(saved[name])] = saved[name].numpy()
    buffer.pos = int(saved["pos"])
    buffer.full = len(saved["rewards"]) == buffer.buffer_size


def _arrays(buffer: ReplayBuffer) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    for name in ("observations", "next_observations", "actions", "rewards", "dones", "timeouts"):
        value: Any = getattr(buffer, name)
        parts = {f"{name}/{key}": v for key, v in value.items()} if isinstance(value, dict) else {name: value}
        found |= parts
    return found
