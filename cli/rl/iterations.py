"""Callbacks of stable-baselines3 that divide the training of `explore rl` into iterations, and measure them."""

import math
import time
from collections.abc import Callable, Mapping

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger

from explore.vime.env_wrappers import Sums
from explore.vime.reward import IntrinsicReward
from explore.vime.sb3 import Episodes, VIMECallback

# Tags that become columns of results.csv, named by the part after the slash.
TAGS = (
    "rollout/extrinsic_total", "rollout/ep_extrinsic_mean", "rollout/success", "rollout/ep_intrinsic_mean",
    "vime/bonus_mean", "vime/bonus_median", "vime/dyn_nll_before", "vime/dyn_rmse_before",
    "vime/dyn_coverage_95_before", "vime/dropped", "vime/restarts", "time/bonus_share",
)  # fmt: skip
Row = dict[str, float]


class Log(Logger):
    """A logger for stable-baselines3 that passes each step and its values (tag -> value) to `on_log`."""

    def __init__(self, on_log: Callable[[int, dict[str, float]], None]):
        super().__init__(None, [])
        self._on_log = on_log

    def dump(self, step: int = 0) -> None:
        excluded = {tag for tag, formats in self.name_to_excluded.items() if "tensorboard" in (formats or ())}
        self._on_log(step, {tag: float(v) for tag, v in self.name_to_value.items() if tag not in excluded})
        super().dump(step)


class TimedVIME(VIMECallback):
    """A VIME callback that measures the seconds per batch spent on the bonus and on updates of the dynamics model."""

    seconds = 0.0

    def _on_rollout_end(self) -> None:
        begin = time.perf_counter()
        super()._on_rollout_end()
        self.seconds = time.perf_counter() - begin

    def _unpaid(self) -> None:
        """Do nothing, because the command itself warns that the bonus was always 0."""


class Iterations(BaseCallback):
    """A callback that divides training into iterations of `batch` steps. `number` iterations are already finished.

    The callback logs the share of time that `timed` takes or, if `timed` is None, the metrics of `bonus`. Times are
    divided by the number of seeds that are trained `together`. `on_step` receives the number of new environment steps.
    `before_log` may add values to the log. `after_log` gets the row that the iteration adds to results.csv.
    """

    def __init__(
        self, batch: int, number: int, bonus: IntrinsicReward | None, timed: TimedVIME | None,
        on_step: Callable[[int], None], before_log: Callable[[], None], after_log: Callable[[Row], None],
        together: int = 1,
    ):  # fmt: skip
        super().__init__()
        self.number, self._together = number, together
        self._batch, self._bonus, self._timed = batch, bonus, timed
        self._on_step_taken, self._before, self._after = on_step, before_log, after_log

    def _on_training_start(self) -> None:
        self._episodes = Episodes(self.training_env.num_envs)
        self._earned, self._wins = Sums(self.training_env.num_envs), list[bool]()
        self._start()

    def _on_rollout_start(self) -> None:
        # Also called once before the first step.
        if self.model.num_timesteps - self._first >= self._batch:
            self._finish()

    def _on_training_end(self) -> None:
        if self.model.num_timesteps > self._first:
            self._finish()

    def _on_step(self) -> bool:
        rewards, dones = self.locals["rewards"], self.locals["dones"]
        self._total += float(rewards.sum())
        self._episodes.add(rewards, dones)
        earned = self._earned.add(rewards > 0, dones) > 0
        infos = self.locals["infos"]
        self._wins += [bool(infos[i].get("is_success", earned[i])) for i in np.flatnonzero(dones)]
        self._on_step_taken(len(rewards))
        return True

    def _start(self) -> None:
        self._first, self._total, self._begin = self.model.num_timesteps, 0.0, time.perf_counter()
        self._episodes.finished, self._wins = [], []

    def _finish(self) -> None:
        seconds = (time.perf_counter() - self._begin) / self._together
        self.number += 1
        returns = self._episodes.finished
        means: dict[str, float] = {"rollout/extrinsic_total": self._total}
        if returns:
            means["rollout/ep_extrinsic_mean"] = float(np.mean(returns))
            means["rollout/success"] = float(np.mean(self._wins))
        if self._timed is not None:
            means["time/bonus_share"] = self._timed.seconds / seconds
        elif self._bonus is not None:
            means |= self._bonus.metrics
        for tag, value in means.items():
            self.logger.record(tag, value)
        self._before()
        logged: Mapping[str, float] = dict(self.logger.name_to_value)
        self.model.dump_logs()
        self._after(
            {"iteration": self.number, "timesteps": self.model.num_timesteps, "episodes": len(returns)}
            | {tag.partition("/")[2]: logged.get(tag, math.nan) for tag in TAGS}
            | {"seconds": round(seconds, 4)}
        )
        self._start()
