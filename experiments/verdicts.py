"""Verdicts on published claims, by standard errors, and rows of a table of claims.

A claimed difference comes out if ours, averaged over groups, has the claimed sign by more than two standard errors, and
no group has the opposite sign by as much. It does not if the average has the opposite sign by as much.

Published figures come out if none of ours is worse by more than two combined standard errors. If one is worse, and its
error is over a quarter of the published figure, we cannot tell. A single run counts with an error of 0.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from experiments.tables import corrected, markdown

HOLDS, FAILS, OPEN, MISSING = "comes out", "does not", "cannot tell", "cannot tell: not measured"
LIMIT = 2  # standard errors
COARSE = 0.25  # part of a published figure


class Estimate(NamedTuple):
    """A mean and its standard error."""

    mean: float
    error: float = 0.0


class Figure(NamedTuple):
    """A published figure and ours; `sign` is 1 if higher is better and -1 if lower is."""

    name: str
    ours: Estimate
    published: Estimate
    sign: int


class Finding(NamedTuple):
    """What we measured, and its verdict."""

    text: str
    verdict: str


class Claim(NamedTuple):
    """A published claim and what we find; the worst verdict counts."""

    text: str
    published: str
    findings: Sequence[Finding]
    pages: str  # folders with a README.md, and pages, below `experiments`


def missing(text: str, published: str, reason: str, pages: str) -> Claim:
    """Make a claim about which nothing was measured."""
    return Claim(text, published, [Finding(reason, MISSING)], pages)


def number(value: float) -> str:
    """Format a number with three digits, or a whole number."""
    return f"{value:{'.0f' if abs(value) >= 1000 else '#.3g'}}".rstrip(".").replace("-", "−")


def plus_minus(value: Estimate, unit: str = "") -> str:
    """Format a difference, with two digits of its error."""
    digits = max(0, 1 - math.floor(math.log10(value.error)))
    return f"{value.mean:+.{digits}f} ± {value.error:.{digits}f}{unit}".replace("-", "−")


def estimate(values: pd.Series) -> Estimate:
    mean, error = map(float, values.agg(["mean", "sem"]))
    return Estimate(mean, error if len(values) > 1 else 0.0)


def over_splits(values: pd.Series) -> Estimate:
    """Estimate a mean over random splits, which share examples."""
    return Estimate(*corrected(values)[:2])


def average(values: Iterable[Estimate]) -> Estimate:
    means, errors = zip(*values, strict=True)
    return Estimate(sum(means) / len(means), math.hypot(*errors) / len(errors))


def percent(logarithm: Estimate) -> Estimate:
    """Convert the logarithm of a ratio to a change in percent."""
    return Estimate(100 * math.expm1(logarithm.mean), 100 * math.exp(logarithm.mean) * logarithm.error)


def paired(
    rows: pd.DataFrame, keys: tuple[str, str, str], pair: tuple[str, str], score: str, log: bool = False,
    splits: bool = False,
) -> dict[str, Estimate]:  # fmt: skip
    """Estimate paired differences of two methods in each group, with `log` those of logarithms.

    Args:
        rows: results.
        keys: columns of the group, of the unit that is paired, and of the method.
        pair: the methods; the second is subtracted.
        score: column of values.
        log: whether to take logarithms.
        splits: whether units are random splits.
    """
    group, unit, method = keys
    wide = rows[rows[method].isin(pair)].pivot(index=[group, unit], columns=method, values=score).dropna()
    wide = wide.apply(np.log) if log else wide
    parts = (wide[pair[0]] - wide[pair[1]]).groupby(group, sort=False)
    return {str(name): (over_splits if splits else estimate)(part) for name, part in parts}


def difference(what: str, groups: Mapping[str, Estimate], sign: int, unit: str = "") -> Finding:
    """Judge the mean of differences over groups; `sign` is the claimed one, and those in percent are logarithms."""
    mean = average(groups.values())
    along, against = (sum(s * v.mean > LIMIT * v.error for v in groups.values()) for s in (sign, -sign))
    verdict = FAILS if -sign * mean.mean > LIMIT * mean.error else OPEN
    if sign * mean.mean > LIMIT * mean.error and not against:
        verdict = HOLDS
    text = f"{what} {plus_minus(percent(mean) if unit == ' %' else mean, unit)}"
    if len(groups) > 1:
        text += f" ({along} of {len(groups)} significant{f', {against} opposite' * bool(against)})"
    return Finding(text, verdict)


def figures(cells: Sequence[Figure]) -> Finding:
    """Judge whether our figures are as good as published ones."""
    missed: list[str] = []
    vague: list[str] = []
    for name, ours, published, sign in cells:
        worse = sign * (published.mean - ours.mean)
        if worse > LIMIT * math.hypot(ours.error, published.error):
            missed.append(f"{name} {number(ours.mean)} ({number(published.mean)})")
        elif worse > 0 and ours.error > COARSE * abs(published.mean):
            vague.append(f"{name} {number(ours.mean)} ± {number(ours.error)} ({number(published.mean)})")
    text = f"{len(cells) - len(missed) - len(vague)} of {len(cells)} reached"
    shown = [*missed[:3], f"{len(missed) - 3} more"] if len(missed) > 4 else missed
    text += f"; missed: {', '.join(shown)}" * bool(missed) + f"; uncertain: {', '.join(vague)}" * bool(vague)
    return Finding(text, FAILS if missed else OPEN if vague else HOLDS)


def table(papers: Mapping[str, Iterable[Claim]]) -> str:
    """Format claims of several papers as a table, below a sentence with the counts of verdicts."""
    rows = []
    for paper, claims in papers.items():
        for claim in claims:
            verdicts = {found.verdict for found in claim.findings}
            worst = next(verdict for verdict in (MISSING, FAILS, OPEN, HOLDS) if verdict in verdicts)
            ours = "; ".join(found.text for found in claim.findings)
            pages = [Path(page if page.endswith(".md") else f"{page}/README.md") for page in claim.pages.split()]
            names = [page.parent.name if page.stem == "README" else page.stem for page in pages]
            links = (f"[{name}](../experiments/{page.as_posix()})" for name, page in zip(names, pages, strict=True))
            rows.append([f"{paper}: {claim.text}", claim.published, ours, worst, ", ".join(links)])
    counts = Counter(row[3] for row in rows)
    head = (
        f"**Of {len(rows)} published claims, {counts[HOLDS]} come out, {counts[FAILS]} do not, and on "
        f"{counts[OPEN] + counts[MISSING]} we cannot tell, {counts[MISSING]} of them for lack of measurements.**"
    )
    return f"{head}\n\n{markdown(['claim', 'published', 'ours', 'verdict', 'experiment'], rows)}"
