"""Environments, policy and bonus of a seed of `explore rl`: trained, evaluated, saved and restored."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from explore.cli.rl import model as models
from explore.cli.rl.callbacks import Iterations, Log, TimedVIME
from explore.cli.rl.environment import environments, normalised
from explore.cli.rl.settings import ALGORITHMS, POLICY, VALUE_INIT, Settings, arguments
from explore.core import files
from explore.core.errors import InputError, check_settings
from explore.vime.reward import IntrinsicReward
from explore.vime.sb3 import VIMEReplayBuffer

ACTIVATIONS = {"tanh": torch.nn.Tanh, "relu": torch.nn.ReLU, "elu": torch.nn.ELU}
EPISODES = 10  # of an evaluation
FORMAT = 1  # of the files of a checkpoint


def algorithm(settings: Settings, env: VecEnv, bonus_seed: int, seed: int, device: str) -> BaseAlgorithm:
    """Make the algorithm with a new policy, if it takes the environment and the settings."""
    types = {name: hint for name, (hint, _) in arguments(ALGORITHMS[settings.algo]).items()} | POLICY | VALUE_INIT
    check_settings(settings.algo, types, settings.algo_settings)
    keywords: dict[str, Any] = {k: list(v) if isinstance(v, tuple) else v for k, v in settings.algo_settings.items()}
    policy = {name: keywords.pop(name) for name in POLICY if name in keywords}
    value_init = keywords.pop("value_init", "orthogonal")
    if "activation" in policy:
        policy["activation_fn"] = ACTIVATIONS[policy.pop("activation")]
    if settings.algo == "sac" and settings.vime:
        vime = {"seed": bonus_seed, **settings.vime}
        keywords |= {"replay_buffer_class": VIMEReplayBuffer, "replay_buffer_kwargs": vime}
    kind = "CnnPolicy" if is_image_space(env.observation_space) else "MlpPolicy"
    if isinstance(env.observation_space, spaces.Dict):
        kind = "MultiInputPolicy"
    try:
        model = ALGORITHMS[settings.algo](kind, env, policy_kwargs=policy or None, seed=seed, device=device, **keywords)
    except InputError:
        raise
    except (AssertionError, ValueError, TypeError, RuntimeError) as error:
        raise InputError(f"{settings.algo} refuses {settings.env} or these settings: {error}") from error
    if value_init == "zero":
        torch.nn.init.zeros_(cast(ActorCriticPolicy, model.policy).value_net.weight)  # its bias is zero
    return model


def derived(*keys: int) -> int:
    """Return a seed for SB3; neighbouring keys give independent seeds."""
    return int(np.random.SeedSequence(keys).generate_state(1)[0] >> 1)


class Training:
    """The training of a seed on a device, continued from the checkpoint in `folder` of a run if there is one."""

    model: BaseAlgorithm  # with its policy
    bonus: IntrinsicReward | None = None

    def __init__(self, settings: Settings, seed: int, device: str, folder: Path | None = None, run: str = ""):
        self._settings, self._seed = settings, seed
        env = environments(settings, settings.n_envs)
        if settings.vec_normalize:
            env = normalised(env)
        self.model = algorithm(settings, env, seed, derived(seed, 0), device)
        self._timed: TimedVIME | None = None
        buffer = getattr(self.model, "replay_buffer", None)
        if isinstance(buffer, VIMEReplayBuffer):
            self.bonus = buffer.bonus
        elif settings.vime:
            vec_env = cast(VecEnv, self.model.get_env())  # which has the channels of images first
            keywords = {"seed": seed, "device": device, **settings.vime}
            self.bonus = IntrinsicReward(vec_env.observation_space, vec_env.action_space, **keywords)
            self._timed = TimedVIME(self.bonus)
        if folder:
            self._load(folder, run)

    def learn(self, number: int, on_log: Callable[..., None], **events: Callable[..., None]) -> None:
        """Train to the end, after `number` iterations; `events` are those of `Iterations`."""
        self.model.set_logger(Logger(None, [Log(on_log)]))
        each = Iterations(self._settings.batch, number, self.bonus, self._timed, **events)
        callbacks: list[BaseCallback] = [each, *([self._timed] if self._timed else [])]
        steps = self._settings.timesteps - self.model.num_timesteps
        self.model.learn(steps, callbacks, log_interval=None, reset_num_timesteps=False)  # type: ignore[arg-type]

    def evaluate(self) -> tuple[float, float]:
        """Return mean return and length of episodes without noise and bonus, from the same initial states each time."""
        env = environments(self._settings, min(EPISODES, self._settings.n_envs))
        normalise = self.model.get_vec_normalize_env()
        if normalise is not None:
            env = VecNormalize(env, training=False, norm_reward=False)
            env.obs_rms = normalise.obs_rms
        env.seed(derived(self._seed, 0, 1))
        returns, lengths = evaluate_policy(self.model, env, EPISODES, return_episode_rewards=True)
        env.close()
        return float(np.mean(returns)), float(np.mean(lengths))

    def save_policy(self, folder: Path, run: str = "") -> None:
        """Save the policy, with the id of the run, also in stable-baselines3's format."""
        files.save(folder / "model.pt", "model", FORMAT, models.state_dict(self.model), run)
        self.model.save(folder / "model.zip")
        normalise = self.model.get_vec_normalize_env()
        if normalise is not None:
            normalise.save(str(folder / "vecnormalize.pkl"))

    def save(self, folder: Path, run: str = "") -> None:
        """Save all that resuming needs."""
        self.save_policy(folder, run)
        if self.bonus is not None:
            files.save(folder / "bonus.pt", "bonus", FORMAT, self.bonus.state_dict(), run)
        if isinstance(self.model, OffPolicyAlgorithm):
            buffer = cast(ReplayBuffer, self.model.replay_buffer)
            files.save(folder / "replay_buffer.pt", "replay buffer", FORMAT, models.replay(buffer), run)

    def _load(self, folder: Path, run: str) -> None:
        with reading(folder / "model.pt", "model", run) as saved:
            models.load_state_dict(self.model, saved)
        # The seed of the start would repeat the same noise and episodes.
        self.model.set_random_seed(derived(self._seed, self.model.num_timesteps))
        if self.bonus is not None:
            with reading(folder / "bonus.pt", "bonus", run) as saved:
                self.bonus.load_state_dict(saved)
        if isinstance(self.model, OffPolicyAlgorithm):
            with reading(folder / "replay_buffer.pt", "replay buffer", run) as saved:
                models.load_replay(cast(ReplayBuffer, self.model.replay_buffer), saved)

    def close(self) -> None:
        """Close the environments."""
        cast(VecEnv, self.model.get_env()).close()


@contextmanager
def reading(path: Path, kind: str, run: str) -> Iterator[Any]:
    """Read a file written by `save`, of the run of this id; any reader error means the file is corrupt."""
    content = files.load(path, kind, FORMAT, run)
    try:
        yield content
    except Exception as error:
        reason = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
        reason = reason.partition("\n")[0][:300]
        raise InputError(f"{path} does not belong to this run: {reason}") from error
