"""Returns of episodes and sums of their bonuses, for stable-baselines3's log."""

from __future__ import annotations

import warnings

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger

from explore.vime.reward import IntrinsicReward
from explore.vime.spaces import Array
from explore.vime.stepwise import RETURNS, Sums


class Episodes(Sums):
    """Sums that remember what they were when episodes ended."""

    def __init__(self, environments: int):
        super().__init__(environments)
        self.finished: list[float] = []

    def add(self, values: Array, ended: Array) -> Array:
        sums = super().add(values, ended)
        self.finished += sums[ended].tolist()
        return sums

    def record(self, logger: Logger, tag: str) -> None:
        """Log the mean over the episodes that have ended since the last call, if there are any."""
        if self.finished:
            logger.record(tag, float(np.mean(self.finished)))
        self.finished = []


class VIMELog(BaseCallback):
    """Logs a bonus that a wrapper or a replay buffer pays: its `vime/` tags and, of a wrapper, two means over episodes.

    `rollout/ep_extrinsic_mean` is the return without the bonus, `rollout/ep_intrinsic_mean` the sum of the bonus alone.

    Args:
        bonus: of `VIME`, `VIMEVecEnv` or `VIMEReplayBuffer`.
    """

    def __init__(self, bonus: IntrinsicReward):
        super().__init__()
        self._bonus = bonus
        self._returns: dict[str, list[float]] = {key: [] for key in RETURNS}

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            for key, values in self._returns.items():
                values += [info[key]] if key in info else []
        return True

    def _on_rollout_end(self) -> None:
        for tag, value in self._bonus.metrics.items():
            self.logger.record(tag, value)
        for key, values in self._returns.items():
            if values:
                self.logger.record(f"rollout/ep_{key.removesuffix('_return')}_mean", float(np.mean(values)))
            values.clear()

    def _on_training_end(self) -> None:
        if not self._bonus.paid:
            warnings.warn(
                f"the bonus was 0 throughout: it is paid after a batch of `interval` transitions "
                f"({self._bonus.settings.interval}) with which `minimum` ({self._bonus.dynamics_settings.minimum}) are "
                f"stored, and {self._bonus.replay.seen} were",
                stacklevel=2,
            )
