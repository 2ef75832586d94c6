"""Which examples train and which test, and the scale they are learnt in."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64

from explore.errors import UNITS, InputError, extreme


def uci_splits(n: int, k: int = 20, fraction: float = 0.9) -> list[tuple[np.ndarray, np.ndarray]]:
    """The standard splits of the UCI regression sets: (train, test) indices, k times.

    Raises:
        InputError: when a split would have no training or no test example.
    """
    size = round(fraction * n)
    if k < 1 or not 0 < size < n:
        raise InputError(f"{k} splits of {n} examples with {size} for training; each needs training and test examples")
    rng = np.random.RandomState(1)  # published results use this legacy generator; a modern one gives other splits
    permutations = [rng.permutation(n) for _ in range(k)]
    return [(p[:size], p[size:]) for p in permutations]


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


class Standardiser(NamedTuple):
    """Mean and standard deviation of each column; replicas, if any, each have their own."""

    mean: Float64[np.ndarray, "*R 1 D"]
    scale: Float64[np.ndarray, "*R 1 D"]

    @staticmethod
    def fit(x: Float64[np.ndarray, "*R N D"]) -> "Standardiser":
        """The scale of the examples; a constant column keeps scale 1, so that it becomes 0.

        Raises:
            InputError: when there is no example, or a column whose squares double precision cannot hold.
        """
        if x.shape[-2] == 0:
            raise InputError("no example to take the mean of; at least 1 is needed")
        lowest = x.min(-2, keepdims=True)
        # Compared, not std == 0: rounding gives a constant column a deviation of about 1e-17.
        constant = lowest == x.max(-2, keepdims=True)
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            mean = np.where(constant, lowest, x.mean(-2, keepdims=True))
            scale = np.where(constant, 1.0, x.std(-2, keepdims=True))
        failed = ~constant & ~((scale > UNITS[0]) & (scale < UNITS[1]))
        if failed.any():
            column = int(failed.reshape(-1, x.shape[-1]).any(0).argmax())
            raise extreme(column, x[..., column].min(), x[..., column].max())
        return Standardiser(mean, scale)

    def apply(self, x: Float64[np.ndarray, "*R N D"]) -> Float64[np.ndarray, "*R N D"]:
        """From units to standard scores."""
        return (x - self.mean) / self.scale

    def undo(self, x: Float64[np.ndarray, "*R N D"]) -> Float64[np.ndarray, "*R N D"]:
        """From standard scores back to units."""
        return x * self.scale + self.mean
