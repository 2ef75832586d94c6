"""A policy cannot act on what is no number, and learns nothing from a reward that is none."""

from __future__ import annotations

from typing import Any

import numpy as np
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper

from explore.errors import InputError


class Finite(VecEnvWrapper):
    """Environments whose observations and rewards are finite.

    Args:
        venv: what to wrap.
        name: of the environment, for messages.

    Raises:
        InputError: from `reset` and `step`, where they are not. The last observation of an episode may be anything,
            unless it was cut off: then a critic is asked about it.
    """

    def __init__(self, venv: VecEnv, name: str):
        super().__init__(venv)
        self._name = name

    def reset(self) -> Any:
        observations = self.venv.reset()
        self._check(observations, "an observation")
        return observations

    def step_wait(self) -> Any:
        observations, rewards, dones, infos = self.venv.step_wait()
        self._check(observations, "an observation")
        self._check(rewards, "a reward")
        for i in np.flatnonzero(dones):
            if infos[i].get("TimeLimit.truncated", False):
                self._check(infos[i]["terminal_observation"], "an observation")
        return observations, rewards, dones, infos

    def _check(self, values: Any, what: str) -> None:
        check_finite(values, what, self._name)


def check_finite(values: Any, what: str, name: str) -> None:
    """Refuse an array, or a dictionary of arrays, with a number that is not finite.

    Args:
        values: what an environment gave.
        what: it is called in the message.
        name: of the environment.

    Raises:
        InputError: naming both.
    """
    for value in values.values() if isinstance(values, dict) else [values]:
        if not np.isfinite(value).all():
            raise InputError(f"{name} gave {what} that is not finite, which no policy can learn from or act on")
