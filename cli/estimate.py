"""Means with standard errors, and names and formats of metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from explore.inference.base import LEAST, MOST

SIGN = {"rmse": 1, "error": 1, "log_likelihood": -1}  # less is better, or more
TITLES = {"rmse": "test RMSE", "error": "test error rate", "log_likelihood": "test log-likelihood"}


def title(metric: str, validation: bool) -> str:
    """Title of a metric on the test parts, or instead on the validation parts."""
    return TITLES[metric].replace("test", "validation") if validation else TITLES[metric]


class Estimate(NamedTuple):
    """Mean and standard error over trials; the error of one trial is unknown."""

    mean: float
    se: float

    def text(self, decimals: int) -> str:
        """Format as 5.139 ± 0.033."""
        parts = [v for v in self if not math.isnan(v)] or [math.nan]
        return " ± ".join(f"{round(v, decimals) + 0.0:.{decimals}f}" for v in parts)  # + 0.0: no "-0.000"


def estimate(values: Tensor) -> Estimate:
    """Estimate [T]."""
    values = values.double()
    se = float(values.std()) / len(values) ** 0.5 if len(values) > 1 else math.nan
    return Estimate(float(values.mean()), se)


def clipped(learned: Mapping[str, Tensor], replicas: str) -> str:
    """A sentence on prior variances ([R] by name) that ended at a bound; empty if none did."""
    at = {name: int(((v <= LEAST) | (v >= MOST)).sum()) for name, v in learned.items()}
    if not any(at.values()):
        return ""
    where = ", ".join(f"{name} in {n} of {len(learned[name])} {replicas}" for name, n in at.items() if n)
    return f"learned variances ended at a bound ({LEAST:g} or {MOST:g}): {where}."


def unit(metric: str) -> str:
    """Unit of a metric, after its title."""
    return {"rmse": " (units of the target)", "log_likelihood": " (nats per point)"}.get(metric, "")


def decimals(values: Tensor) -> int:
    """Decimals for three digits of the largest value; at least three."""
    size = float(values.abs().nan_to_num(0, 0, 0).max())
    return max(3, 2 - math.floor(math.log10(size))) if size > 0 else 3
