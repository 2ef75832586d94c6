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
import time
from pathlib import Path
from typing import Any

import click
import numpy as np
import pandas as pd
import torch

from experiments.shared import FOLDER, Names, fit, markdown, mean_se, merge, paired, recorded, sections
from experiments.table_defaults.run import NOISE
from explore.cli.script import Script
from explore.core import tree
from explore.core.rng import Rng
from explore.data import load
from explore.learning import compare
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
    parts: compare.Splits = tree.part(compare.split(load(dataset), splits.stop, Rng(0), share), splits)
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
    rows["split"] += splits.start
    return pd.concat([_key(dataset, method, settings, len(rows)), rows], axis=1)


def nuts(dataset: str, splits: int) -> pd.DataFrame:
    """A line a split, of our posterior `hmc`."""
    rng = Rng(0)
    parts = compare.split(load(dataset), splits, rng)
    begin = time.process_time()
    done = fit("hmc", mlp(parts.x.shape[2], [50], 1), NOISE, parts.x, parts.y, rng, **NUTS)
    found = compare.measure(done.posterior, done.state, parts, rng.stream("test"), 100)
    cpu = (time.process_time() - begin) / splits
    own = {tag: found[f"test/{tag}"].numpy() for tag in TAGS} | {"cpu": cpu, "split": range(1, splits + 1)}
    return pd.concat([_key(dataset, "NUTS (hmc)", NUTS, splits), pd.DataFrame(own)], axis=1)


def _key(dataset: str, method: str, settings: dict[str, Any], count: int) -> pd.DataFrame:
    return pd.DataFrame([[dataset, method, json.dumps(settings)]] * count, columns=KEY)


def run(path: Path, key: tuple[str, str, dict[str, Any]], make: Any) -> None:
    """Add the rows of a key to a CSV file, unless they are there."""
    if recorded(path, KEY, (*key[:2], json.dumps(key[2]))):
        return
    rows = make()
    merge(path, rows, KEY)
    click.echo(f"{path.stem}: {key}: {rows.log_likelihood.mean():.3f}, {rows.cpu.mean():.1f} s a split", err=True)


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
    """Five fits of ours minus each other method, on the splits that both have; see `shared.paired` for the errors."""
    wide = rows.pivot_table(tag, ["dataset", "split"], "method", sort=False)
    if FIVE not in wide:
        return []
    apart = -wide.drop(columns=FIVE).sub(wide[FIVE], axis=0)
    columns = {str(method): [apart[method].loc[name].dropna() for name in sets] for method in apart}
    return [[method, *("" if v.empty else paired(v) for v in cells)] for method, cells in columns.items()]


@click.command(cls=Script)
@click.option(
    "--python", type=click.Path(exists=True, dir_okay=False, path_type=Path), required=True, help="Of the others."
)
@click.option("--datasets", type=Names("data set", SPLITS), default=",".join(SPLITS), show_default=True)
@click.option("--methods", type=Names("method", [*METHODS, "NUTS (hmc)"]), help="[default: all of them]")
@click.option("--out", type=FOLDER, default=HERE / "results", show_default=True)
def main(python: Path, datasets: list[str], methods: list[str] | None, out: Path) -> None:
    """Run what is missing, and write the table."""
    torch.set_num_threads(1)
    python, report = python.absolute(), out / "report.csv"
    for dataset in datasets:
        splits, size = slice(0, SPLITS[dataset]), len(load(dataset).x)
        for method in (name for name in methods or [*METHODS, "NUTS (hmc)"] if size <= LIMIT.get(name, size)):
            if method == "NUTS (hmc)":
                run(report, (dataset, method, NUTS), lambda name=dataset: nuts(name, NUTS_SPLITS))
                continue
            grid = METHODS[method]
            for own in grid if len(grid) > 1 else []:
                make = lambda own=own, d=dataset, m=method: others(python, d, m, own, TUNED, 0.2)  # noqa: E731
                run(out / "choose.csv", (dataset, method, own), make)
            chosen = best(out / "choose.csv", dataset, method) if len(grid) > 1 else grid[0]
            run(
                report,
                (dataset, method, chosen),
                lambda d=dataset, m=method, b=chosen, s=splits: others(python, d, m, b, s, 0.0),
            )
    (out / "table.md").write_text(table(pd.read_csv(report), pd.read_csv(OURS)), encoding="utf-8")


def best(path: Path, dataset: str, method: str) -> dict[str, Any]:
    """The settings that were chosen."""
    rows = pd.read_csv(path)
    own = rows[(rows.dataset == dataset) & (rows.method == method)]
    found: dict[str, Any] = json.loads(str(own.groupby("settings").log_likelihood.mean().idxmax()))
    return found


if __name__ == "__main__":
    main()
