"""The step that pays, for n copies of an environment: what the wrappers of all libraries have in common."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from jaxtyping import Bool, Float

from explore.vime.bonus import Transitions
from explore.vime.reward import IntrinsicReward
from explore.vime.spaces import Array, Vectors

KEYS = ("extrinsic_reward", "intrinsic_reward", "intrinsic_raw")
RETURNS = ("extrinsic_return", "intrinsic_return")


class Sums:
    """Sums over the episodes of parallel environments."""

    def __init__(self, *shape: int):
        self._open = np.zeros(shape)

    def add(self, values: Array, ended: Array) -> Array:
        """The sums [..., n] with this step's values [..., n], after which those of `ended` episodes restart."""
        sums = self._open + values
        self._open = sums
        self.begin(ended)
        return sums

    def begin(self, where: Array) -> None:
        """Restart the sums of these environments, a mask [n]."""
        self._open = np.where(where, 0.0, self._open)


class Paid(NamedTuple):
    """The rewards of a step."""

    extrinsic: Float[Array, " n"]  # the environment's own reward
    intrinsic: Float[Array, " n"]  # what is added to it
    raw: Float[Array, " n"]  # the bonus before it was scaled
    returns: Float[Array, "2 n"]  # sums of the first two over the episodes so far
    ended: Bool[Array, " n"]  # the copies whose returns are final, and told
    training: bool  # whether the step was paid and learnt from

    def info(self, copy: int) -> dict[str, float]:
        """The entries of one copy's `info`."""
        told = {key: float(values[copy]) for key, values in zip(KEYS, self[:3], strict=True)}
        if self.ended[copy]:
            told |= dict(zip(RETURNS, self.returns[:, copy].tolist(), strict=True))
        return told


class Stepwise:
    """Turns the steps of n copies into transitions, which one bonus scores and learns from.

    Args:
        observation_space: of one copy.
        action_space: of one copy.
        copies: n.
        seed: root of the bonus's random numbers; None: `seed` says it, else 0.
        settings: of `IntrinsicReward`.

    Attributes:
        bonus: the `IntrinsicReward`.
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        copies: int,
        seed: int | None,
        **settings: Any,
    ):
        self.bonus = IntrinsicReward(observation_space, action_space, seed=seed or 0, **settings)
        self._seeded = seed is not None
        self._last: Array | None = None
        self._returns = Sums(2, copies)

    def seed(self, seed: int | None) -> None:
        """Take the environment's seed for the bonus, if it has none of its own and has learnt nothing yet."""
        if seed is not None and not (self._seeded or self.bonus.replay.seen):
            self.bonus.seed(seed)
            self._seeded = True

    def begin(self, observations: Float[Array, "n O"], where: Array | bool = True) -> None:
        """Begin the episodes of the copies `where`, a mask [n]."""
        self._last = observations
        self._returns.begin(np.asarray(where))

    def step(
        self,
        observations: Float[Array, "n O"],
        actions: Float[Array, "n A"],
        rewards: Any,
        ended: Array,
        *,
        ends: Mapping[int, Any],
        training: bool,
        real: Array | None = None,
    ) -> Paid:
        """Pay the step that has led to these observations.

        Args:
            observations: of now, as vectors.
            actions: that were taken, as vectors.
            rewards: the environment's own, [n].
            ended: where episodes have ended, [n].
            ends: the last observations of those that have been reset already.
            training: False: nothing is paid or learnt, and the sums over episodes restart; so do steps of
                `evaluate_policy`.
            real: the copies that took a step, not only a reset, [n]; None: all.
        """
        assert self._last is not None, "reset, then step"
        before, self._last = self._last, observations
        n = len(observations)
        own, raw, paid = np.asarray(rewards, float), np.zeros(n), np.zeros(n)
        if not training or is_evaluating():
            self._returns.begin(np.ones(n, bool))
            return Paid(own, paid, raw, np.zeros((2, n)), np.zeros(n, bool), False)
        real = np.ones(n, bool) if real is None else real
        if real.any():
            after = following(self.bonus.observations, observations, ends)
            raw[real], paid[real] = self.bonus.step(Transitions(before[real], actions[real], after[real]))
        return Paid(own, paid, raw, self._returns.add(np.stack([own, paid]), ended), ended, True)


def is_evaluating() -> bool:
    """Return whether stable-baselines3's `evaluate_policy` takes this step; only the call stack tells environments.

    ARS calls it from `evaluate_candidates`, to train.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_name != "evaluate_policy":
        frame = frame.f_back
    return frame is not None and (frame.f_back is None or frame.f_back.f_code.co_name != "evaluate_candidates")


def following(vectors: Vectors, current: Array, ends: Mapping[int, Any]) -> Array:
    """The true next observations as vectors: where an episode has ended its last one, not the first of the next."""
    following = current.copy()
    for i, last in ends.items():
        following[i] = vectors.one(last)[0]
    return following
