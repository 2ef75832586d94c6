"""What `explore active` says by default: five seeds of Boston and one of seven other sets, resumable.

    python -m experiments.active_default.run
    python -m experiments.active_default.run --only boston --methods gp

Prints the table of the README and writes results/trials.csv, a line a method, data set, seed, arm and trial: `area`,
the mean RMSE over all rounds, and `last`, that of the last one. What is complete is left alone, so the command may be
given again at any time. Processes run one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
import pandas as pd

from experiments import driver, tables
from experiments.active_learning import gp
from explore.data import load, pool_splits

HERE = Path(__file__).parent
TRIALS, ROUNDS, INITIAL, TEST = 40, 10, 20, 100  # but for the trials, the defaults of `explore active`
SEEDS = (101, 102, 103, 104, 105)
OTHERS = ("concrete", "energy", "yacht", "wine", "power", "kin8nm", "naval")
SMALL = ["--preset", "small", "--acquisition", "epig"]  # the defaults when this was run
METHODS = {"noisy-kfac": SMALL, "ensemble": [*SMALL, "--posterior", "ensemble"], "gp": None}
KEY = ["method", "dataset", "seed"]


def tasks() -> Iterator[tuple[str, str, int]]:
    """Method, data set and seed of each run."""
    yield from (("noisy-kfac", "boston", seed) for seed in SEEDS)
    yield from (("noisy-kfac", dataset, SEEDS[0]) for dataset in OTHERS)
    yield from ((method, "boston", seed) for method in ("gp", "ensemble") for seed in SEEDS)


def command(method: str, dataset: str, seed: int, runs: Path) -> pd.DataFrame:
    """The curves of `explore active`: arm, trial, round, rmse."""
    options = ["--dataset", dataset, *(METHODS[method] or []), "--trials", str(TRIALS), "--seed", str(seed)]
    rows = driver.active(runs, f"{dataset}-{method}-{seed}", *options)
    rows["arm"] = rows.arm.where(rows.arm == "random", "active")
    return rows


def process(dataset: str, seed: int) -> pd.DataFrame:
    """The same of a Gaussian process with one length scale that labels where its variance is largest."""
    data = load(dataset)
    split = pool_splits(len(data.x), TRIALS, INITIAL, TEST, seed)
    found = [
        {"arm": arm, "trial": t + 1, "round": i + 1, "rmse": rmse}
        for t in range(TRIALS)
        for arm in ("active", "random")
        for i, rmse in enumerate(
            gp.trial(
                data.x, data.y, split.labelled[t], split.test[t], split.pool[t], ROUNDS, False,
                np.random.default_rng([seed, t]) if arm == "random" else None,
            )
        )
    ]  # fmt: skip
    return pd.DataFrame(found).assign(commits=driver.commit())


def trials(rows: pd.DataFrame) -> pd.DataFrame:
    """A line an arm and trial, from curves."""
    curves = rows.sort_values("round").groupby(["arm", "trial", "commits"])["rmse"]
    return curves.agg(area="mean", last="last").reset_index()


def table(every: pd.DataFrame) -> str:
    """A line a data set and method, the seeds pooled; differences are paired, active minus random.

    `lower in` is the share of the trials in which the area of the active arm is the lower one.
    """
    lines = []
    for (dataset, method), rows in every.groupby(["dataset", "method"], sort=False):
        arms = rows.pivot(index=["seed", "trial"], columns="arm")
        area, last = (arms[value]["active"] - arms[value]["random"] for value in ("area", "last"))
        seeds = ", ".join(map(str, sorted(rows.seed.unique())))
        form = ".3f" if rows.area.mean() > 0.3 else ".5f"
        ratio, won = f"{area.mean() / area.sem():.1f}", f"{(area < 0).mean():.0%}"
        median = f"{area.median():{form}}"
        first, gained, end = (tables.mean_se(values, form) for values in (arms.area.random, area, last))
        lines.append([dataset, method, seeds, len(arms), first, gained, median, ratio, won, end])
    heads = ["data set", "method", "seeds", "trials", "random: area", "active − random: area", "median", "in s.e.",
             "lower in", "active − random: last round"]  # fmt: skip
    return tables.markdown(heads, lines)


@driver.experiment(__file__)
@driver.names("--only", "data set", ["boston", *OTHERS])
@driver.names("--methods", "method", METHODS)
@click.option("--runs", type=driver.FOLDER, default=HERE / "runs", show_default=True)
def main(only: list[str], methods: list[str], runs: Path, out: Path) -> None:
    """Run what is left, and print the table of what is there."""

    def run(method: str, dataset: str, seed: int) -> pd.DataFrame:
        curves = process(dataset, seed) if method == "gp" else command(method, dataset, seed, runs)
        return trials(curves)[["arm", "trial", "area", "last", "commits"]]

    cells = (cell for cell in tasks() if cell[0] in methods and cell[1] in only)
    click.echo(table(driver.run_missing(out / "trials.csv", KEY, cells, run)))


if __name__ == "__main__":
    main()
