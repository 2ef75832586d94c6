"""Tables of the experiments: cells and Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import pandas as pd
from scipy import stats

TEST_TO_TRAIN = 1 / 9  # ratio of examples in the splits of `explore.learning.compare.split`


def mean_se(values: pd.Series, form: str = ".3f") -> str:
    """Format the mean and its standard error; of a single value, the value alone."""
    mean, error = map(float, values.agg(["mean", "sem"]))
    return f"{mean:{form}} ± {error:{form}}" if len(values) > 1 else f"{mean:{form}}"


def mean_sd(values: pd.Series, form: str = ".3f") -> str:
    """Format the mean and, in brackets, the standard deviation."""
    return f"{values.mean():{form}} ({values.std():{form}})"


class Corrected(NamedTuple):
    """A mean difference over random splits."""

    mean: float
    error: float  # corrected standard error
    significant: bool  # p < 0.05, by the t distribution with splits - 1 degrees of freedom


def corrected(values: pd.Series) -> Corrected:
    """Return the mean of differences paired by split, with a corrected standard error.

    Random splits share examples, so the plain standard error of such a mean is too small. Nadeau and Bengio (Inference
    for the generalization error, 2003) add the ratio of test to training examples to 1 / splits.
    """
    n, mean = len(values), float(values.mean())
    error = float(values.std()) * math.sqrt(1 / n + TEST_TO_TRAIN)
    return Corrected(mean, error, bool(abs(mean) > error * stats.t.ppf(0.975, n - 1)))


def paired(values: pd.Series, form: str = ".3f") -> str:
    """Format differences paired by split: mean, corrected error, a star where significant, and [the median]."""
    mean, error, significant = corrected(values)
    return f"{mean:{form}} ± {error:{form}}{'*' * significant} [{values.median():{form}}]"


def markdown(heads: Sequence[object], rows: Iterable[Iterable[object]]) -> str:
    """Format a table in Markdown."""
    first, *body = ("| " + " | ".join(map(str, cells)) + " |\n" for cells in (heads, *rows))
    return f"{first}{'|---' * len(heads)}|\n{''.join(body)}"


def sections(tables: Mapping[str, str]) -> str:
    """Join tables, each below its title."""
    return "\n".join(f"**{title}**\n\n{table}" for title, table in tables.items())
