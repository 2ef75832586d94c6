"""Other libraries on the UCI sets, by the protocol of `experiments.table_defaults`: on the same splits as ours there.

    experiments/benchmarks/peers_environment.sh FOLDER
    python -m experiments.peers.run --python FOLDER/bin/python

One hidden layer of 50 ReLU where there is a net. The settings of each method are chosen for each set by the
log-likelihood on the validation part of split 21, which the table does not report; ours are not: those rows are the
first splits of table_defaults/results/report.csv. NUTS is our posterior `hmc`, with the prior Gam(1, .01) on the noise,
as ours have it; it chooses nothing. Gaussian processes are for up to 2,000 rows.

Writes results/choose.csv, results/report.csv (a line a set, method and split) and results/table.md. What is there is
not run again.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import click
import numpy as np
import pandas as pd

from experiments.driver import experiment, names, run_missing, score, split, write
from experiments.table_defaults.run import NOISE
from experiments.tables import markdown, mean_se, paired, sections
from explore.core.rng import Rng
from explore.data import load
from explore.nets.net import mlp

HERE = Path(__file__).parent
OURS = HERE.parent / "table_defaults" / "results" / "report.csv"
SPLITS = dict.fromkeys(("boston", "concrete", "energy", "wine", "yacht"), 10) | dict.fromkeys(("kin8nm", "power"), 3)
TUNED = slice(20, 21)
KEY = ["dataset", "method", "settings"]
TAGS = {"log_likelihood": "log-likelihood", "rmse": "RMSE", "coverage_95": "coverage of 95 %"}
METHODS: dict[str, list[dict[str, Any]]] = {
    "torch ensemble": [{"epochs": e, "lr": 0.01} for e in (40, 100, 200)],
    "laplace-torch": [{"epochs": e, "lr": 0.01} for e in (40, 100, 200)],
    "ivon-opt": [{"epochs": 200, "lr": lr, "hess_init": h} for lr, h in ((0.03, 3.0), (0.01, 30.0), (0.03, 1.0))],
    "bayesian-torch": [{"epochs": e, "lr": 0.01} for e in (200, 400)],
    "gradient boosting": [
        {"trees": t, "lr": lr, "least": least}
        for t, lr in ((100, 0.1), (300, 0.05))
        for least in (0.02, 0.05, 0.1, 0.2)
    ],
    "Gaussian process": [{}],
}
NUTS: dict[str, Any] = {"preset": "default"}
LIMIT = {"Gaussian process": 2000, "NUTS (hmc)": 520}  # rows
NUTS_SPLITS = 3
FIVE = "noisy-kfac, five"


def others(
    python: Path, dataset: str, method: str, settings: dict[str, Any], splits: slice, share: float
) -> pd.DataFrame:
    """A line a split, of another library."""
    parts = split(load(dataset), splits, Rng(0), share)
    assert parts.scale is not None  # of regressions alone
    arrays: dict[str, Any] = {
        "scale": parts.scale[:, 0],
        "x": parts.x,
        "y": parts.y[..., 0],
        "test_x": parts.test_x,
        "test_y": parts.test_y[..., 0],
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "splits.npz")
        np.savez(path, **{name: value.numpy() for name, value in arrays.items()})
        command = [str(python), str(HERE / "methods.py"), str(path), method, json.dumps(settings)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    rows = pd.DataFrame([json.loads(line) for line in done.stdout.splitlines()])
    return rows.assign(split=rows.split + splits.start)


def nuts(dataset: str, splits: int) -> pd.DataFrame:
    """A line a split, of our posterior `hmc`."""
    rng = Rng(0)
    parts = split(load(dataset), slice(0, splits), rng)
    rows = score("hmc", mlp(parts.x.shape[2], [50], 1), NOISE, parts, rng, TAGS, **NUTS)
    return rows.assign(cpu=rows.cpu / splits)


def table(rows: pd.DataFrame, ours: pd.DataFrame) -> str:
    """Means and standard errors over the splits that all have, and what NUTS has on its few."""
    sets = [name for name in SPLITS if name in set(rows.dataset)]
    ours = ours[ours.candidate.str.startswith(("noisy", "ensemble"))].rename(columns={"candidate": "method"})
    counts = ours[ours.dataset.isin(sets)].groupby(["dataset", "method"]).split.transform("max")
    ours = ours.assign(cpu=ours.cpu / counts)
    both = pd.concat([ours[ours.split <= ours.dataset.map(SPLITS)], rows])
    made = {}
    for tag, title in (TAGS | {"cpu": "CPU seconds a split"}).items():
        lines = []
        for method in dict.fromkeys(both.method):
            own = [both[(both.method == method) & (both.dataset == name)][tag] for name in sets]
            cells = ["" if v.empty else f"{v.mean():.2f}" if tag == "cpu" else mean_se(v) for v in own]
            short = " (3 splits)" if method.startswith("NUTS") else ""
            lines.append([method + short, *cells])
        made[title] = markdown(["", *sets], lines)
        if tag in ("log_likelihood", "rmse"):
            made[f"{title}: {FIVE} − the others"] = markdown(["", *sets], differences(both, tag, sets))
    return sections(made)


def differences(rows: pd.DataFrame, tag: str, sets: list[str]) -> list[list[str]]:
    """Five fits of ours minus each other method, on the splits that both have; see `tables.paired` for the errors."""
    wide = rows.pivot_table(tag, ["dataset", "split"], "method", sort=False)
    if FIVE not in wide:
        return []
    apart = -wide.drop(columns=FIVE).sub(wide[FIVE], axis=0)
    columns = {str(method): [apart[method].loc[name].dropna() for name in sets] for method in apart}
    return [[method, *("" if v.empty else paired(v) for v in cells)] for method, cells in columns.items()]


@experiment(__file__)
@click.option(
    "--python", type=click.Path(exists=True, dir_okay=False, path_type=Path), required=True, help="Of the others."
)
@names("--datasets", "data set", SPLITS)
@names("--methods", "method", [*METHODS, "NUTS (hmc)"])
def main(python: Path, datasets: list[str], methods: list[str], out: Path) -> None:
    """Run what is missing, and write the table."""
    python, choices = python.absolute(), out / "choose.csv"
    sizes = {name: len(load(name).x) for name in datasets}
    pairs = [(name, m) for name in datasets for m in methods if sizes[name] <= LIMIT.get(m, sizes[name])]
    report = ["log_likelihood", "cpu"]

    def choose(dataset: str, method: str, settings: str) -> pd.DataFrame:
        return others(python, dataset, method, json.loads(settings), TUNED, 0.2)

    def test(dataset: str, method: str, settings: str) -> pd.DataFrame:
        if method == "NUTS (hmc)":
            return nuts(dataset, NUTS_SPLITS)
        return others(python, dataset, method, json.loads(settings), slice(0, SPLITS[dataset]), 0.0)

    grids = {method: grid for method, grid in METHODS.items() if len(grid) > 1}
    grid = [(name, m, json.dumps(settings)) for name, m in pairs if m in grids for settings in grids[m]]
    run_missing(choices, KEY, grid, choose, report)
    fixed = {method: grid[0] for method, grid in METHODS.items()} | {"NUTS (hmc)": NUTS}
    chosen = ((name, m, best(choices, name, m) if m in grids else fixed[m]) for name, m in pairs)
    rows = run_missing(out / "report.csv", KEY, ((*pair, json.dumps(own)) for *pair, own in chosen), test, report)
    write(out / "table.md", table(rows, pd.read_csv(OURS)))


def best(path: Path, dataset: str, method: str) -> dict[str, Any]:
    """The settings that were chosen."""
    rows = pd.read_csv(path)
    own = rows[(rows.dataset == dataset) & (rows.method == method)]
    found: dict[str, Any] = json.loads(str(own.groupby("settings").log_likelihood.mean().idxmax()))
    return found


if __name__ == "__main__":
    main()
