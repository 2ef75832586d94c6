"""The numbers of the runs that `run.py` has made, as tables.

    python -m experiments.sparse_control.collect

Writes, of what is complete, results/curves.csv (the figure's conditions: a line a task, condition, seed and iteration),
results/runs.csv (a line a run: its mean return, its time and the commits it was made at), results/tuning.csv (the
returns that chose eta), and results/further.csv and results/further_runs.csv (the further conditions). A run replaces
what the tables have of the same task, condition, variant and seed, under whatever eta; runs that are not here keep
their lines. A return is the environment's own reward in an iteration per 500 steps, the length of an episode that does
not end before. `moved`, of runs without a bonus, is the largest change of any parameter of policy and critic between
the run's begin and its end.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import click
import pandas as pd
import torch
from sb3_contrib import TRPO

from experiments.driver import FOLDER, commits, merge
from experiments.sparse_control.run import BATCH, HERE, POSTERIORS, TASKS, Job, chosen, further, tuning
from explore.cli.rl.environment import environments
from explore.cli.rl.model import algorithm, derived
from explore.cli.rl.settings import Settings
from explore.cli.script import Script
from explore.core.errors import InputError
from explore.runs.recorded import read

HORIZON = 500
KEPT = ["extrinsic_total", "ep_extrinsic_mean", "success", "bonus_mean", "bonus_median", "dyn_nll_before",
        "dyn_rmse_before", "dyn_coverage_95_before", "bonus_share", "seconds"]  # fmt: skip
KEY = ["task", "condition", "variant", "eta", "seed"]
TUNED = ["task", "condition", "eta", "seed"]


def figure(runs: Path, seeds: int, iterations: int) -> Iterator[Job]:
    """The runs of the figure whose eta is known."""
    for task in TASKS:
        for name in ("none", *POSTERIORS):
            try:
                eta = chosen(runs, task, name)
            except InputError:
                continue
            yield from (Job(task, name, eta, seed, iterations) for seed in range(seeds))


def complete(jobs: Iterable[Job], runs: Path) -> Iterator[tuple[Job, pd.DataFrame]]:
    """The runs that are complete, with `KEY` and the return in each line."""
    for job in jobs:
        rows = job.rows(runs).head(job.iterations)
        if len(rows) == job.iterations:
            key = dict(zip(KEY, (job.task, job.posterior, job.variant, job.eta, job.seed), strict=True))
            yield job, rows.assign(**key, **{"return": rows["extrinsic_total"] * HORIZON / BATCH})


def curves(jobs: Iterable[Job], runs: Path) -> pd.DataFrame:
    """All iterations."""
    columns = [*KEY, "iteration", "return", *KEPT]
    found = [rows[columns] for _, rows in complete(jobs, runs)]
    return pd.concat(found) if found else pd.DataFrame(columns=columns)


def summary(jobs: Iterable[Job], runs: Path) -> pd.DataFrame:
    """Each run's mean return, seconds, the commits of its sessions, and how far its policy moved."""
    lines = []
    for job, rows in complete(jobs, runs):
        own = (len(rows), rows["return"].mean(), rows["seconds"].sum(), commits(job.folder(runs)), moved(job, runs))
        lines.append((*rows[KEY].iloc[0], *own))
    return pd.DataFrame(lines, columns=[*KEY, "iterations", "mean_return", "seconds", "commits", "moved"])


def moved(job: Job, runs: Path) -> float | None:
    """The largest change of a parameter in a run without a bonus; None: it has one, or its policy is not there."""
    saved = list(job.folder(runs).glob("models/*/*/model.zip"))
    if job.posterior != "none" or not saved:
        return None
    config = job.folder(runs) / "config.json"
    settings = read(Settings, json.loads(config.read_text())["settings"], str(config))
    env = environments(settings, settings.n_envs)
    begun = algorithm(settings, env, 0, derived(job.seed, 0), "cpu").policy.state_dict()
    ended = TRPO.load(max(saved, key=lambda path: int(path.parent.name)), device="cpu").policy.state_dict()
    env.close()
    return max(float((ended[name] - value).abs().max()) for name, value in begun.items())


def tuned(runs: Path) -> pd.DataFrame:
    """Mean return over the iterations of each run with an eta of the grid."""
    jobs = (job for task in TASKS for job in tuning(task, list(POSTERIORS)))
    found = [(*rows[TUNED].iloc[0], rows["return"].mean()) for _, rows in complete(jobs, runs)]
    return pd.DataFrame(found, columns=[*TUNED, "return"]).rename(columns={"condition": "posterior"})


@click.command(cls=Script)
@click.option("--seeds", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--iterations", type=click.IntRange(min=1), default=100, show_default=True)
@click.option("--runs", type=FOLDER, default=HERE / "runs", show_default=True)
@click.option("--out", type=FOLDER, default=HERE / "results", show_default=True)
def main(seeds: int, iterations: int, runs: Path, out: Path) -> None:
    """Read the run folders and put their lines into the tables."""
    torch.set_num_threads(1)
    own, more = list(figure(runs, seeds, iterations)), list(further(seeds, iterations))
    run = ["task", "condition", "seed"]
    tables = {
        "curves": (curves(own, runs).drop(columns=["variant", "bonus_mean"]), run),
        "runs": (summary(own, runs).drop(columns=["variant", "moved"]), run),
        "tuning": (tuned(runs), ["task", "posterior", "eta", "seed"]),
        "further": (curves(more, runs), [*run, "variant"]),
        "further_runs": (summary(more, runs), [*run, "variant"]),
    }
    for name, (table, key) in tables.items():
        if len(table):
            merge(out / f"{name}.csv", table, key, "%.5g")
        click.echo(f"{name}.csv: {f'{len(table)} lines' if len(table) else 'no run is complete; left as it is'}")


if __name__ == "__main__":
    main()
