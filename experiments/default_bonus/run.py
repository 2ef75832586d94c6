"""The former default bonus on two sparse tasks: `explore rl`, resumed where it was interrupted.

    python -m experiments.default_bonus.run                     # seeds 0 to 4
    python -m experiments.default_bonus.run --seeds 100,101,102 --iterations 40    # those that chose the defaults

Prints the table of the README and writes results/curves.csv, a line a task, seed and iteration; seeds that are not
asked for keep their lines. What is complete is left alone, so the command may be given again at any time. Processes run
one after the other.
"""

from __future__ import annotations

from pathlib import Path

import click
import pandas as pd

from experiments import driver, tables

HERE = Path(__file__).parent
BATCH = 5000  # steps an iteration
LAST = 10
# Environment and iterations; None: of --iterations.
TASKS: dict[str, tuple[list[str], int | None]] = {
    "chain-40": (["--env", "explore/Chain-v0", "--env-kwargs", "length:40"], 20),
    "mountain-car": (["--env", "explore/SparseMountainCar-v0"], None),
}
OWN = ["--algo-param", "value_init=zero", "--eta", "0.001", "--posterior", "noisy-kfac", "--bonus", "kl",
       "-p", "vime.clip=10", "-p", "vime.updates=500", "-p", "vime.batch_size=10"]  # fmt: skip
KEPT = ["iteration", "extrinsic_total", "ep_extrinsic_mean", "bonus_median", "dyn_rmse_before", "restarts", "seconds"]


def train(task: str, seed: int, iterations: int, runs: Path) -> Path:
    """The run folder of a seed, complete."""
    options = [*TASKS[task][0], *OWN, "--timesteps", str(iterations * BATCH), "--seed", str(seed)]
    return driver.resumed("rl", runs, f"{task}-seed-{seed}", *options)[0]


def curve(folder: Path, task: str, seed: int) -> pd.DataFrame:
    """A line an iteration: the return is an episode's on the chain, on the mountain car that of 500 steps."""
    rows = pd.read_csv(folder / "results.csv")[KEPT]
    rows["return"] = rows.extrinsic_total * 500 / BATCH if task == "mountain-car" else rows.ep_extrinsic_mean
    return rows.assign(task=task, seed=seed, commits=driver.commits(folder))


def table(every: pd.DataFrame) -> str:
    """A line a task and seed."""
    heads = ["task", "seed", "iterations", "return, last iteration", f"return, mean of the last {LAST}", "restarts",
             "seconds"]  # fmt: skip
    lines = []
    for (task, seed), rows in every.groupby(["task", "seed"]):
        found, total = rows["return"], [f"{rows.restarts.max():.0f}", f"{rows.seconds.sum():.0f}"]
        lines.append([task, seed, len(rows), f"{found.iloc[-1]:.2f}", f"{found.tail(LAST).mean():.2f}", *total])
    return tables.markdown(heads, lines)


@driver.experiment(__file__)
@click.option("--seeds", default="0,1,2,3,4", show_default=True)
@click.option("--tasks", default=",".join(TASKS), show_default=True)
@click.option("--iterations", type=click.IntRange(min=1), default=100, show_default=True, help="On the mountain car.")
@click.option("--runs", type=driver.FOLDER, default=HERE / "runs", show_default=True)
def main(seeds: str, tasks: str, iterations: int, runs: Path, out: Path) -> None:
    """Train what is left, and write the results of what is there."""
    for task in tasks.split(","):
        for seed in map(int, seeds.split(",")):
            folder = train(task, seed, TASKS[task][1] or iterations, runs)
            every = driver.merge(out / "curves.csv", curve(folder, task, seed), ["task", "seed"], "%.5g")
    click.echo(table(every))


if __name__ == "__main__":
    main()
