"""Which posterior explores best? VIME on three sparse tasks, each run a command of its own.

    python -m experiments.sparse_control.run tune --jobs 2      # eta of every posterior, on a seed that is not reported
    python -m experiments.sparse_control.run train --jobs 2     # the runs of the figure
    python -m experiments.sparse_control.run further --jobs 2   # random network distillation, and single questions
    python -m experiments.sparse_control.collect                # results/*.csv
    python -m experiments.sparse_control.report                 # results/*.md, comparisons.csv and figure.png

Zhang et al.: Noisy Natural Gradient as Variational Inference (2017), Figure 3, after Houthooft et al.: VIME (2016).
Every run is `explore rl`, with a run folder under --runs; one that was interrupted is resumed, one that is complete is
left alone, so the commands may be given again at any time. --dry-run shows what is left. Settings that decide on the
numbers are given in full: defaults may change, what these commands mean does not.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import click
import pandas as pd

from experiments.driver import FOLDER, Names
from explore.cli.script import Script
from explore.core.errors import InputError

HERE = Path(__file__).parent
BATCH = 5000  # steps an iteration


class Task(NamedTuple):
    """An environment, and how its bonus is chosen."""

    environment: list[str]
    etas: tuple[float, ...]
    tuning: int  # iterations of a run that chooses eta
    clip: str = "10"  # what cuts the bonus


TASKS = {
    "mountain-car": Task(["--env", "explore/SparseMountainCar-v0"], (0.0001, 0.001, 0.01), 30, "none"),
    "cart-pole": Task(["--env", "explore/SparseCartPoleSwingup-v0"], (0.0001, 0.001), 100),
    # At VIME's threshold of 1 white noise succeeds in 98 % of the episodes.
    "double-pendulum": Task(
        ["--env", "explore/SparseDoublePendulum-v0", "--env-kwargs", "threshold:0.1"], (0.0001, 0.001), 50
    ),
}
# Beside a prior variance of 0.25: their presets `vime` when the runs were made.
POSTERIORS = {
    "noisy-kfac": "samples=5 beta=0.05 adaptive_damping=false statistics_interval=5 factor_interval=25",
    "noisy-ekfac": "samples=10 beta=0.01 adaptive_damping=false factor_interval=10 basis_interval=50 "
    "reset_interval=none",
    "slang": "samples=2 initial_precision=50 lr=0.03",
    "vogn": "samples=6 kl_start=1 lr=0.001 beta2=0.01 damping=0.0001",
    "whvi": "samples=10 lr=0.003",
    "bbb": "samples=10 lr=0.01",
}
TUNING_SEED = 100
RND = "rnd"  # random network distillation, which has no posterior
CONDITIONS = ("none", *POSTERIORS, RND)
RND_ETA = 0.001  # the default of every bonus: nothing was tuned
# What makes a condition another one than that of the figure.
VARIANTS = {
    "": [],
    "zero-critic": ["--algo-param", "value_init=zero"],
    "restarts": ["-p", "reset_interval=50"],  # of noisy-ekfac's eigenvalues, as its preset `vime` has them
}


class Job(NamedTuple):
    """One run of one seed."""

    task: str
    posterior: str
    eta: float | None  # None: no bonus
    seed: int
    iterations: int
    variant: str = ""

    @property
    def name(self) -> str:
        """Of the run folder, without `rl-`."""
        eta = "" if self.eta is None else f"-eta-{self.eta:g}"
        variant = self.variant and f"-{self.variant}"
        return f"{self.task}-{self.posterior}{eta}{variant}-seed-{self.seed}"

    def folder(self, runs: Path) -> Path:
        """The run folder."""
        return runs / f"rl-{self.name}"

    def rows(self, runs: Path) -> pd.DataFrame:
        """The iterations that are recorded."""
        file = self.folder(runs) / "results.csv"
        if not file.exists() or not file.stat().st_size:
            return pd.DataFrame({"iteration": []})
        return pd.read_csv(file)

    def command(self, runs: Path) -> list[str]:
        """What trains it, or the rest of it."""
        own = [sys.executable, "-m", "explore.cli", "rl"]
        if self.folder(runs).exists():
            return [*own, "--resume", str(self.folder(runs)), "--quiet", "--json"]
        return [
            *own, *TASKS[self.task].environment, *self._bonus(), "--seed", str(self.seed),
            "--timesteps", str(self.iterations * BATCH), "--checkpoint-freq", "10", "--out", str(runs),
            "--name", self.name, "--quiet", "--json", *VARIANTS[self.variant],
        ]  # fmt: skip

    def _bonus(self) -> list[str]:
        if self.eta is None:
            return ["--posterior", "none"]
        if self.posterior == RND:
            return ["--bonus", RND, "--eta", f"{self.eta:g}", "--normalise", "rms", "-p", "vime.clip=none"]
        paper = ["vime.updates=500", "vime.batch_size=10"]
        own = ["prior_variance=0.25", *POSTERIORS[self.posterior].split(), f"vime.clip={TASKS[self.task].clip}", *paper]
        posterior = ["--posterior", self.posterior, "--bonus", "kl", "--eta", f"{self.eta:g}"]
        return [*posterior, "--normalise", "median", *(word for text in own for word in ("-p", text))]


def tuning(task: str, posteriors: list[str]) -> Iterator[Job]:
    """Every eta of the grid."""
    for eta in TASKS[task].etas:
        yield from (Job(task, name, eta, TUNING_SEED, TASKS[task].tuning) for name in posteriors if name != "none")


def chosen(runs: Path, task: str, posterior: str) -> float | None:
    """The eta with the highest extrinsic return over all iterations of the tuning; of equal ones the smallest.

    Raises:
        InputError: while the tuning is not complete.
    """
    if posterior == "none":
        return None
    found = {}
    for job in tuning(task, [posterior]):
        rows = job.rows(runs)
        if len(rows) < job.iterations:
            raise InputError(f"{job.name} is not complete; run `tune` first")
        found[job.eta] = float(rows["extrinsic_total"].sum())
    return max(found, key=lambda eta: found[eta])


def training(runs: Path, task: str, posteriors: list[str], seeds: int, iterations: int) -> Iterator[Job]:
    """The runs of the figure, seed by seed, so that what is complete can be compared."""
    etas = {name: chosen(runs, task, name) for name in posteriors}
    for seed in range(seeds):
        yield from (Job(task, name, eta, seed, iterations) for name, eta in etas.items())


def further(seeds: int, iterations: int) -> Iterator[Job]:
    """Conditions that the figure does not have, each for a question of its own; README.md says which."""
    car, pole = "mountain-car", "cart-pole"
    conditions = [
        (car, RND, RND_ETA, ""), (pole, RND, RND_ETA, ""),
        (car, "none", None, "zero-critic"), (car, "noisy-kfac", 0.0001, "zero-critic"),
        (car, "noisy-ekfac", 0.0001, "restarts"),
    ]  # fmt: skip
    for task, name, eta, variant in conditions:
        yield from (Job(task, name, eta, seed, iterations, variant) for seed in range(seeds))
    yield from (Job(car, "none", None, seed, iterations) for seed in range(seeds, 2 * seeds))


def work(jobs: list[Job], runs: Path, processes: int, dry: bool) -> None:
    """Do what is not complete."""
    left = [job for job in jobs if len(job.rows(runs)) < job.iterations]
    click.echo(f"{len(jobs) - len(left)} of {len(jobs)} runs are complete")

    def do(job: Job) -> None:
        done = subprocess.run(job.command(runs), capture_output=True, text=True, start_new_session=True)
        said = "done" if done.returncode == 0 else f"failed: {done.stderr.strip().splitlines()[-1:]}"
        click.echo(f"{job.name}: {said}")

    if dry:
        for job in left:
            click.echo(shlex.join(job.command(runs)))
        return
    runs.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(processes) as pool:
        list(pool.map(do, left))


@click.command(cls=Script)
@click.argument("what", type=click.Choice(["tune", "train", "further"]))
@click.option("--tasks", type=Names("task", TASKS), default=",".join(TASKS), show_default=True)
@click.option("--posteriors", type=Names("posterior", CONDITIONS), default=",".join(CONDITIONS), show_default=True)
@click.option("--seeds", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--iterations", type=click.IntRange(min=1), default=100, show_default=True)
@click.option("--jobs", type=click.IntRange(min=1), default=2, show_default=True, help="Processes side by side.")
@click.option("--runs", type=FOLDER, default=HERE / "runs", show_default=True)
@click.option("--dry-run", is_flag=True, help="Show the commands that are left.")
def main(
    what: str, tasks: list[str], posteriors: list[str], seeds: int, iterations: int, jobs: int, runs: Path,
    dry_run: bool,
) -> None:  # fmt: skip
    """Tune eta, train with the etas that were best, or train the further conditions."""
    found: list[Job] = []
    if what == "further":
        found += (j for j in further(seeds, iterations) if j.task in tasks and j.posterior in posteriors)
    else:
        figure = [name for name in posteriors if name != RND]
        for task in tasks:
            found += tuning(task, figure) if what == "tune" else training(runs, task, figure, seeds, iterations)
    work(found, runs, jobs, dry_run)


if __name__ == "__main__":
    main()
