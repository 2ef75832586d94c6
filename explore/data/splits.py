"""Which examples train and which test."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

from explore.core.errors import InputError

__all__ = ["PoolSplit", "pool_splits", "uci_splits"]


def uci_splits(
    n: int, k: int = 20, fraction: float = 0.9, validation: float = 0.0
) -> list[tuple[np.ndarray, np.ndarray]]:
    """The standard splits of the UCI regression sets: (train, test) indices, k times.

    With `validation` the last such share of each training part takes the place of the test part, which is left out.

    Raises:
        InputError: when a split would have no training or no test example.
    """
    size = round(fraction * n)
    if k < 1 or not 0 < size < n:
        raise InputError(f"{k} splits of {n} examples with {size} for training; each needs training and test examples")
    rng = np.random.RandomState(1)  # published results use this legacy generator; a modern one gives other splits
    permutations = [rng.permutation(n) for _ in range(k)]
    if not validation:
        return [(p[:size], p[size:]) for p in permutations]
    kept = size - round(validation * size)
    if not 0 < kept < size:
        raise InputError(f"a share of {validation} of {size} training examples leaves none to train on, or to validate")
    return [(p[:kept], p[kept:size]) for p in permutations]


class PoolSplit(NamedTuple):
    """The examples of T active-learning trials, as indices into the set."""

    labelled: Int64[np.ndarray, "T initial"]
    test: Int64[np.ndarray, "T test"]
    pool: Int64[np.ndarray, "T P"]


def pool_splits(n: int, trials: int, initial: int, test: int, seed: int) -> PoolSplit:
    """Random splits of n examples into `initial` labelled ones, `test` ones and a pool of all the rest.

    Every trial has its own random stream, so more trials leave the first ones as they are; and the test
    examples are drawn first, so another number of labelled ones leaves them as they are.

    Raises:
        InputError: for a count below 1, a negative seed, or when no example is left for the pool.
    """
    if min(trials, initial, test) < 1 or seed < 0:
        raise InputError(
            f"trials={trials}, initial={initial} and test={test} must be 1 or more, and seed={seed} 0 or more"
        )
    if initial + test >= n:
        allowed = f"take fewer than {n} together" if n > 2 else "at least 3 examples are needed"
        raise InputError(f"{initial} labelled and {test} test points of {n} leave no pool; {allowed}")
    streams = (np.random.SeedSequence(seed, spawn_key=(0, trial)) for trial in range(trials))
    order = np.stack([np.random.default_rng(stream).permutation(n) for stream in streams])
    return PoolSplit(order[:, test : test + initial], order[:, :test], order[:, test + initial :])
