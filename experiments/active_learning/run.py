"""Active learning with several posteriors and a Gaussian process on eight sets, on the same splits.

    python -m experiments.active_learning.run
    python -m experiments.active_learning.run --datasets boston --methods noisy-kfac,ensemble

Zhang et al.: Noisy Natural Gradient as Variational Inference (2017), Table 2: 20 labels, 9 more one by one, 100 test
points; 40 trials. Each posterior labels at random, where its predictive variance is largest, and by `epig`, and has its
own preset for few labels. Seed 1, on which settings of noisy K-FAC have been looked at before on Boston; on the other
sets nothing has been chosen.

Writes results/trials.csv (a line a data set, method, arm and trial: `area`, the mean RMSE over all rounds, and `last`,
that of the last one), results/curves.csv (means over the trials by round), results/table.md and results/curves.png.
What is there is not run again, and what was stopped goes on.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click
import matplotlib.pyplot as plt
import pandas as pd

from experiments import driver
from experiments.active_default.run import OTHERS, TRIALS, process, trials
from experiments.driver import FOLDER, experiment, merge, names, run_missing, with_key, write
from experiments.tables import markdown, mean_se, sections

HERE = Path(__file__).parent
DATASETS = ("boston", *OTHERS)
SEED = 1
RULES = ("max-variance", "epig")
METHODS: dict[str, list[str]] = {
    name: ["--posterior", name]
    for name in (
        "noisy-kfac",
        "noisy-ekfac",
        "block-tridiagonal",
        "slang",
        "vogn",
        "bbb",
        "whvi",
        "ensemble",
        "mclmc",
        "hmc",
    )
} | {
    "noisy-kfac x 5": ["--posterior", "noisy-kfac", "-p", "members=5"],
    "quick mclmc": ["--posterior", "mclmc", "--preset", "quick"],
}
PROCESS = "Gaussian process"
KEY = ["dataset", "method", "rule"]
SHOWN = (("noisy-kfac", "random"), *((name, "max-variance") for name in ("noisy-kfac", "ensemble", PROCESS)))


def posterior(dataset: str, method: str, rule: str, runs: Path) -> pd.DataFrame:
    """The curves of `explore active`: arm, trial, round, rmse; that labels at random runs beside the first rule."""
    options = [
        "--dataset", dataset, *METHODS[method], "--acquisition", rule, "--trials", str(TRIALS), "--seed", str(SEED),
        "--control" if rule == RULES[0] else "--no-control",
    ]  # fmt: skip
    return driver.active(runs, f"{dataset}-{method}-{rule}".replace(" ", "-"), *options)


def anchor(dataset: str) -> pd.DataFrame:
    """The same of the process."""
    rows = process(dataset, SEED)
    return rows.assign(arm=rows.arm.replace("active", RULES[0]))


def train(dataset: str, method: str, rule: str, *, runs: Path, curves: Path) -> pd.DataFrame:
    """Run a cell: its trials. Means over them by round are written to `curves`."""
    rows = anchor(dataset) if method == PROCESS else posterior(dataset, method, rule, runs)
    means = rows.groupby(["arm", "round"]).rmse.agg(["mean", "sem"]).reset_index()
    merge(curves, with_key(means, KEY, (dataset, method, rule)), KEY)
    return trials(rows)


def tables(every: pd.DataFrame) -> str:
    """By data set: areas, and their differences to labelling at random, paired by trial."""
    made = {}
    for dataset, own in every.groupby("dataset", sort=False):
        form = ".3f" if own.area.mean() > 0.3 else ".5f"
        lines = []
        for method, found in own.groupby("method", sort=False):
            area, last = (found.pivot(index="trial", columns="arm", values=value) for value in ("area", "last"))
            apart = [_difference(area[rule] - area.random, form) if rule in area else "" for rule in RULES]
            ends = [mean_se(last[arm], form) if arm in last else "" for arm in ("random", *RULES)]
            lines.append([method, mean_se(area.random, form), *apart, *ends])
        differences, ends = [f"{rule} − random" for rule in RULES], [f"last: {arm}" for arm in ("random", *RULES)]
        made[str(dataset)] = markdown(["", "random: area", *differences, *ends], lines)
    return sections(made)


def _difference(values: pd.Series, form: str) -> str:
    mean, error = map(float, values.agg(["mean", "sem"]))
    return f"{mean_se(values, form)} ({mean / error:+.1f})"


def picture(curves: pd.DataFrame, path: Path) -> None:
    """The mean test error by labels, on each set."""
    sets = [name for name in DATASETS if name in set(curves.dataset)]
    figure, axes = plt.subplots(2, -(-len(sets) // 2), figsize=(14, 6), squeeze=False, layout="constrained")
    for ax, name in zip(axes.flat, sets, strict=False):
        for method, arm in SHOWN:
            line = curves[(curves.dataset == name) & (curves.method == method) & (curves.arm == arm)]
            ax.errorbar(19 + line["round"], line["mean"], line["sem"], label=f"{method}, {arm}", capsize=2)
        ax.set(title=name, xlabel="labels", ylabel="RMSE")
    axes[0][0].legend(fontsize="small")
    figure.savefig(path, dpi=100)


@experiment(__file__)
@names("--datasets", "data set", DATASETS)
@names("--methods", "method", [*METHODS, PROCESS], [name for name in [*METHODS, PROCESS] if name != "hmc"])
@click.option("--runs", type=FOLDER, default=HERE / "runs", show_default=True, help="For run folders.")
def main(datasets: list[str], methods: list[str], runs: Path, out: Path) -> None:
    """Run what is missing, and write the tables."""
    cells = (
        (dataset, method, rule)
        for method in methods
        for dataset in datasets
        for rule in (RULES[:1] if method == PROCESS else RULES)
    )
    run = partial(train, runs=runs, curves=out / "curves.csv")
    write(out / "table.md", tables(run_missing(out / "trials.csv", KEY, cells, run)))
    picture(pd.read_csv(out / "curves.csv"), out / "curves.png")


if __name__ == "__main__":
    main()
