"""A data set as a value."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from explore.core.errors import UNITS, InputError, extreme, one_of

__all__ = ["Dataset", "Task", "check_units", "drop_columns"]

Task = Literal["regression", "classification"]


class Dataset(NamedTuple):
    """Examples in the order of their file, in their own units (nothing is standardised)."""

    name: str
    x: np.ndarray  # float64 [N, D]; of images uint8 [N, channels, height, width]
    y: np.ndarray  # float64 [N, O] targets, or int64 [N] class indices
    features: tuple[str, ...]  # D names; images have none
    task: Task
    classes: tuple[str, ...] = ()  # the name of each class index
    note: str = ""  # what whoever uses the set should read, a sentence a line
    lines: tuple[int, ...] = ()  # of a user's file: where each example begins in it, from 1
    ids: tuple[str, ...] = ()  # of a user's file: what each example is called


def drop_columns(dataset: Dataset, names: Sequence[str]) -> Dataset:
    """The set without the named features.

    Raises:
        InputError: when a name is not a feature of the set, or when no feature would be left.
    """
    for name in names:
        if name not in dataset.features:
            raise one_of(f"feature of {dataset.name}", name, dataset.features)
    kept = [i for i, feature in enumerate(dataset.features) if feature not in names]
    if not kept:
        raise InputError(f"dropping {', '.join(names)} leaves {dataset.name} without a feature; keep at least one")
    return dataset._replace(x=dataset.x[:, kept], features=tuple(dataset.features[i] for i in kept))


def check_units(names: Sequence[str], values: np.ndarray) -> None:
    """Refuse a column [N], of values [N, columns] which may be NaN, that cannot be standardised; by its name.

    Raises:
        InputError: where double precision cannot hold the squares.
    """
    for name, column in zip(names, values.T, strict=True):
        there = column[~np.isnan(column)]
        if not len(there) or (low := there.min()) == (high := there.max()):
            continue
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            deviation = there.std()
        if not UNITS[0] < deviation < UNITS[1]:
            raise extreme(name, low, high)
