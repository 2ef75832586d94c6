"""Results of the runs that `run.py` has made: curves, table and figure.

    python experiments/sparse_control/report.py

Writes results/curves.csv (a line a task, condition, seed and iteration), results/runs.csv (a line a run: its mean
return, its time and the commits it was made at), results/tuning.csv (the returns that chose eta), results/table.md and
results/figure.png. A return is the environment's own reward in an iteration per 500 steps, the length of an episode
that does not end before. Only seeds whose runs are complete count.
"""

from __future__ import annotations

import json
from pathlib import Path

import click
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from run import BATCH, HERE, POSTERIORS, TASKS, Job, chosen, tuning

from explore.cli.script import Script
from explore.errors import InputError

HORIZON = 500
LAST = 10  # iterations that decide whether a run has solved its task
KEPT = ["extrinsic_total", "ep_extrinsic_mean", "success", "bonus_median", "dyn_nll_before", "dyn_rmse_before",
        "dyn_coverage_95_before", "bonus_share", "seconds"]  # fmt: skip


def curves(runs: Path, seeds: int, iterations: int) -> pd.DataFrame:
    """All iterations of the complete runs."""
    found = []
    for task in TASKS:
        for name in ("none", *POSTERIORS):
            try:
                eta = chosen(runs, task, name)
            except InputError:
                continue
            for seed in range(seeds):
                rows = Job(task, name, eta, seed, iterations).rows(runs)
                if len(rows) >= iterations:
                    first = {"task": task, "condition": name, "eta": eta, "seed": seed}
                    found.append(rows[["iteration", *KEPT]].head(iterations).assign(**first))
    if not found:
        raise InputError("no run is complete")
    every = pd.concat(found)
    every["return"] = every["extrinsic_total"] * HORIZON / BATCH
    return every[["task", "condition", "eta", "seed", "iteration", "return", *KEPT]]


def summary(every: pd.DataFrame, runs: Path) -> pd.DataFrame:
    """Each run's mean return, seconds, and the commits of its sessions."""
    lines = []
    for key, rows in every.groupby(["task", "condition", "eta", "seed"], sort=False, dropna=False):
        task, name, eta, seed = key
        config = Job(task, name, None if name == "none" else eta, seed, len(rows)).folder(runs) / "config.json"
        sessions = json.loads(config.read_text())["sessions"]
        commits = " ".join(dict.fromkeys(session["git"]["commit"][:7] for session in sessions))
        lines.append((*key, len(rows), rows["return"].mean(), rows["seconds"].sum(), commits))
    columns = ["task", "condition", "eta", "seed", "iterations", "mean_return", "seconds", "commits"]
    return pd.DataFrame(lines, columns=columns)


def tuned(runs: Path) -> pd.DataFrame:
    """Mean return over the iterations of each complete run with an eta of the grid."""
    found = []
    for job in (job for task in TASKS for job in tuning(task, list(POSTERIORS))):
        rows = job.rows(runs)
        if len(rows) >= job.iterations:
            mean = rows["extrinsic_total"].mean() * HORIZON / BATCH
            found.append((job.task, job.posterior, job.eta, job.seed, mean))
    return pd.DataFrame(found, columns=["task", "posterior", "eta", "seed", "return"])


def difference(own: pd.Series, none: pd.Series) -> tuple[float, float, float]:
    """The difference of two medians over seeds, with the bootstrap's central 90 % interval."""
    rng = np.random.default_rng(0)
    draws = [np.median(rng.choice(values, (10_000, len(values))), 1) for values in (own, none)]
    low, high = np.quantile(draws[0] - draws[1], [0.05, 0.95])
    return own.median() - none.median(), float(low), float(high)


def table(every: pd.DataFrame) -> str:
    """Per task and condition: medians over seeds with their quartiles."""

    def spread(values: pd.Series, digits: int = 2) -> str:
        low, middle, high = values.quantile([0.25, 0.5, 0.75])
        return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"

    heads = ["condition", "eta", "seeds", "return, mean of all iterations", "minus no bonus, 90 % interval",
             f"return, last {LAST}",
             f"seeds with reward in each of the last {LAST}", "first iteration with reward", "dynamics NLL",
             "95 % coverage", "bonus's share of the time"]  # fmt: skip
    lines = []
    for task, part in every.groupby("task", sort=False):
        lines += ["", f"**{task}**", "", "| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
        means = part.groupby(["condition", "seed"])["return"].mean()
        for name, rows in part.groupby("condition", sort=False):
            last = rows[rows["iteration"] > rows["iteration"].max() - LAST]
            seeds = rows.groupby("seed")
            solved = (last.groupby("seed")["extrinsic_total"].min() > 0).sum()
            first = rows[rows["extrinsic_total"] > 0].groupby("seed")["iteration"].min()
            begun = f"{first.median():.0f} ({len(first)} seeds)" if len(first) else "never"
            eta = "" if rows["eta"].isna().all() else f"{rows['eta'].iloc[0]:g}"
            beside, model = "", ["", "", ""]
            if name != "none" and "none" in means:
                middle, low, high = difference(means[name], means["none"])
                beside = f"{middle:.2f} ({low:.2f} to {high:.2f})"
            if rows["dyn_nll_before"].notna().any():
                nll, covered, share = (
                    seeds[c].median().median() for c in ("dyn_nll_before", "dyn_coverage_95_before", "bonus_share")
                )
                model = [f"{nll:.2f}", f"{covered:.3f}", f"{share:.2f}"]
            lines.append(
                "| " + " | ".join([
                    str(name), eta, str(len(seeds)), spread(seeds["return"].mean()), beside,
                    spread(last.groupby("seed")["return"].mean()), f"{solved} of {len(seeds)}", begun, *model,
                ]) + " |"
            )  # fmt: skip
    return "\n".join(lines[1:]) + "\n"


def draw(every: pd.DataFrame, path: Path) -> None:
    """Median and quartiles of the return by iteration."""
    tasks = list(every["task"].unique())
    figure, axes = plt.subplots(1, len(tasks), figsize=(5.5 * len(tasks), 4), squeeze=False, layout="constrained")
    for axis, task in zip(axes[0], tasks, strict=True):
        for i, name in enumerate(("none", *POSTERIORS)):
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


@click.command(cls=Script)
@click.option("--seeds", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--iterations", type=click.IntRange(min=1), default=100, show_default=True)
@click.option("--runs", type=click.Path(file_okay=False, path_type=Path), default=HERE / "runs", show_default=True)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=HERE / "results", show_default=True)
def main(seeds: int, iterations: int, runs: Path, out: Path) -> None:
    """Read the run folders and write the results."""
    out.mkdir(parents=True, exist_ok=True)
    every = curves(runs, seeds, iterations)
    every.to_csv(out / "curves.csv", index=False, float_format="%.5g")
    summary(every, runs).to_csv(out / "runs.csv", index=False, float_format="%.5g")
    tuned(runs).to_csv(out / "tuning.csv", index=False, float_format="%.5g")
    (out / "table.md").write_text(table(every))
    draw(every, out / "figure.png")
    click.echo((out / "table.md").read_text())


if __name__ == "__main__":
    main()
