"""What README.md says of the runs, from the tables that `collect.py` has made of them.

    python -m experiments.sparse_control.report

Writes results/table.md (medians over seeds with their quartiles; random network distillation as one more condition),
results/further.md (the further conditions, seed by seed), results/comparisons.csv (every two conditions of a task) and
results/figure.png. Two conditions are compared by the seeds' returns, each the mean over all iterations: the difference
of the medians with its bootstrapped 90 % interval, and the two-sided p-value of the Mann-Whitney test, exact (over all
ways to deal the returns to both sides), by itself and after Holm's correction for all pairs of the task. `p_first` is
the same test of the first iteration with reward; a seed that never has any is later than all others.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import click
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from scipy import stats

from experiments.driver import FOLDER
from experiments.sparse_control.run import BATCH, CONDITIONS, HERE, RND
from experiments.tables import markdown, sections
from explore.cli.script import Script
from explore.core.errors import InputError

LAST = 10  # iterations that decide whether a run has solved its task
PAIR = ["task", "condition", "beside"]


def read(folder: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The figure's conditions, with random network distillation where there is any, and the further ones."""
    every = pd.read_csv(folder / "curves.csv")
    if not (folder / "further.csv").exists():
        return every, pd.DataFrame(columns=[*every.columns, "variant"])
    more = pd.read_csv(folder / "further.csv", keep_default_na=False, na_values=[""]).fillna({"variant": ""})
    figure = (more["condition"] == RND) & (more["variant"] == "")
    return pd.concat([every, more[figure]]), more[~figure]


def comparisons(every: pd.DataFrame) -> pd.DataFrame:
    """Each two conditions of a task."""
    found = []
    for task, part in every.groupby("task", sort=False):
        means = mean_return(part.groupby(["condition", "seed"], sort=False))
        starts = part["iteration"].where(part["extrinsic_total"] > 0, np.inf).groupby([part["condition"], part["seed"]])
        firsts = starts.min()
        names = list(part["condition"].unique())
        for first, second in itertools.combinations(reversed(names), 2):
            p_first = mann_whitney(firsts[first], firsts[second])
            found.append((task, first, second, *difference(means[first], means[second]), p_first))
    table = pd.DataFrame(found, columns=[*PAIR, "difference", "low", "high", "p", "p_first"])
    table.insert(len(table.columns) - 1, "p_holm", table.groupby("task")["p"].transform(holm))
    return table


def mean_return(groups: Any) -> pd.Series:
    """Of each group. Versions of pandas differ in the last bit, by which a printed half would go either way."""
    return groups["return"].mean().round(9)


def difference(first: pd.Series, second: pd.Series) -> tuple[float, float, float, float]:
    """Of the medians, its 90 % interval, and the p-value of no difference."""
    interval = stats.bootstrap(
        (first, second), lambda a, b, axis: np.median(a, axis) - np.median(b, axis), n_resamples=10_000,
        confidence_level=0.9, method="percentile", rng=np.random.default_rng(0),
    ).confidence_interval  # fmt: skip
    return first.median() - second.median(), interval.low, interval.high, mann_whitney(first, second)


def mann_whitney(first: pd.Series, second: pd.Series) -> float:
    """The two-sided p-value; ties are dealt like all else."""
    ranks = stats.rankdata([*first, *second])  # infinities are no obstacle to ranks
    sides = ranks[: len(first)], ranks[len(first) :]
    return float(stats.mannwhitneyu(*sides, method=stats.PermutationMethod(n_resamples=100_000)).pvalue)


def holm(p: pd.Series) -> pd.Series:
    """The p-values of several tests, such that the chance of any error is kept."""
    order = p.sort_values().index
    factors = pd.Series(range(len(p), 0, -1), order)
    return (p[order] * factors).cummax().clip(upper=1).reindex(p.index)


def begun(rows: pd.DataFrame) -> pd.Series:
    """The first iteration with reward of each seed that has any."""
    return rows[rows["extrinsic_total"] > 0].groupby("seed")["iteration"].min()


def last(rows: pd.DataFrame) -> pd.DataFrame:
    """The last iterations."""
    return rows[rows["iteration"] > rows["iteration"].max() - LAST]


def eta(rows: pd.DataFrame) -> str:
    """That of a condition."""
    found = [f"{value:g}" for value in rows["eta"].dropna().unique()]
    if len(found) > 1:
        task, condition = rows[PAIR[:2]].iloc[0]
        raise InputError(f"{task}, {condition}: the seeds have {' and '.join(found)} as eta; collect all of one")
    return "".join(found)


def spread(values: pd.Series, digits: int = 2) -> str:
    """Median and quartiles."""
    low, middle, high = values.quantile([0.25, 0.5, 0.75])
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def table(every: pd.DataFrame, compared: pd.DataFrame) -> str:
    """Per task and condition: medians over seeds with their quartiles."""
    heads = ["condition", "eta", "seeds", "return, mean of all iterations", "minus no bonus, 90 % interval", "p",
             f"return, last {LAST}", f"seeds with reward in each of the last {LAST}", "first iteration with reward",
             "95 % coverage", "bonus's share of the time"]  # fmt: skip
    beside = compared[compared["beside"] == "none"].set_index(PAIR[:2])
    tables = {}
    for task, part in every.groupby("task", sort=False):
        lines = []
        for name, rows in part.groupby("condition", sort=False):
            seeds, ends, first = rows.groupby("seed"), last(rows).groupby("seed"), begun(rows)
            solved = (ends["extrinsic_total"].min() > 0).sum()
            against = ["", ""]
            if (task, name) in beside.index:
                row = beside.loc[[(task, name)]].iloc[0]
                against = [f"{row['difference']:.2f} ({row['low']:.2f} to {row['high']:.2f})", f"{row['p']:.3f}"]
            model = []
            for column, digits in (("dyn_coverage_95_before", 3), ("bonus_share", 2)):
                value = seeds[column].median().median()
                model.append("" if np.isnan(value) else f"{value:.{digits}f}")
            paid = f"{first.median():.0f} ({len(first)} seeds)" if len(first) else "never"
            cells = [str(name), eta(rows), str(len(seeds)), spread(mean_return(seeds)), *against,
                     spread(mean_return(ends)), f"{solved} of {len(seeds)}", paid, *model]  # fmt: skip
            lines.append(cells)
        tables[str(task)] = markdown(heads, lines)
    return sections(tables)


def further(more: pd.DataFrame, runs: pd.DataFrame) -> str:
    """Per further condition: each seed's numbers, in the order of seeds."""
    heads = ["task", "condition", "variant", "eta", "seeds", "return, mean of all iterations", f"return, last {LAST}",
             "first iteration with reward", "parameters moved"]  # fmt: skip
    names, lines = heads[:3], []
    for key, rows in more.groupby(names, sort=False):
        seeds, first = rows.groupby("seed"), begun(rows)
        own = runs[(runs[names] == list(key)).all(axis=1) & runs["seed"].isin(seeds.groups)]["moved"]
        lines.append([
            *key, eta(rows), " ".join(map(str, seeds.groups)),
            _each(mean_return(seeds)), _each(mean_return(last(rows).groupby("seed"))),
            " ".join(str(first.get(seed, "never")) for seed in seeds.groups),
            "" if own.isna().all() else " ".join(f"{value:.2g}" for value in own),
        ])  # fmt: skip
    return markdown(heads, lines)


def _each(values: pd.Series) -> str:
    return " ".join(f"{value:.2f}" for value in values)


def plot(every: pd.DataFrame, path: Path) -> None:
    """Median and quartiles of the return by iteration."""
    tasks = list(every["task"].unique())
    figure, axes = plt.subplots(1, len(tasks), figsize=(5.5 * len(tasks), 4), squeeze=False, layout="constrained")
    for axis, task in zip(axes[0], tasks, strict=True):
        for i, name in enumerate(CONDITIONS):
            rows = every[(every["task"] == task) & (every["condition"] == name)]
            if rows.empty:
                continue
            by = rows.groupby("iteration")["return"]
            colour = "black" if name == "none" else f"C{i - 1}"
            axis.plot(by.median(), color=colour, label="no bonus" if name == "none" else name)
            axis.fill_between(by.median().index, by.quantile(0.25), by.quantile(0.75), color=colour, alpha=0.15)
        axis.set(title=task, xlabel=f"iteration ({BATCH} steps)", ylabel="return per 500 steps")
    shown = {label: line for axis in axes[0] for line, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(shown.values(), shown.keys(), loc="outside lower center", ncols=len(shown))
    figure.savefig(path, dpi=120)
    plt.close(figure)


@click.command(cls=Script)
@click.option("--results", type=FOLDER, default=HERE / "results", show_default=True)
def main(results: Path) -> None:
    """Read the tables and write what is shown of them."""
    every, more = read(results)
    compared = comparisons(every)
    compared.to_csv(results / "comparisons.csv", index=False, float_format="%.4g")
    (results / "table.md").write_text(table(every, compared))
    click.echo((results / "table.md").read_text())
    if len(more):
        (results / "further.md").write_text(
            further(more, pd.read_csv(results / "further_runs.csv").fillna({"variant": ""}))
        )
        click.echo((results / "further.md").read_text())
    plot(every, results / "figure.png")


if __name__ == "__main__":
    main()
