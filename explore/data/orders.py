"""Columns that say where or when a row stands, not what it is: run order, index, time of measurement."""

from __future__ import annotations

import re

import numpy as np

__all__ = ["FEW", "counts", "is_named", "is_timed", "moves"]

FEW = 5  # rows, below which numbers may count up by chance
MANY = 20  # rows, from which numbers in any order count the rows where most of them follow one another
# Names without marks and case.
_NAMED = re.compile(
    r"run|std|index|idx|unnamed\d+|column1|indexlevel\d+|level0|rownames?"
    r"|(run|std|standard|row|sample|experiment(al)?|exp|trial|test|entry|measurement|observation|obs|injection"
    r"|acquisition|execution|random|randomi[sz]ed)(order|nr|no|num|number|id|index|idx)"
)
_NUMBER = re.compile(r"row|sample|experiment|trial|entry|order|nr|no|num|number")
_TIMED = re.compile(r"timestamp|datetime|unixtime|(measured|recorded|created|acquired|updated)(at|on)")


def is_named(name: str) -> bool:
    """Whether a column is called as those are that number the rows."""
    return bool(_NAMED.fullmatch(_plain(name)))


def is_timed(name: str) -> bool:
    """Whether a column is called as those are that say when a row was measured."""
    return bool(_TIMED.fullmatch(_plain(name)))


def counts(values: np.ndarray, name: str = "") -> bool:
    """Whether numbers, [N] and NaN where there is none, count the rows by one: from any start, perhaps with gaps.

    Without gaps they may stand in any order, as the runs of a plan do; with gaps where rows were deleted only if they
    go one way, or are many. Few rows are enough where the column's name says as much.
    """
    present = values[~np.isnan(values)]
    few = 2 if name and _NUMBER.fullmatch(_plain(name)) else FEW
    if len(present) < few or not np.array_equal(present, np.round(present)):
        return False
    steps = np.diff(np.sort(present))
    if (steps == 1).all():
        return True
    return bool((steps > 0).all() and np.mean(steps == 1) > 0.5 and (moves(present) or len(present) >= MANY))


def moves(values: np.ndarray) -> bool:
    """Whether numbers, [N] and NaN where there is none, never fall or never rise, and seldom stand still."""
    steps = np.diff(values[~np.isnan(values)])
    one_way = (steps >= 0).all() or (steps <= 0).all()
    return bool(len(steps) + 1 >= FEW and one_way and np.mean(steps != 0) > 0.5)


def _plain(name: str) -> str:
    return re.sub(r"[\W_]+", "", name.replace("#", "no")).casefold()
