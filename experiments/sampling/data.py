"""The splits on which samplers are compared: those of the UCI sets, and of three tables from files.

The tables are of the UCI repository: airfoil (airfoil+self+noise, 1503 x 5), abalone (4177 x 8) and auto-mpg (392 x 7,
rows without missing values and without the name). A folder has them as airfoil.csv, abalone.csv and auto-mpg.csv, with
a header and the target in the last column. They were named before any method ran on them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pandas as pd
import torch

from experiments.driver import FOLDER, split
from explore.core.errors import InputError
from explore.core.rng import Rng
from explore.data import load
from explore.data.base import Dataset
from explore.data.table import load_table
from explore.learning.compare import Splits

SETS = ("boston", "concrete", "energy", "wine", "yacht", "kin8nm", "naval", "power", "protein")
OTHERS = ("airfoil", "abalone", "auto-mpg")

tables = click.option("--tables", type=FOLDER, help=f"Has the tables of {', '.join(OTHERS)}.")
rows = click.option("--rows", type=click.IntRange(min=2), help="Training rows of each split.  [default: all]")


def table(name: str, folder: Path | None) -> Dataset:
    """Return one of `SETS`, or of `OTHERS` from a folder."""
    if name not in OTHERS:
        return load(name)
    if folder is None:
        raise InputError(f"{name} comes from a file. Pass --tables with its folder")
    frame = pd.read_csv(folder / f"{name}.csv")
    return load_table(frame, frame.columns[-1]).dataset


def parts(data: Dataset, splits: slice, rows: int | None, validate: float = 0.0) -> Splits:
    """Return standard splits with at most this number of training rows, whose order is random."""
    whole: Any = split(data, splits, Rng(0, dtype=torch.float32), validate)
    some: Splits = whole._replace(x=whole.x[:, :rows], y=whole.y[:, :rows])
    return some


def size(data: Dataset, rows: int | None) -> int:
    """Return the number of training rows of each split."""
    return min(rows or len(data.x), round(0.9 * len(data.x)))
