"""Which bonus explores best? Each run is `explore rl`, resumed where it was interrupted.

    python -m experiments.exploration.run choose      # posterior, bonus, eta and PPO's settings, on tasks of their own
    python -m experiments.exploration.run report      # conditions on other tasks and seeds
    python -m experiments.exploration.run report --tasks chain-40 --seeds 20 --jobs 2
    python -m experiments.exploration.run long --seeds 5 --conditions "none;rnd;last-layer;bbb"

Writes results/choose.csv, report.csv or long.csv, a line per task, condition and seed: `final`, the mean return of an
episode over the last tenth of the steps; `area`, its mean over all steps; both as shares of the way from the worst to
the best return; `first`, the steps before the first success; `share`, the part of the time that the bonus took; and
the seconds. Prints means over seeds. What is complete is left alone.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

import click
import pandas as pd

from experiments import driver, tables

HERE = Path(__file__).parent
SEEDS = {"choose": 100, "report": 0, "long": 0}  # the first
ETAS = ("0.0001", "0.0003", "0.001", "0.003", "0.01")
LEFT = 0.001 * 16 * 128  # reward of an iteration that stays at the near end of a chain
PPO = ("--algo", "ppo", "--n-envs", "16", "--algo-param", "n_steps=128")


class Task(NamedTuple):
    """An environment and its algorithm, the steps of a run, the worst and the best return of an episode."""

    options: tuple[str, ...]
    steps: int
    best: float
    worst: float = 0.0
    little: float = 0.0  # the most reward of an iteration without a success


def _task(env: str, steps: int, best: float, *arguments: str, worst: float = 0.0, little: float = 0.0) -> Task:
    kwargs = [word for text in arguments for word in ("--env-kwargs", text)]
    return Task(("--env", env, *kwargs, *PPO), steps, best, worst, little)


TASKS = {
    "choose": {
        "chain-20": _task("explore/Chain-v0", 41_000, 12, "length:20", little=LEFT),
        "deep-sea-10": _task("explore/DeepSea-v0", 41_000, 0.99, "size:10"),
        "mountain-car": Task(("--env", "explore/SparseMountainCar-v0"), 50_000, 1),
        "noisy-tv-12": _task("explore/NoisyTVChain-v0", 33_000, 12, "length:12", "noise:4", little=LEFT),
        "deep-sea-15": _task("explore/DeepSea-v0", 82_000, 0.99, "size:15"),
        "deep-sea-18": _task("explore/DeepSea-v0", 102_000, 0.99, "size:18"),
        "key-door-10": _task("explore/KeyDoor-v0", 41_000, 1, "length:10"),
        "empty-8": _task("explore/MiniGrid-v0", 41_000, 0.95, "task:Empty-8x8"),
        "unlock": _task("explore/MiniGrid-v0", 82_000, 0.95, "task:Unlock"),
        "crossing-9": _task("explore/MiniGrid-v0", 82_000, 0.95, "task:SimpleCrossingS9N1"),
    },
    "report": {
        "chain-40": _task("explore/Chain-v0", 82_000, 12, "length:40", little=LEFT),
        "deep-sea-20": _task("explore/DeepSea-v0", 123_000, 0.99, "size:20"),
        "noisy-tv-20": _task("explore/NoisyTVChain-v0", 49_000, 12, "length:20", little=LEFT),
        "key-door-20": _task("explore/KeyDoor-v0", 82_000, 1, "length:20"),
        "cart-pole": _task("CartPole-v1", 49_000, 500),
        "acrobot": _task("Acrobot-v1", 49_000, -100, worst=-500),
        "discrete-car": _task("MountainCar-v0", 200_000, -110, worst=-200),
        "sparse-car": Task(("--env", "explore/SparseMountainCar-v0"), 200_000, 1),
        "door-key-5": _task("explore/MiniGrid-v0", 82_000, 0.95, "task:DoorKey-5x5"),
        "door-key-6": _task("explore/MiniGrid-v0", 82_000, 0.95, "task:DoorKey-6x6"),
        "lunar-lander": _task("LunarLander-v3", 200_000, 250, worst=-200),
        "deep-sea-30": _task("explore/DeepSea-v0", 400_000, 0.99, "size:30"),
        "stochastic-sea-10": _task("explore/StochasticDeepSea-v0", 82_000, 0.99, "size:10"),
    },
    "long": {
        "multi-room": _task("explore/MiniGrid-v0", 1_000_000, 0.77, "task:MultiRoom-N4-S5"),
        "half-cheetah": _task("explore/SparseHalfCheetah-v0", 500_000, 500),
        "pixel-chain": _task("explore/Pixels-v0", 82_000, 12, "task:explore/Chain-v0", "length:20", little=LEFT),
    },
}
ENCODER = ("-p", "vime.encoder=explore.envs.others:pooled")  # of pictures, for a bonus
# As in stable-baselines3, and with as little entropy.
SB3 = ("--algo-param", "batch_size=64", "--algo-param", "learning_rate=0.0003", "--algo-param", "ent_coef=0")
# Defaults when the first candidates were measured; PPO had those of stable-baselines3, too.
FORMER = {
    "last-layer": ("-p", "vime.clip=10", "-p", "vime.relevance=false"),
    "noisy-kfac": ("-p", "vime.clip=10", "-p", "vime.updates=500", "-p", "vime.batch_size=10"),
}
FIRST = {
    f"{posterior}, {bonus}, {divisor}": (
        "--posterior", posterior, "--bonus", bonus, "--normalise", divisor, *FORMER[posterior]
    )
    for posterior in FORMER
    for bonus in ("kl", "expected-gain")
    for divisor in ("latest", "first")
} | {
    f"last-layer, expected-gain, clip 100, {inputs} inputs": (
        "-p", "vime.clip=100", "-p", f"vime.relevance={relevance}"
    )
    for inputs, relevance in (("all", "false"), ("relevant", "true"))
}  # fmt: skip
CANDIDATES = FIRST | {
    f"target_kl {nats}": (*SB3, "--algo-param", f"target_kl={nats}") for nats in ("none", 0.005, 0.01, 0.03)
} | {
    f"batch_size {size}, learning_rate {rate}": (
        "--algo-param", f"batch_size={size}", "--algo-param", f"learning_rate={rate}", "--algo-param", "ent_coef=0"
    )
    for size, rate in ((128, 0.0003), (256, 0.0003), (256, 0.0005), (256, 0.001))
} | {
    f"ent_coef {weight}": ("--algo-param", f"ent_coef={weight}") for weight in (0.0, 0.003, 0.01)
} | {"none": ("--posterior", "none"), "default": ()}  # fmt: skip
CONDITIONS = {
    "none": ("--posterior", "none"),
    "rnd": ("--bonus", "rnd"),
    "disagreement": ("--bonus", "disagreement"),
    "count": ("--bonus", "count"),
    "bbb": ("--posterior", "bbb", "--bonus", "kl"),
    "noisy-kfac": ("--posterior", "noisy-kfac", "--bonus", "kl"),
    "last-layer": ("--posterior", "last-layer", "--bonus", "expected-gain"),
}


def scored(rows: pd.DataFrame, task: Task) -> dict[str, float]:
    """Return the measures of a seed, from its lines of results.csv."""
    share = (rows["ep_extrinsic_mean"].ffill() - task.worst).fillna(0) / (task.best - task.worst)
    paid = rows[rows["extrinsic_total"] > task.little]
    last = rows["timesteps"] > 0.9 * rows["timesteps"].max()
    return {
        "final": share[last].mean(), "area": share.mean(),
        "first": paid["timesteps"].min() if task.worst >= 0 else float("nan"),
        "share": (rows["bonus_share"] * rows["seconds"]).sum() / rows["seconds"].sum(),
        "seconds": rows["seconds"].sum(),
    }  # fmt: skip


def trained(name: str, task: Task, options: tuple[str, ...], first: int, seeds: int, jobs: int, runs: Path) -> Path:
    """Train seeds of a condition, or those that are left; return the run folder."""
    os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    own = ("--timesteps", str(task.steps), "--seed", str(first), "--checkpoint-freq", "1000", "--device", "cpu")
    more = ("--seeds", str(seeds), "--jobs", str(jobs))
    folder = runs / f"rl-{name}"
    if folder.exists():
        driver.explore("rl", "--resume", str(folder), "--seeds", str(seeds), "--quiet")
    else:
        driver.explore("rl", *task.options, *options, *own, *more, "--out", str(runs), "--name", name, "--quiet")
    return folder


def table(every: pd.DataFrame) -> str:
    """Return means over seeds, a line per task, condition and eta."""
    grouped = every.groupby(["task", "condition", "eta"], sort=False)
    lines = [
        [*key, len(own), *(f"{own[tag].mean():.2f}" for tag in ("final", "area")), f"{(own.final >= 0.9).sum()}",
         "never" if own["first"].isna().all() else f"{own['first'].median():.0f}", f"{own.share.mean():.2f}"]
        for key, own in grouped
    ]  # fmt: skip
    return tables.markdown(["task", "condition", "eta", "seeds", "final", "area", "solved", "first", "share"], lines)


@driver.experiment(__file__)
@click.argument("what", type=click.Choice([*TASKS]))
@click.option("--tasks", help="Some tasks.  [default: all]")
@click.option("--conditions", help="Some conditions, separated by semicolons.  [default: all]")
@click.option("--etas", help="[default: five for choose, else auto]")
@click.option("--seeds", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--runs", type=driver.FOLDER, default=HERE / "runs", show_default=True)
def main(
    what: str, tasks: str | None, conditions: str | None, etas: str | None, seeds: int, jobs: int, runs: Path, out: Path
) -> None:
    """Train what is left, and write the results of what is there."""
    every, first = (CANDIDATES if what == "choose" else CONDITIONS), SEEDS[what]
    grid = etas.split(",") if etas else ETAS if what == "choose" else ("auto",)
    for task in tasks.split(",") if tasks else TASKS[what]:
        for condition in conditions.split(";") if conditions else every:
            for eta in grid if condition != "none" else ("0",):
                chosen = every[condition]
                if condition != "none":
                    pictures = "explore/Pixels-v0" in TASKS[what][task].options
                    chosen = (*chosen, "--eta", eta, *(ENCODER if pictures else ()))
                if what == "choose" and "ppo" in TASKS[what][task].options and condition in FIRST:
                    chosen = (*chosen, *SB3, "--algo-param", "target_kl=none")
                name = f"{task}-{re.sub('[ ,]+', '-', condition)}-{eta}"
                folder = trained(name, TASKS[what][task], chosen, first, seeds, jobs, runs)
                rows = pd.read_csv(folder / "results.csv")
                lines = [{"seed": seed} | scored(own, TASKS[what][task]) for seed, own in rows.groupby("seed")]
                named = pd.DataFrame(lines).assign(
                    task=task, condition=condition, eta=eta, commits=driver.commits(folder)
                )
                done = driver.merge(out / f"{what}.csv", named, ["task", "condition", "eta"], "%.5g")
    click.echo(table(done))


if __name__ == "__main__":
    main()
