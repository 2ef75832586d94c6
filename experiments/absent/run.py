"""Commands for the papers' data sets that we do not have, tried on generated tables of the same shapes.

    python -m experiments.absent.run                                   # generated tables, one epoch
    python -m experiments.absent.run --sets year --data Year.parquet   # the real one, at the paper's length

A table has the features and, in its last column, the target `y`: a number, or a class. Writes results/generated.csv, a
line a set: seconds and peak memory of the command. The output of a run on a real table is that of its command.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
import pandas as pd

from experiments.driver import FOLDER, experiment, names, run_missing


class Absent(NamedTuple):
    """The shape of a set, and the command with its settings in the paper."""

    rows: int
    features: int
    classes: int  # 0: regression
    command: tuple[str, ...]
    short: tuple[str, ...]  # on generated tables


LOGISTIC = ("experiments.logistic_regression.run", "--target", "y")
COMPARE = ("explore.cli", "compare", "--target", "y")
YEAR = (
    *COMPARE,
    "--posterior",
    "noisy-kfac,noisy-ekfac,bbb",
    "--hidden",
    "100",
    "--splits",
    "1",
    "-p",
    "batch_size=100",
)
CLASSES = (
    *COMPARE, "--task", "classification", "--posterior", "whvi,mc-dropout,noisy-kfac", "--hidden", "128,128",
    "--splits", "8", "--epochs", "100",
)  # fmt: skip
ONE_EPOCH = ("--splits", "1", "--epochs", "1")
HALVES = ("--splits", "2", "--epochs", "1")
SETS = {
    "year": Absent(515_345, 90, 0, YEAR, ONE_EPOCH),  # EK-FAC, Table 1
    "a1a": Absent(3_210, 119, 2, (*LOGISTIC, "--prior-precision", "2.8072"), HALVES),  # SLANG, Table 1
    "usps-3-5": Absent(1_540, 256, 2, (*LOGISTIC, "--prior-precision", "25"), HALVES),
    "eeg": Absent(14_980, 14, 2, CLASSES, ONE_EPOCH),  # WHVI
    "magic": Absent(19_020, 10, 2, CLASSES, ONE_EPOCH),
    "miniboo": Absent(130_064, 50, 2, CLASSES, ONE_EPOCH),
    "letter": Absent(20_000, 16, 26, CLASSES, ONE_EPOCH),
    "drive": Absent(58_509, 48, 11, CLASSES, ONE_EPOCH),
    "mocap": Absent(78_095, 37, 5, CLASSES, ONE_EPOCH),
}


def generated(name: str, folder: Path, rows: int | None = None) -> Path:
    """Write a table of the shape of a set: normal features, and a noisy linear function of them as the target."""
    own, rng = SETS[name], np.random.default_rng(0)
    x = rng.normal(size=(rows or own.rows, own.features)).astype("float32")
    y = x @ rng.normal(size=own.features) + rng.normal(size=len(x))
    table = pd.DataFrame(x, columns=[f"x{i}" for i in range(own.features)])
    ranks = pd.qcut(y, own.classes, labels=False) if own.classes else y
    kind = "csv" if "logistic" in own.command[0] else "parquet"  # the experiment reads CSV files only
    path = folder / f"{name}.{kind}"
    table = table.assign(y=[f"class {rank}" for rank in ranks] if own.classes else y)
    table.to_csv(path, index=False) if kind == "csv" else table.to_parquet(path)
    return path


def called(name: str, data: Path, out: Path, short: bool) -> list[str]:
    """Return the command for a table."""
    own = SETS[name]
    return [sys.executable, "-m", *own.command, *(own.short if short else ()), "--data", str(data), "--out", str(out)]


def trial(name: str) -> pd.DataFrame:
    """Run the shortened command on a generated table: its seconds and peak memory."""
    with tempfile.TemporaryDirectory() as folder:
        data, begin = generated(name, Path(folder)), time.perf_counter()
        process = subprocess.Popen(called(name, data, Path(folder) / "out", short=True), stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)  # the memory of this command alone
        if status:
            raise RuntimeError(f"the command for {name} failed")
        seconds = time.perf_counter() - begin
    peak = usage.ru_maxrss / 2**20
    own = SETS[name]
    shape = {"rows": own.rows, "features": own.features, "classes": own.classes}
    return pd.DataFrame([shape | {"seconds": round(seconds), "peak_gib": round(peak, 2)}])


@experiment(__file__)
@names("--sets", "data set", SETS)
@click.option("--data", type=click.Path(exists=True, path_type=Path), help="The table of one set, at full length.")
@click.option("--runs", type=FOLDER, default=Path("runs"), show_default=True, help="For results of a real table.")
def main(sets: list[str], data: Path | None, runs: Path, out: Path) -> None:
    """Run the commands of sets."""
    if data is None:
        run_missing(out / "generated.csv", ["set"], ((name,) for name in sets), trial, ["seconds", "peak_gib"])
    elif len(sets) != 1:
        raise click.UsageError("--data is the table of one set: name it with --sets")
    else:
        subprocess.run(called(sets[0], data, runs / sets[0], short=False), check=True)


if __name__ == "__main__":
    main()
