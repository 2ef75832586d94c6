"""Environments built from settings, single or vectorised, with a check that observations and rewards are finite."""

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper, VecMonitor, VecNormalize

import explore.envs  # noqa: F401  (registers its environments)
from explore import registry
from explore.cli.rl.settings import OFF_POLICY, Settings
from explore.core.errors import InputError, shown
from explore.vime.sb3 import BatchedVecEnv

# Action and observation spaces that stable-baselines3 supports; observations may also be a Dict of these.
SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


def environment(settings: Settings, **more: Any) -> gym.Env[Any, Any]:
    """Make a single environment."""
    with refusals(f"cannot make {settings.env}"):
        env = gym.make(_spec(settings.env), **settings.env_kwargs, **more)
    observed = env.observation_space
    for part in [env.action_space, *(observed.spaces.values() if isinstance(observed, spaces.Dict) else [observed])]:
        if isinstance(part, spaces.Discrete | spaces.MultiDiscrete) and np.any(part.start):
            raise InputError(
                f"{settings.env} has a discrete space that starts at {np.ravel(part.start).tolist()}, but "
                "stable-baselines3 needs 0. Wrap it in gymnasium.wrappers.TransformAction or TransformObservation"
            )
        if not isinstance(part, SPACES):
            raise InputError(
                f"{settings.algo} refuses {settings.env}: spaces of type {type(part).__name__} are not supported; "
                "allowed: Box, Discrete, MultiDiscrete, MultiBinary, and a Dict of these as observation space"
            )
    return env


def environments(settings: Settings, copies: int) -> VecEnv:
    """Make a vector environment that records returns and lengths of episodes; prefer a batched version, if any."""
    spec = _spec(settings.env)
    if spec.vector_entry_point is not None:
        # Gymnasium's own support NEXT_STEP only, and raise TypeError.
        with refusals(f"cannot make {settings.env}"), contextlib.suppress(TypeError):
            env = gym.make_vec(
                spec, copies, vectorization_mode="vector_entry_point", autoreset_mode="SameStep",
                **settings.env_kwargs,
            )  # fmt: skip
            if env.metadata.get("autoreset_mode") == AutoresetMode.SAME_STEP:
                return Finite(VecMonitor(BatchedVecEnv(env)), settings)
            env.close()
    return Finite(make_vec_env(lambda: environment(settings), copies), settings)


@contextlib.contextmanager
def refusals(problem: str) -> Iterator[None]:
    """Re-raise errors from an environment's own code as `InputError`, after the problem."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{problem}: {type(error).__name__}: {error}") from error


def normalised(env: VecEnv) -> VecNormalize:
    """Wrap `env` to standardise observations by running moments. Rewards stay unscaled: the bonus is added to them."""
    space = env.observation_space
    for part in space.spaces.values() if isinstance(space, spaces.Dict) else [space]:
        if not isinstance(part, spaces.Box) or is_image_space(part):
            kind = "images" if isinstance(part, spaces.Box) else f"of type {type(part).__name__}"
            raise InputError(f"--vec-normalize needs vector observations, but these are {kind}. Leave it out")
    return VecNormalize(env, norm_reward=False)


def _spec(name: str) -> EnvSpec:
    module, colon, identifier = name.partition(":")
    try:
        if colon:
            importlib.import_module(module)
        return gym.spec(identifier if colon else name)
    except (ImportError, TypeError, ValueError, gym.error.Error) as error:
        raise InputError(
            f"unknown environment {shown(name)}: {registry.unimported(error)} (allowed: names of "
            "`explore list envs`, environments registered in Gymnasium, and module:ID)"
        ) from error


class Finite(VecEnvWrapper):
    """A vector environment that raises InputError for observations and rewards that are not finite.

    After a termination, the final observation is checked only off-policy: an on-policy critic never evaluates it.
    """

    def __init__(self, venv: VecEnv, settings: Settings):
        super().__init__(venv)
        self._name, self._off_policy = settings.env, settings.algo in OFF_POLICY

    def reset(self) -> Any:
        with _not_of_the_run(self._name):
            observations = self.venv.reset()
        check_finite(observations, "an observation", self._name)
        return observations

    def step_wait(self) -> Any:
        with _not_of_the_run(self._name):
            observations, rewards, dones, infos = self.venv.step_wait()
        check_finite(observations, "an observation", self._name)
        check_finite(rewards, "a reward", self._name)
        for i in np.flatnonzero(dones):
            if self._off_policy or infos[i].get("TimeLimit.truncated", False):
                check_finite(infos[i]["terminal_observation"], "an observation", self._name)
        return observations, rewards, dones, infos


@contextlib.contextmanager
def _not_of_the_run(name: str) -> Iterator[None]:
    """Re-raise an environment's OSError as a RuntimeError, because commands blame OSErrors on the run folder."""
    try:
        yield
    except OSError as error:
        raise RuntimeError(f"{name} failed: {type(error).__name__}: {error}") from error


def check_finite(values: Any, kind: str, name: str) -> None:
    """Raise InputError if an array, or an array in a dictionary, has a number that is not finite."""
    for value in values.values() if isinstance(values, dict) else [values]:
        if not np.isfinite(value).all():
            raise InputError(f"{name} returned {kind} with a number that is not finite. Correct the environment")
