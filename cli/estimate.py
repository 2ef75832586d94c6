"""Means with standard errors, and names and formats of metrics."""

import math
from collections.abc import Collection, Iterable
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike
from torch import Tensor

SIGN = {"rmse": 1, "error": 1, "log_likelihood": -1, "crps": 1}  # 1: lower is better; -1: higher is better
TITLES = {"rmse": "test RMSE", "error": "test error rate", "log_likelihood": "test log-likelihood", "crps": "test CRPS"}
UNITS = {"rmse": "units of the target", "crps": "units of the target", "log_likelihood": "nats per point"}
MAIN = ("rmse", "error", "log_likelihood")


def title(metric: str, validation: bool = False, unit: bool = True) -> str:
    """Return the title of a metric with its unit, e.g. "test RMSE (units of the target)" or, without, "test RMSE".

    With `validation`, the metric is on validation parts, e.g. "validation RMSE".
    """
    name = TITLES[metric].replace("test", "validation") if validation else TITLES[metric]
    return f"{name} ({UNITS[metric]})" if unit and metric in UNITS else name


def metrics(tables: Collection[pd.DataFrame], names: Iterable[str] = MAIN) -> list[str]:
    """Return those of the names of metrics that all tables have, the main metric first."""
    return [name for name in names if all(name in table for table in tables)]


def spread(count: int, replicas: str) -> str:
    """Return a caption, e.g. "mean ± s.e. over 20 trials" for `count` 20 and `replicas` "trial"."""
    return f"mean ± s.e. over {count} {replicas}s" if count > 1 else f"one {replicas}"


class Estimate(NamedTuple):
    """Mean and standard error over trials; for a single trial the standard error is NaN."""

    mean: float
    se: float

    def text(self, decimals: int) -> str:
        """Format as in "5.139 ± 0.033", without the standard error if it is NaN."""
        parts = [v for v in self if not math.isnan(v)] or [math.nan]
        return " ± ".join(f"{round(v, decimals) + 0.0:.{decimals}f}" for v in parts)  # + 0.0: no "-0.000"


def estimate(values: Tensor | ArrayLike) -> Estimate:
    """Return the mean and standard error of values [T], one per trial."""
    numbers = values.double() if isinstance(values, Tensor) else torch.tensor(np.asarray(values, float))
    se = float(numbers.std()) / len(numbers) ** 0.5 if len(numbers) > 1 else math.nan
    return Estimate(float(numbers.mean()), se)


def decimals(values: ArrayLike) -> int:
    """Return the number of decimals, at least 3, that shows the largest value with three significant digits."""
    size = float(np.abs(np.nan_to_num(values, nan=0, posinf=0, neginf=0)).max())
    return max(3, 2 - math.floor(math.log10(size))) if size > 0 else 3
