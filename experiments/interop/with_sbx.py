"""Bonuses for the agents of sbx, stable-baselines3 in JAX: callback, wrapper and replay buffer.

    /tmp/interop/bin/python -m experiments.interop.with_sbx

For each agent and adapter the script asserts that the policy is the same with eta=0 as without a bonus, and another one
with eta=1.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import sbx
from stable_baselines3.common.env_util import make_vec_env

from explore.vime.sb3 import VIMECallback, VIMEReplayBuffer, VIMEVecEnv

SETTINGS: dict[str, Any] = {"minimum": 100, "updates": 5}
OFF = ("SAC", "TD3", "DDPG", "TQC", "CrossQ", "DQN")


def env(name: str) -> str:
    return "CartPole-v1" if name in ("PPO", "DQN") else "Pendulum-v1"


def by_callback(name: str, eta: float | None) -> Any:
    agent = getattr(sbx, name)("MlpPolicy", make_vec_env(env(name), 4, seed=1), n_steps=64, seed=1)
    return agent.learn(600, None if eta is None else VIMECallback(eta=eta, **SETTINGS))


def by_wrapper(name: str, eta: float | None) -> Any:
    copies: Any = make_vec_env(env(name), 4, seed=1)
    if eta is not None:
        copies = VIMEVecEnv(copies, eta=eta, interval=128, **SETTINGS)
    options = {"n_steps": 64} if name == "PPO" else {"learning_starts": 200}
    return getattr(sbx, name)("MlpPolicy", copies, seed=1, **options).learn(600)


def by_buffer(name: str, eta: float | None) -> Any:
    keywords = {"eta": eta, "interval": 100, "seed": 1, **SETTINGS}
    buffer = {} if eta is None else {"replay_buffer_class": VIMEReplayBuffer, "replay_buffer_kwargs": keywords}
    return getattr(sbx, name)("MlpPolicy", env(name), learning_starts=150, seed=1, **buffer).learn(300)


def parameters(agent: Any) -> np.ndarray:
    """Return all parameters of the actor (DQN: of the critic) as one array."""
    policy = agent.policy
    state = getattr(policy, "actor_state", None) or policy.qf_state
    return np.concatenate([np.asarray(leaf).ravel() for leaf in jax.tree.leaves(state.params)])


def check(name: str, way: Callable[[str, float | None], Any]) -> None:
    alone, nothing, paid = (parameters(way(name, eta)) for eta in (None, 0.0, 1.0))
    assert np.array_equal(alone, nothing), f"{name}, {way.__name__}: a bonus of 0 changes the policy"
    assert not np.array_equal(alone, paid), f"{name}, {way.__name__}: a bonus changes nothing"
    print(f"{name} {way.__name__}: ok")  # noqa: T201


def main() -> None:
    """Check all agents."""
    warnings.simplefilter("ignore")
    check("PPO", by_callback)
    for name in ("PPO", *OFF):
        check(name, by_wrapper)
    for name in OFF:
        check(name, by_buffer)


if __name__ == "__main__":
    main()
