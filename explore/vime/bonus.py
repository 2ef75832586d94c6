"""The settings of a bonus, the transitions it scores, and the rewards it returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

from explore.core.errors import Checked
from explore.vime.spaces import Array, Vectors

Kind = Literal["kl", "expected-gain", "variance"]
Normalise = Literal["latest", "median", "rms", "none"]


@dataclass(frozen=True, kw_only=True)
class RewardSettings(Checked):
    """Settings of the bonus: its kind, scale and weight."""

    eta: float = 0.001  # weight of the bonus beside the environment's reward
    eta_decay: float = 1.0  # factor on eta after each batch
    # "kl": the information gained from the transition (posteriors with a density); "expected-gain": the information
    # expected from o, a, 1/2 log det(I + Cov_f / s^2); "variance": the mean predictive variance.
    bonus: Kind = "kl"
    # The divisor of the bonus. "latest": the median of the latest batch, whose middle is paid eta; "median":
    # the mean of the last 10 batches' medians, as in the paper; "rms": the root mean square of the last 10 batches.
    normalise: Normalise = "latest"
    clip: float | None = 10.0  # a bonus is cut at this multiple of the divisor; None: never, as in the paper
    samples: int = 30  # weight samples for "expected-gain" and "variance", and for the quality of the model
    interval: int = 5000  # transitions a batch, where experience comes step by step

    ranges: ClassVar[dict[str, str]] = {
        "eta": "[0, inf)", "eta_decay": "(0, 1]", "samples": "[2, 1e4]", "interval": "[1, inf)"
    }  # fmt: skip


class Reward(NamedTuple):
    """The bonus of some transitions, [n] each."""

    raw: Array  # in nats, or for "variance" in standardised units squared
    scaled: Array  # eta * raw / divisor, added to the environment's reward


class Transitions(NamedTuple):
    """Steps of an environment, as vectors."""

    observations: Array  # [n, O]
    actions: Array  # [n, A]
    following: Array  # [n, O], the true next observations: at the end of an episode not those after the reset


@runtime_checkable
class RolloutBonus(Protocol):
    """The interface of a bonus for `VIMECallback`: `IntrinsicReward`, or your own."""

    observations: Vectors  # of the observation space
    actions: Vectors
    metrics: dict[str, float]  # to log about the last batch, by TensorBoard tag

    def batch(self, transitions: Transitions) -> Reward:
        """Return the bonus of all transitions of a rollout; then learn from them."""
