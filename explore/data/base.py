"""The `Dataset` type, and splits into training and test examples."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Int64

from explore.core.errors import UNITS, InputError, check_known, extreme

Task = Literal["regression", "classification"]


class Dataset(NamedTuple):
    """A data set: examples in file order and in their original units (not standardised)."""

    name: str
    x: np.ndarray  # float64 [N, D]; for images, uint8 [N, channels, height, width]
    y: np.ndarray  # float64 [N, O] targets, or int64 [N] class indices
    features: tuple[str, ...]  # D names; empty for images
    task: Task
    classes: tuple[str, ...] = ()  # the name of each class index
    note: str = ""  # sentences for the user, one per line
    lines: Sequence[int | str] = ()  # line of a user's file where each example begins, from 1
    ids: tuple[str, ...] = ()  # identifiers of the examples in a user's file


def drop_columns(dataset: Dataset, names: Sequence[str]) -> Dataset:
    """Return the data set without the named features. All names must exist, and at least one feature must remain."""
    check_known(f"feature of {dataset.name}", names, dataset.features)
    columns = [i for i, feature in enumerate(dataset.features) if feature not in names]
    if not columns:
        raise InputError(f"dropping {', '.join(names)} leaves {dataset.name} without a feature. Keep at least one")
    return dataset._replace(x=dataset.x[:, columns], features=tuple(dataset.features[i] for i in columns))


def check_units(names: Sequence[str], values: np.ndarray) -> None:
    """Raise InputError if the variance of a column of `values` [N, columns] (NaN: missing) overflows or underflows."""
    for name, column in zip(names, values.T, strict=True):
        present = column[~np.isnan(column)]
        if not len(present) or (low := present.min()) == (high := present.max()):
            continue
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            deviation = present.std()
        if not UNITS[0] < deviation < UNITS[1]:
            raise extreme(name, low, high)


def uci_splits(
    n: int, k: int = 20, fraction: float = 0.9, validation: float = 0.0
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the k standard splits of the UCI regression sets, as (train, test) indices.

    With `validation` > 0, the last `validation` share of each training part is split off and replaces the test part.
    """
    size = round(fraction * n)
    if k < 1 or not 0 < size < n:
        raise InputError(f"cannot split {n} examples {k} times with {size} for training: each part needs an example")
    rng = np.random.RandomState(1)  # published splits use this legacy generator; a modern one gives others
    permutations = [rng.permutation(n) for _ in range(k)]
    start, stop = (size - round(validation * size), size) if validation else (size, n)
    if not 0 < start < stop:
        share = f"a validation share of {validation} of {size} training examples"
        raise InputError(f"{share} leaves none for training or for validation")
    return [(p[:start], p[start:stop]) for p in permutations]


class PoolSplit(NamedTuple):
    """Splits for T active-learning trials with P pool examples each, as indices into the data set."""

    labelled: Int64[np.ndarray, "T initial"]
    test: Int64[np.ndarray, "T test"]
    pool: Int64[np.ndarray, "T P"]


def pool_splits(n: int, trials: int, initial: int, test: int, seed: int) -> PoolSplit:
    """Split n examples at random into `initial` labelled examples, `test` test examples, and a pool of the rest.

    Each trial has its own random stream, so adding trials does not change the earlier ones. Test examples are drawn
    first, so they do not depend on `initial`.
    """
    if min(trials, initial, test) < 1:
        raise InputError(f"trials={trials}, initial={initial}, test={test}: each must be at least 1")
    if seed < 0:
        raise InputError(f"seed is {seed}; it must be at least 0")
    if initial + test >= n:
        allowed = f"use fewer than {n} together" if n > 2 else "at least 3 examples are needed"
        raise InputError(f"{initial} labelled and {test} test points of {n} leave no pool; {allowed}")
    streams = (np.random.SeedSequence(seed, spawn_key=(0, trial)) for trial in range(trials))
    order = np.stack([np.random.default_rng(stream).permutation(n) for stream in streams])
    return PoolSplit(order[:, test : test + initial], order[:, :test], order[:, test + initial :])
