"""The numbers of the runs that `run.py` has made, as tables.

    python experiments/sparse_control/collect.py

Writes, of what is complete, results/curves.csv (the figure's conditions: a line a task, condition, seed and iteration),
results/runs.csv (a line a run: its mean return, its time and the commits it was made at), results/tuning.csv (the
returns that chose eta), and results/further.csv and results/further_runs.csv (the further conditions). A return is the
environment's own reward in an iteration per 500 steps, the length of an episode that does not end before. `moved`, of
runs without a bonus, is the largest change of any parameter of policy and critic between the run's begin and its end.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import click
import pandas as pd
import torch
from run import BATCH, HERE, POSTERIORS, TASKS, Job, chosen, further, tuning
from sb3_contrib import TRPO

from explore.cli import rl_problem
from explore.cli.script import Script
from explore.errors import InputError

HORIZON = 500
KEPT = ["extrinsic_total", "ep_extrinsic_mean", "success", "bonus_mean", "bonus_median", "dyn_nll_before",
        "dyn_rmse_before", "dyn_coverage_95_before", "bonus_share", "seconds"]  # fmt: skip
KEY = ["task", "condition", "variant", "eta", "seed"]


def figure(runs: Path, seeds: int, iterations: int) -> Iterator[Job]:
    """The runs of the figure whose eta is known."""
    for task in TASKS:
        for name in ("none", *POSTERIORS):
            try:
                eta = chosen(runs, task, name)
            except InputError:
                continue
            yield from (Job(task, name, eta, seed, iterations) for seed in range(seeds))


def curves(jobs: Iterable[Job], runs: Path) -> pd.DataFrame:
    """All iterations of the complete runs."""
    found = [pd.DataFrame(columns=[*KEY, "iteration", *KEPT])]
    for job in jobs:
        rows = job.rows(runs)
        if len(rows) >= job.iterations:
            first = dict(zip(KEY, (job.task, job.posterior, job.variant, job.eta, job.seed), strict=True))
            found.append(rows[["iteration", *KEPT]].head(job.iterations).assign(**first))
    every = pd.concat(found[1:] or found)
    every["return"] = every["extrinsic_total"] * HORIZON / BATCH
    return every[[*KEY, "iteration", "return", *KEPT]]


def summary(jobs: Iterable[Job], runs: Path) -> pd.DataFrame:
    """Each complete run's mean return, seconds, the commits of its sessions, and how far its policy moved."""
    lines = []
    for job in jobs:
        rows = job.rows(runs).head(job.iterations)
        if len(rows) < job.iterations:
            continue
        sessions = json.loads((job.folder(runs) / "config.json").read_text())["sessions"]
        commits = " ".join(dict.fromkeys(session["git"]["commit"][:7] for session in sessions))
        key = (job.task, job.posterior, job.variant, job.eta, job.seed)
        mean = rows["extrinsic_total"].mean() * HORIZON / BATCH
        lines.append((*key, len(rows), mean, rows["seconds"].sum(), commits, moved(job, runs)))
    return pd.DataFrame(lines, columns=[*KEY, "iterations", "mean_return", "seconds", "commits", "moved"])


def moved(job: Job, runs: Path) -> float | None:
    """The largest change of a parameter in a run without a bonus; None: it has one, or its policy is not there."""
    saved = list(job.folder(runs).glob("models/*/*/model.zip"))
    if job.posterior != "none" or not saved:
        return None
    settings = json.loads((job.folder(runs) / "config.json").read_text())["settings"]
    env = rl_problem.environments(settings, settings["n_envs"])
    begun = rl_problem.algorithm(settings, env, 0, rl_problem.derived(job.seed, 0), "cpu").policy.state_dict()
    ended = TRPO.load(max(saved, key=lambda path: int(path.parent.name)), device="cpu").policy.state_dict()
    env.close()
    return max(float((ended[name] - value).abs().max()) for name, value in begun.items())


def tuned(runs: Path) -> pd.DataFrame:
    """Mean return over the iterations of each complete run with an eta of the grid."""
    found = []
    for job in (job for task in TASKS for job in tuning(task, list(POSTERIORS))):
        rows = job.rows(runs)
        if len(rows) >= job.iterations:
            mean = rows["extrinsic_total"].mean() * HORIZON / BATCH
            found.append((job.task, job.posterior, job.eta, job.seed, mean))
    return pd.DataFrame(found, columns=["task", "posterior", "eta", "seed", "return"])


@click.command(cls=Script)
@click.option("--seeds", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--iterations", type=click.IntRange(min=1), default=100, show_default=True)
@click.option("--runs", type=click.Path(file_okay=False, path_type=Path), default=HERE / "runs", show_default=True)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=HERE / "results", show_default=True)
def main(seeds: int, iterations: int, runs: Path, out: Path) -> None:
    """Read the run folders and write the tables that have a line."""
    torch.set_num_threads(1)
    own, more = list(figure(runs, seeds, iterations)), list(further(seeds, iterations))
    tables = {
        "curves": curves(own, runs).drop(columns="variant"),
        "runs": summary(own, runs).drop(columns=["variant", "moved"]),
        "tuning": tuned(runs),
        "further": curves(more, runs),
        "further_runs": summary(more, runs),
    }
    out.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        if len(table):
            table.to_csv(out / f"{name}.csv", index=False, float_format="%.5g")
        click.echo(f"{name}.csv: {f'{len(table)} lines' if len(table) else 'no run is complete; left as it is'}")


if __name__ == "__main__":
    main()
