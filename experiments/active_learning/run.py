"""Several posteriors and a Gaussian process under the same active-learning protocol, on the same splits.

    python -m experiments.active_learning.run --dataset boston --trials 40 --seed 1
    python -m experiments.active_learning.run --dataset boston --trials 40 --seed 8 --name boston-seed-8

Runs `explore active` for each posterior and `gp.py` for the anchors, and writes results/NAME.csv (one line a method,
arm and trial) and results/NAME.md: the last RMSE of both arms, their paired difference, and the difference of the
active arm to that of the best other method on the same splits.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import click
import pandas as pd

from experiments import shared
from experiments.shared import markdown, mean_se

HERE = Path(__file__).parent


def explore_active(posterior: str, dataset: str, trials: int, seed: int, out: Path) -> tuple[pd.DataFrame, float]:
    """(arm, trial, rmse of the last round), seconds."""
    result = shared.explore(
        "active", "--dataset", dataset, "--posterior", posterior, "--acquisition", "max-variance",
        "--trials", str(trials), "--seed", str(seed), "--out", str(out), "--device", "cpu",
    )  # fmt: skip
    rows = pd.read_csv(Path(result["run"]) / "results.csv")
    last = rows[rows["labels"] == rows["labels"].max()]
    return last.assign(arm=last["arm"].where(last["arm"] == "random", "active")), result["seconds"]


def gaussian_process(ard: bool, dataset: str, trials: int, seed: int, out: Path) -> tuple[pd.DataFrame, float]:
    """(arm, trial, rmse of the last round), seconds."""
    file = out / "gp.json"
    command = [
        sys.executable, "-m", "experiments.active_learning.gp", "--dataset", dataset, "--trials", str(trials),
        "--seed", str(seed), "--out", str(file), *(["--ard"] if ard else []),
    ]  # fmt: skip
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    found = json.loads(file.read_text())
    rows = [
        {"arm": arm, "trial": t + 1, "rmse": curve[-1]}
        for arm in ("active", "random")
        for t, curve in enumerate(found["rmse"][arm])
    ]
    return pd.DataFrame(rows), found["seconds"]


@click.command()
@click.option("--dataset", default="boston", show_default=True)
@click.option("--trials", default=40, show_default=True)
@click.option("--seed", default=1, show_default=True)
@click.option("--posterior", "posteriors", default="noisy-kfac,bbb,ensemble", show_default=True)
@click.option("--name", help="Of the files.  [default: the data set's]")
@click.option("--runs", default="runs", type=click.Path(path_type=Path), show_default=True, help="For run folders.")
def main(dataset: str, trials: int, seed: int, posteriors: str, name: str | None, runs: Path) -> None:
    """Run everything and write the table."""
    command = f"python -m experiments.active_learning.run --dataset {dataset} --trials {trials} --seed {seed}"
    command, name = (f"{command} --name {name}", name) if name else (command, dataset)
    runs.mkdir(exist_ok=True)
    found, seconds = {}, {}
    for method in posteriors.split(","):
        found[method], seconds[method] = explore_active(method, dataset, trials, seed, runs)
    for method, ard in (("GP, isotropic", False), ("GP, one length scale a feature", True)):
        found[method], seconds[method] = gaussian_process(ard, dataset, trials, seed, runs)

    table = pd.concat([rows.assign(method=method) for method, rows in found.items()])
    (HERE / "results").mkdir(exist_ok=True)
    columns = ["method", "arm", "trial", "rmse"]
    table[columns].to_csv(HERE / "results" / f"{name}.csv", index=False, float_format="%.6g")

    rmse = {m: rows.pivot(index="trial", columns="arm", values="rmse") for m, rows in found.items()}
    lines = []
    for method, arms in rmse.items():
        best = min((m for m in rmse if m != method), key=lambda m: rmse[m]["active"].mean())
        other = f"{mean_se(arms['active'] - rmse[best]['active'])} ({best})"
        each = [mean_se(values) for values in (arms["random"], arms["active"], arms["active"] - arms["random"])]
        lines.append([method, *each, other, f"{seconds[method]:.0f}"])
    heads = ["method", "random", "active", "active − random", "active − best other active", "seconds"]
    text = f"<!-- {command} -->\n{markdown(heads, lines)}"
    (HERE / "results" / f"{name}.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
