"""Environments, algorithm and bonus from settings that JSON can hold."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import json
import math
import operator
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import make_dataclass
from typing import Any, Literal, cast

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from sb3_contrib import TRPO
from stable_baselines3 import PPO, SAC
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.vec_env import VecEnv, VecMonitor, VecNormalize

import explore.envs  # noqa: F401  (registers its environments)
from explore import registry
from explore.cli import problem
from explore.cli.problem import Settings
from explore.cli.rl_finite import Finite
from explore.errors import InputError, check_range, one_of, shown
from explore.vime.dynamics import Settings as Dynamics
from explore.vime.reward import Bonus, IntrinsicReward
from explore.vime.sb3 import BatchedVecEnv, VIMEReplayBuffer

ALGORITHMS: dict[str, type[BaseAlgorithm]] = {"trpo": TRPO, "ppo": PPO, "sac": SAC}
ACTIVATIONS = {"tanh": torch.nn.Tanh, "relu": torch.nn.ReLU, "elu": torch.nn.ELU}
# Options that are settings as they stand.
PLAIN = ("env", "algo", "posterior", "timesteps", "seed", "seeds", "vec_normalize", "eval_freq", "checkpoint_freq")
# Options of the bonus; -p vime.KEY sets the rest of it.
OWN = ("eta", "bonus", "normalise", "n_eff")
# What stable-baselines3 takes as actions and, alone or in a Dict, as observations.
SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
# What is set elsewhere, and a memory layout whose replay cannot be saved in part.
HIDDEN = {"policy", "env", "seed", "device", "verbose", "tensorboard_log", "optimize_memory_usage"}
POLICY = {"net_arch": tuple[int, ...], "activation": Literal["tanh", "relu", "elu"], "log_std_init": float}
# Where numbers of the algorithm may lie; stable-baselines3 itself checks few, and fails late or never.
RANGES = {
    **dict.fromkeys(("n_steps", "n_epochs", "batch_size", "train_freq", "buffer_size", "cg_max_steps"), "[1, 1e10]"),
    **dict.fromkeys(("gamma", "gae_lambda", "tau"), "[0, 1]"),
    "learning_rate": "[0, 1e10]", "net_arch": "[1, 100000]",
}  # fmt: skip
# How the critic's last layer begins. From zero a critic says 0 until there is a reward, as a baseline fitted to returns
# does; from stable-baselines3's orthogonal start its noise moves a policy that nothing has rewarded yet.
VALUE_INIT = {"value_init": Literal["orthogonal", "zero"]}


def resolve(options: Mapping[str, Any]) -> Settings:
    """The settings that command-line options ask for, every default filled in.

    Raises:
        InputError: for options that contradict each other, an unknown name or a value of the wrong type.
    """
    if options["env"] is None:
        raise InputError("give --env, an environment from `explore list envs` or any other of Gymnasium")
    copies = options["n_envs"] or (10 if options["algo"] == "trpo" else 1)
    settings = {"command": "rl"} | {name: options[name] for name in PLAIN}
    return settings | {
        "n_envs": copies,
        "env_kwargs": dict(_environment_argument(text) for text in options["env_kwargs"]),
        "algo_settings": _algorithm_settings(options, copies),
        "vime": _vime(options),
    }


def _environment_argument(text: str) -> tuple[str, Any]:
    key, colon, value = text.partition(":")
    if not (key and colon):
        raise InputError(f"--env-kwargs takes KEY:VALUE; got {shown(text)}")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def _algorithm_settings(options: Mapping[str, Any], copies: int) -> Settings:
    """Arguments of the algorithm's constructor that can be written as text, and of its policy."""
    cls = ALGORITHMS[options["algo"]]
    known = _arguments(cls)
    allowed = {name: hint for name, (hint, _) in known.items()} | POLICY
    if issubclass(cls, OnPolicyAlgorithm):
        allowed |= VALUE_INIT
    given = _parse(allowed, problem.parameters(options["algo_parameters"], "--algo-param"))
    for name, value in given.items():
        for number in value if isinstance(value, list) else [value]:
            if type(number) in (int, float):  # not bool
                check_range(f"--algo-param {name}", number, RANGES.get(name, "[-1e10, 1e10]"))
    found = {name: default for name, (_, default) in known.items()}
    if options["algo"] == "trpo":
        found |= _paper(given.get("n_steps", 5000 // copies) * copies, copies)
    if options["algo"] == "sac":  # more room than there are steps would only cost memory
        found["buffer_size"] = min(found["buffer_size"], options["timesteps"])
    return found | given


def _arguments(cls: type[BaseAlgorithm]) -> dict[str, tuple[Any, Any]]:
    """Type and default of the arguments of an algorithm that can be written as text."""
    return {
        name: (hint, parameter.default)
        for name, parameter in inspect.signature(cls).parameters.items()
        if name not in HIDDEN and not name.startswith("_") and (hint := _writable(parameter.annotation)) is not None
    }


def _paper(batch: int, copies: int) -> Settings:
    """TRPO as in VIME (Houthooft et al. 2016), but for the critic, which they did not have, and more damping."""
    return {
        "n_steps": batch // copies, "batch_size": min(500, batch), "gamma": 0.99, "gae_lambda": 1.0, "target_kl": 0.01,
        "cg_max_steps": 10, "cg_damping": 0.1, "line_search_shrinking_factor": 0.8, "line_search_max_iter": 15,
        "net_arch": [32], "activation": "tanh", "log_std_init": 0.0,
    }  # fmt: skip


def _writable(hint: Any) -> Any:
    """What of a type can be written as text; None: nothing."""
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    every = typing.get_args(hint) if union else (hint,)
    kept = [a for a in every if a in (int, float, bool, str)]
    return functools.reduce(operator.or_, [*kept, *(a for a in every if a is types.NoneType)]) if kept else None


def _parse(allowed: Mapping[str, Any], texts: list[tuple[str, str]]) -> Settings:
    """Typed values of texts; tuples as lists, as JSON will have them."""
    found = registry.parse(make_dataclass("Allowed", list(allowed.items())), texts)
    return {key: list(value) if isinstance(value, tuple) else value for key, value in found.items()}


def _vime(options: Mapping[str, Any]) -> Settings | None:
    """The arguments of `IntrinsicReward`; None: no bonus."""
    own = {name: options[name] for name in OWN if options[name] is not None}
    texts = problem.parameters(options["parameters"])
    if options["posterior"] == "none":
        if own or texts:
            first = "-p" if texts else "--" + next(iter(own)).replace("_", "-")
            raise InputError(f"--posterior none gives no bonus; leave out {first}")
        return None
    prefix = "vime."
    hints = registry.settings_of(Bonus) | registry.settings_of(Dynamics)
    if "n_eff" in own:
        own |= _parse({"n_eff": hints["n_eff"]}, [("n_eff", own["n_eff"])])
    allowed = {name: hint for name, hint in hints.items() if name not in OWN} | {"encoder": str}
    given = own | _parse(allowed, [(k.removeprefix(prefix), v) for k, v in texts if k.startswith(prefix)])
    if "interval" in given and options["algo"] != "sac":
        raise InputError(f"-p vime.interval has no effect with {options['algo']}, whose batches are its rollouts")
    cls = registry.find("posteriors", options["posterior"])
    settings = registry.parse(cls, [(k, v) for k, v in texts if not k.startswith(prefix)])

    encoder = {"encoder": given.pop("encoder")} if "encoder" in given else {}
    one = spaces.Box(0, 1, (1,))  # sizes do not matter for what the settings are
    made = IntrinsicReward(one, one, posterior=options["posterior"], posterior_settings=settings, **given)
    return problem.fields(made.bonus) | problem.fields(made.settings) | encoder | {
        "posterior": options["posterior"], "posterior_settings": problem.fields(made.dynamics.posterior),
    }  # fmt: skip


def environment(settings: Settings, **more: Any) -> gym.Env[Any, Any]:
    """A single environment.

    Raises:
        InputError: when there is none of that name, or it refuses its arguments.
    """
    with _refusals(settings["env"]):
        made = gym.make(_spec(settings["env"]), **settings["env_kwargs"], **more)
    observed = made.observation_space
    for part in [made.action_space, *(observed.spaces.values() if isinstance(observed, spaces.Dict) else [observed])]:
        if not isinstance(part, SPACES):
            raise InputError(
                f"{settings['algo']} refuses {settings['env']} or these settings: spaces of type {type(part).__name__} "
                "are not supported; allowed: Box, Discrete, MultiDiscrete, MultiBinary, and a Dict of them to observe"
            )
    return made


def environments(settings: Settings, copies: int) -> VecEnv:
    """Copies of the environment, with episodes monitored; batched where it can be.

    Raises:
        InputError: as `environment`.
    """
    spec = _spec(settings["env"])
    if spec.vector_entry_point is not None:
        with _refusals(settings["env"]), contextlib.suppress(TypeError):  # Gymnasium's own know NEXT_STEP alone
            made = gym.make_vec(
                spec, copies, vectorization_mode="vector_entry_point", autoreset_mode="SameStep",
                **settings["env_kwargs"],
            )  # fmt: skip
            return Finite(VecMonitor(BatchedVecEnv(made)), settings["env"])
    return Finite(make_vec_env(lambda: environment(settings), copies), settings["env"])


@contextlib.contextmanager
def _refusals(name: str) -> Iterator[None]:
    """Whatever an environment's own code says of its arguments, as wrong input."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"cannot make {name}: {type(error).__name__}: {error}") from error


def normalised(env: VecEnv) -> VecNormalize:
    """Observations in standard scores, with running moments.

    Not rewards: the bonus would stand beside a number whose scale moves.

    Raises:
        InputError: for observations other than vectors of numbers, alone or in a dictionary.
    """
    space = env.observation_space
    for part in space.spaces.values() if isinstance(space, spaces.Dict) else [space]:
        if not isinstance(part, spaces.Box) or is_image_space(part):
            what = "images" if isinstance(part, spaces.Box) else f"of type {type(part).__name__}"
            raise InputError(f"--vec-normalize takes vectors of numbers, and observations are {what}; leave it out")
    return VecNormalize(env, norm_reward=False)


def _spec(name: str) -> EnvSpec:
    module, colon, identifier = name.partition(":")
    try:
        if colon:
            importlib.import_module(module)
        return gym.spec(identifier if colon else name)
    except (ImportError, TypeError, ValueError, gym.error.Error) as error:
        raise InputError(
            f"unknown environment {shown(name)}: {error} (allowed: what `explore list envs` shows, "
            "what Gymnasium has registered, and module:ID)"
        ) from error


def algorithm(settings: Settings, env: VecEnv, bonus_seed: int, seed: int, device: str) -> BaseAlgorithm:
    """The algorithm with a fresh policy.

    Raises:
        InputError: when it refuses the environment or its settings.
    """
    own = dict(settings["algo_settings"])
    policy: dict[str, Any] = {name: own.pop(name) for name in POLICY if name in own}
    value_init = own.pop("value_init", "orthogonal")
    if unknown := own.keys() - (allowed := _arguments(ALGORITHMS[settings["algo"]])).keys():
        raise one_of(f"setting of {settings['algo']}", min(unknown), allowed)
    if "activation" in policy:
        policy["activation_fn"] = ACTIVATIONS[policy.pop("activation")]
    if settings["algo"] == "sac" and settings["vime"]:
        vime = {"seed": bonus_seed, **settings["vime"]}
        own |= {"replay_buffer_class": VIMEReplayBuffer, "replay_buffer_kwargs": vime}
    kind = "CnnPolicy" if is_image_space(env.observation_space) else "MlpPolicy"
    if isinstance(env.observation_space, spaces.Dict):
        kind = "MultiInputPolicy"
    try:
        model = ALGORITHMS[settings["algo"]](kind, env, policy_kwargs=policy or None, seed=seed, device=device, **own)
    except InputError:
        raise
    except (AssertionError, ValueError, TypeError, RuntimeError) as error:
        raise InputError(f"{settings['algo']} refuses {settings['env']} or these settings: {error}") from error
    if value_init == "zero":
        torch.nn.init.zeros_(cast(ActorCriticPolicy, model.policy).value_net.weight)  # its bias is zero
    return model


def intrinsic_reward(settings: Settings, env: VecEnv, seed: int, device: str) -> IntrinsicReward:
    """A fresh bonus."""
    return IntrinsicReward(env.observation_space, env.action_space, seed=seed, device=device, **settings["vime"])


def batch(settings: Settings) -> int:
    """Steps of an iteration: those between two updates of policy or, off-policy, of the dynamics model."""
    if issubclass(ALGORITHMS[settings["algo"]], OnPolicyAlgorithm):
        return int(settings["algo_settings"]["n_steps"] * settings["n_envs"])
    return int((settings["vime"] or {"interval": Bonus.interval})["interval"])


def unpaid(settings: Settings) -> str | None:
    """Why the bonus will be 0 throughout; None: it will not."""
    vime, steps = settings["vime"], batch(settings)
    if not vime:
        return None
    trained = math.ceil(vime["minimum"] / steps) * steps
    # On-policy the model pays whole batches that come after.
    taken = settings["timesteps"] if settings["algo"] == "sac" else math.ceil(settings["timesteps"] / steps) * steps - 1
    if taken >= trained:
        return None
    shorter = "-p vime.interval" if settings["algo"] == "sac" else "--algo-param n_steps"
    return (
        f"the dynamics model is first trained after {trained} steps of {settings['timesteps']}; raise --timesteps or "
        f"lower {shorter}" + (" and -p vime.minimum" if vime["minimum"] > steps else "")
    )


def derived(*keys: int) -> int:
    """A seed that SB3 takes; neighbours in the keys have nothing in common."""
    return int(np.random.SeedSequence(keys).generate_state(1)[0] >> 1)
