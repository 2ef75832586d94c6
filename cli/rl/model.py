"""Construction of stable-baselines3 algorithms from settings, and state dicts of tensors and plain values.

The files of stable-baselines3, model.zip and vecnormalize.pkl, are pickles, so reading one may execute code. The files
are written for users and never read here. To resume, an algorithm is constructed from settings and its state restored.
"""

from collections import deque
from collections.abc import Mapping
from operator import attrgetter
from typing import Any, cast

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor
from torch.optim import Optimizer

from explore.cli.rl.settings import ALGORITHMS, OFF_POLICY, POLICY, VALUE_INIT, Settings, arguments
from explore.core import tree
from explore.core.errors import InputError, check_settings
from explore.vime.sb3 import VIMEReplayBuffer

ACTIVATIONS = {"tanh": torch.nn.Tanh, "relu": torch.nn.ReLU, "elu": torch.nn.ELU}
COUNTS = ("num_timesteps", "_n_updates", "_episode_num", "_n_calls")  # the last one of DQN and QR-DQN
EPISODE = ("r", "l", "t")  # fields of the last episodes (return, length, time), which the log averages
ROWS = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")

Saved = Mapping[str, Any]


def algorithm(settings: Settings, env: VecEnv, bonus_seed: int, seed: int, device: str) -> BaseAlgorithm:
    """Construct the algorithm. Raise InputError if it does not support the environment or the settings."""
    types = {name: hint for name, (hint, _) in arguments(ALGORITHMS[settings.algo]).items()} | POLICY | VALUE_INIT
    check_settings(settings.algo, types, settings.algo_settings)
    keywords: dict[str, Any] = {k: list(v) if isinstance(v, tuple) else v for k, v in settings.algo_settings.items()}
    policy = {name: keywords.pop(name) for name in POLICY if name in keywords}
    value_init = keywords.pop("value_init", "orthogonal")
    if "activation" in policy:
        policy["activation_fn"] = ACTIVATIONS[policy.pop("activation")]
    if settings.algo in OFF_POLICY and settings.vime:
        vime = {"seed": bonus_seed, **settings.vime}
        keywords |= {"replay_buffer_class": VIMEReplayBuffer, "replay_buffer_kwargs": vime}
    kind = "CnnPolicy" if is_image_space(env.observation_space) else "MlpPolicy"
    if isinstance(env.observation_space, spaces.Dict):
        kind = "MultiInputPolicy"
    if settings.algo == "ppo_lstm":
        kind = kind.replace("Policy", "LstmPolicy")
    try:
        model = ALGORITHMS[settings.algo](kind, env, policy_kwargs=policy or None, seed=seed, device=device, **keywords)
    except InputError:
        raise
    except (AssertionError, ValueError, TypeError, RuntimeError) as error:
        raise InputError(f"{settings.algo} refuses {settings.env} or these settings: {error}") from error
    if value_init == "zero":
        torch.nn.init.zeros_(cast(ActorCriticPolicy, model.policy).value_net.weight)  # the bias is zero already
    return model


def derived(*keys: int) -> int:
    """Derive a seed for SB3 from integers; similar integers give independent seeds."""
    return int(np.random.SeedSequence(keys).generate_state(1)[0] >> 1)


def state_dict(model: BaseAlgorithm) -> dict[str, Any]:
    """Return the state needed to resume training, except the replay buffer."""
    optimisers, variables = _parts(model)
    episodes, successes = model.ep_info_buffer or (), model.ep_success_buffer or ()
    return {
        "policy": tree.save(dict(model.policy.state_dict())),
        "moments": tree.save({name: _tensors(rms) for name, rms in _moments(model).items()}),
        "optimisers": {name: tree.save(optimiser.state_dict()["state"]) for name, optimiser in optimisers.items()},
        "variables": tree.save(variables),
        "counts": {name: getattr(model, name) for name in COUNTS if hasattr(model, name)},
        "episodes": {name: torch.from_numpy(np.array([e[name] for e in episodes])) for name in EPISODE},
        "successes": torch.tensor([float(success) for success in successes], dtype=torch.float64),
    }


def load_policy(model: BaseAlgorithm, saved: Saved) -> None:
    """Restore the policy and VecNormalize's moments from a `state_dict`. Raise InputError if names or shapes differ."""
    model.policy.load_state_dict(tree.restore(dict(model.policy.state_dict()), saved["policy"]))
    moments = _moments(model)
    restored = tree.restore({name: _tensors(rms) for name, rms in moments.items()}, saved["moments"])
    for name, rms in moments.items():
        rms.mean, rms.var = (restored[name][part].numpy() for part in ("mean", "var"))
        rms.count = float(restored[name]["count"])


def load_state_dict(model: BaseAlgorithm, saved: Saved) -> None:
    """Restore the algorithm from a `state_dict`; environments start new episodes."""
    load_policy(model, saved)
    optimisers, variables = _parts(model)
    for name, optimiser in optimisers.items():
        _load_optimiser(optimiser, saved["optimisers"][name])
    for name, value in tree.restore(variables, saved["variables"]).items():
        variables[name].data.copy_(value)
    for name in saved["counts"].keys() & COUNTS:
        setattr(model, name, int(saved["counts"][name]))
    columns = [list(saved["episodes"][name].numpy()) for name in EPISODE]
    episodes = [dict(zip(EPISODE, values, strict=True)) for values in zip(*columns, strict=True)]
    model.ep_info_buffer = deque(episodes, maxlen=model._stats_window_size)
    model.ep_success_buffer = deque(saved["successes"].tolist(), maxlen=model._stats_window_size)


def replay(buffer: ReplayBuffer) -> dict[str, Tensor]:
    """Return name -> filled rows of a replay buffer, and its position `pos`. SB3's own file includes empty rows."""
    return tree.save(_rows(buffer, buffer.size())) | {"pos": torch.tensor(buffer.pos)}


def load_replay(buffer: ReplayBuffer, saved: Mapping[str, Tensor]) -> None:
    """Fill an empty buffer with saved transitions. Raise InputError if the transitions do not fit."""
    n, pos = len(saved["rewards"]), int(saved["pos"])
    if pos not in (range(buffer.buffer_size) if n == buffer.buffer_size else [n]):
        raise InputError(f"its replay buffer has {n} of {buffer.buffer_size} rows, but position {pos}")
    rows = _rows(buffer, n)
    for name, value in tree.restore(rows, {name: value for name, value in saved.items() if name != "pos"}).items():
        rows[name].copy_(value)
    buffer.pos, buffer.full = pos, n == buffer.buffer_size


def _parts(model: BaseAlgorithm) -> tuple[dict[str, Optimizer], dict[str, Tensor]]:
    """Return the optimisers, and the tensors outside the policy (such as SAC's log_ent_coef), by attribute name."""
    objects, variables = model._get_torch_save_params()
    optimisers = {name: attrgetter(name)(model) for name in objects if name != "policy"}
    return optimisers, {name: attrgetter(name)(model) for name in variables}


def _load_optimiser(optimiser: Optimizer, saved: Mapping[str, Tensor]) -> None:
    """Restore the state of Adam, or of A2C's RMSprop; the hyperparameters come from the settings."""
    parameters = [p for group in optimiser.param_groups for p in group["params"]]
    moments = ("exp_avg", "exp_avg_sq") if isinstance(optimiser, torch.optim.Adam) else ("square_avg",)
    like = {i: {"step": torch.zeros(())} | dict.fromkeys(moments, p) for i, p in enumerate(parameters)}
    stepped = {path.partition(".")[0] for path in saved}  # a parameter without a gradient has no state
    state = tree.restore({i: state for i, state in like.items() if str(i) in stepped}, saved)
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})


def _moments(model: BaseAlgorithm) -> dict[str, RunningMeanStd]:
    """Return name -> running moments of VecNormalize, or {} without VecNormalize."""
    env = model.get_vec_normalize_env()
    if env is None:
        return {}
    rms: Any = env.obs_rms
    parts = rms if isinstance(rms, dict) else {"": rms}
    return {f"observations/{key}": part for key, part in parts.items()} | {"rewards": env.ret_rms}


def _tensors(rms: RunningMeanStd) -> dict[str, Tensor]:
    values = {"mean": rms.mean, "var": rms.var, "count": rms.count}
    return {name: torch.from_numpy(np.array(value, float)) for name, value in values.items()}


def _rows(buffer: ReplayBuffer, n: int) -> dict[str, Tensor]:
    """Return name -> the first n rows of an array of the buffer, as a tensor that shares its memory."""
    arrays: dict[str, Any] = {}
    for name in ROWS:
        value: Any = getattr(buffer, name)
        arrays |= {f"{name}/{key}": v for key, v in value.items()} if isinstance(value, dict) else {name: value}
    return {name: torch.from_numpy(array[:n]) for name, array in arrays.items()}
