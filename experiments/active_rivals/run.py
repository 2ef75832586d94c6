"""Active learning with the recommended posterior, beside rivals, on eight sets and three seeds.

    python -m experiments.active_rivals.run
    python -m experiments.active_rivals.run --sets boston --methods recommended,ensemble
    python -m experiments.active_rivals.run --methods tens,lcmd --seeds 11 --python FOLDER/bin/python

Twenty labels, nine more one by one, 100 points to test on; 20 trials of each of the seeds 11, 12 and 13, which were
named before anything ran. All methods start from the same labels. `recommended` has no options at all. `tens` is the
same with five batches of ten labels, and `lcmd` that of bmdal_reg (Holzmueller et al.: A Framework and Benchmark for
Deep Batch Active Learning for Regression, 2023), with its own network. Writes results/trials.csv, a line per set,
method, rule, seed, arm and trial: `area`, the mean RMSE over all rounds, and `last`, that of the last one; and
results/table.md. What is there is not run again, and what was stopped goes on.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import pandas as pd

from experiments import driver
from experiments.active_default.run import OTHERS, trials
from experiments.driver import FOLDER, Integers, Key, experiment, names, run_missing, write
from experiments.tables import markdown, mean_se, sections
from explore.core.errors import InputError
from explore.data import load
from explore.data.base import pool_splits

HERE = Path(__file__).parent
SETS = ("boston", *OTHERS)
SEEDS, TRIALS = (11, 12, 13), 20
BATCH, ROUNDS = 10, 6  # of `tens` and `lcmd`
ARD = ["--posterior", "gp", "--likelihood", "gaussian", "-p", "draws=1", "-p", "hyperprior=false"]
ENSEMBLE = ["--posterior", "ensemble", "--likelihood", "heteroscedastic", "--hidden", "50", "--epochs", "200"]
ENSEMBLE += ["-p", "lr=0.01", "-p", "batch_size=16", "-p", "prior_variance=0.1"]  # of the lowest RMSE in `few_labels`
METHODS: dict[str, tuple[list[str], tuple[str, ...]]] = {  # options, and rules beside random choice
    "recommended": ([], ("variance-reduction", "core-set")),
    "noisy-kfac": (["--posterior", "noisy-kfac"], ("variance-reduction",)),
    "ensemble": (ENSEMBLE, ("variance-reduction",)),
    "ARD process": (ARD, ("variance-reduction", "epig", "max-variance")),
}
TENS = {
    "tens": (["--acquire", str(BATCH), "--rounds", str(ROUNDS)], ("variance-reduction",)),
    "lcmd": ([], ("lcmd",)),
}
EVERY = METHODS | TENS
KEY = ["set", "method", "rule", "seed"]


def run(runs: Path, python: str | None, name: str, method: str, rule: str, seed: int) -> pd.DataFrame:
    """The trials of a cell; those that label at random run beside the first rule."""
    if method == "lcmd":
        return lcmd(python, name, seed)
    options, rules = EVERY[method]
    control = "--control" if rule == rules[0] else "--no-control"
    asked = ["--dataset", name, *options, "--acquisition", rule, "--trials", str(TRIALS), "--seed", str(seed), control]
    return trials(driver.active(runs, f"{name}-{method}-{rule}-{seed}".replace(" ", "-"), *asked))


def lcmd(python: str | None, name: str, seed: int) -> pd.DataFrame:
    """The trials of bmdal_reg, in a process of its environment."""
    if python is None:
        raise InputError("lcmd needs --python with the interpreter of environment.sh")
    data = load(name)
    split = pool_splits(len(data.x), TRIALS, 20, 100, seed)
    with tempfile.TemporaryDirectory() as folder:
        path, out = Path(folder) / "trials.npz", Path(folder) / "out.npz"
        parts = {"initial": split.labelled, "test": split.test, "pool": split.pool}
        np.savez(path, x=data.x, y=data.y.ravel(), batch=BATCH, rounds=ROUNDS, **parts)  # type: ignore[arg-type]
        worker = str(HERE / "lcmd_worker.py")
        subprocess.run([python, worker, str(path), str(out)], check=True, capture_output=True)
        rmse = np.load(out)["rmse"]
    return pd.DataFrame(
        {"arm": "lcmd", "trial": range(1, TRIALS + 1), "area": rmse.mean(1), "last": rmse[:, -1]}
    ).assign(commits=driver.commit())


def compared(difference: pd.Series) -> str:
    """Format a mean difference, and in brackets the number of its standard errors."""
    mean, error = map(float, difference.agg(["mean", "sem"]))
    return f"{mean_se(difference, '.3g')} ({mean / error:+.1f})"


def overview(rows: pd.DataFrame) -> str:
    """A line per set: the recommended posterior's area beside rivals, each with its best rule, in percent."""
    lines = []
    for name, own in rows.groupby("set", sort=False):
        area = own.pivot_table(index=["seed", "trial"], columns=["method", "arm"], values="area", sort=False)
        best = area["recommended", "variance-reduction"]
        columns: Any = area.columns
        means: dict[tuple[str, str], float] = {key: float(area[key].mean()) for key in columns}
        rivals = [("recommended", "random"), ("recommended", "core-set")]
        for method in list(METHODS)[1:]:
            rivals.append(min((key for key in means if key[0] == method and key[1] != "random"), key=means.__getitem__))
        cells = []
        for rival in rivals:
            mean, error = map(float, (best - area[rival]).dropna().agg(["mean", "sem"]))
            cells.append(f"{mean / means[rival]:+.1%} ({mean / error:+.1f})")
        lines.append([name, len(best.dropna()), mean_se(best.dropna(), ".4g"), f"{best.median():.4g}", *cells])
    heads = ["", "trials", "area", "median", "random", "core-set", *list(METHODS)[1:]]
    return markdown(heads, lines)


def table(rows: pd.DataFrame, base: str) -> str:
    """By set: areas, and their differences from those of the base's own rule, paired by trial."""
    made = {}
    for name, own in rows.groupby("set", sort=False):
        area = own.pivot_table(index=["seed", "trial"], columns=["method", "arm"], values="area", sort=False)
        last = own.pivot_table(index=["seed", "trial"], columns=["method", "arm"], values="last", sort=False)
        best, lines = (base, "variance-reduction"), []
        for method, arm in [*area.columns]:
            found = area[method, arm]
            control = area.get((method, "random"))
            from_random = "" if control is None or arm == "random" else compared((found - control).dropna())
            apart = "" if (method, arm) == best else compared((area[best] - found).dropna())
            end = mean_se(last[method, arm].dropna(), ".4g")
            areas = mean_se(found.dropna(), ".4g"), f"{found.median():.4g}"
            lines.append([method, arm, *areas, end, from_random, apart])
        heads = ["", "rule", "area", "median", "last", "- random", f"{base} - this"]
        made[str(name)] = markdown(heads, lines)
    return sections(made)


@experiment(__file__)
@names("--sets", "set", SETS)
@names("--methods", "method", EVERY, METHODS)
@click.option("--seeds", type=Integers(), default=",".join(map(str, SEEDS)), show_default=True)
@click.option("--runs", type=FOLDER, default=HERE / "runs", help="For run folders.")
@click.option("--python", help="Interpreter of the environment of bmdal_reg.")
def main(
    sets: list[str], methods: list[str], seeds: tuple[int, ...], runs: Path, python: str | None, out: Path
) -> None:
    """Run what is missing."""

    def cells() -> Iterator[Key]:
        for seed in seeds:
            for name in sets:
                for method in methods:
                    yield from ((name, method, rule, seed) for rule in EVERY[method][1])

    frame = run_missing(out / "trials.csv", KEY, cells(), lambda *cell: run(runs, python, *cell), ["area", "last"])
    ones, tens = (frame[frame.method.isin(group)] for group in (METHODS, TENS))
    parts = [overview(ones) + "\n" + table(ones, "recommended"), *([table(tens, "tens")] if len(tens) else [])]
    write(out / "table.md", "\n\nBatches of ten:\n\n".join(parts))


if __name__ == "__main__":
    main()
