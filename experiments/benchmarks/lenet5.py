"""An epoch of LeNet-5 on MNIST with several posteriors, beside Adam and other libraries, on one thread.

    experiments/benchmarks/peers_environment.sh FOLDER
    python -m experiments.benchmarks.lenet5 choose --peers FOLDER/bin/python
    python -m experiments.benchmarks.lenet5 report --peers FOLDER/bin/python

Batches of 128, one weight sample an update, 10 for predictions; no augmentation. The steps of all methods fall to 0
over the epoch. `choose` fits each step size of a grid to 50,000 training images and tests on the other 10,000; `report`
fits the chosen ones to all and tests on the test images, all methods in turn, three times. Seconds are the processor's,
of updates alone; of Laplace those of Adam and of the approximation. Each fit is in a process of its own, after a small
one that loads what is imported when it is used.

Writes results/lenet5_choose.csv and results/lenet5.csv (a line a fit), and results/lenet5.md beside this file. What is
there is not run again.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import click
import numpy as np
import pandas as pd
import torch

from experiments.benchmarks.uci_speed import worker
from experiments.driver import FOLDER, merge, recorded
from experiments.tables import markdown, mean_se
from explore import images
from explore.cli.script import Script
from explore.learning.classification import Classified, scores
from explore.learning.compare import confidence_bins
from explore.runs import provenance

HERE = Path(__file__).parent
TREE = HERE.parents[1]
KEY = ["method", "lr", "seed"]
PEERS = ("Adam", "IVON", "Laplace")
GRID: dict[str, tuple[float, ...]] = {
    "Adam": (0.001, 0.003, 0.01, 0.03), "IVON": (0.03, 0.1, 0.3, 1.0), "Laplace": (0.001, 0.003, 0.01, 0.03),
    "bbb": (0.001, 0.003, 0.01, 0.03), "vogn": (0.0003, 0.001, 0.003),
    "noisy-kfac": (0.1, 0.3, 1.0, 3.0), "noisy-ekfac": (0.1, 0.3, 1.0, 3.0),
}  # fmt: skip
SEEDS = (0, 1, 2)
METRICS = {"error": "error", "log_likelihood": "log-likelihood", "calibration_error": "calibration error (15 bins)"}


def fit(method: str, lr: float, seed: int, validate: bool, peers: str) -> dict[str, Any]:
    """Seconds and scores of a fit."""
    found = images.load("mnist")
    train, test = slice(50_000) if validate else slice(None), slice(50_000, None) if validate else slice(None)
    test_x, test_y = (found.x[test], found.y[test]) if validate else (found.test_x, found.test_y)
    script, python = ("lenet5_peers.py", peers) if method in PEERS else ("lenet5_ours.py", sys.executable)
    with tempfile.TemporaryDirectory() as folder:
        data, out = Path(folder, "data.npz"), Path(folder, "probabilities.npy")
        np.savez(data, x=found.x[train], y=found.y[train], test_x=test_x)
        (seconds,) = worker(python, script, TREE, method, str(lr), str(seed), str(data), str(out)).seconds
        p, y = torch.from_numpy(np.load(out)).double(), torch.from_numpy(np.ascontiguousarray(test_y))
    likelihood = p.gather(1, y[:, None])[:, 0].clamp_min(1e-45).log()
    values = scores(Classified(p, likelihood, torch.zeros(len(p))), y)
    values["calibration_error"] = float(confidence_bins(p[None], y[None]).error)
    commit = provenance.session()["git"]["commit"][:7]
    return {name: values[name] for name in METRICS} | {"seconds": seconds, "commit": commit}


def best(rows: pd.DataFrame) -> dict[str, float]:
    """The step size of each method with the highest log-likelihood."""
    means = rows.pivot_table("log_likelihood", "lr", "method")
    return dict(zip(means.columns, means.idxmax().to_numpy(float).tolist(), strict=True))


def table(rows: pd.DataFrame) -> str:
    """Medians of seconds, as such and over Adam's, and means of the scores."""
    adam = rows[rows.method == "Adam"].seconds.median()
    lines = []
    for method, own in rows.groupby("method", sort=False):
        seconds = own.seconds.median()
        means = [mean_se(own[name], ".4f") for name in METRICS]
        lines.append([str(method), f"{own.lr.iloc[0]:g}", f"{seconds:.1f}", f"{seconds / adam:.2f}", *means])
    return markdown(["method", "lr", "seconds", "over Adam", *METRICS.values()], lines)


@click.command(cls=Script)
@click.argument("what", type=click.Choice(["choose", "report"]))
@click.option("--peers", default=sys.executable, help="Python of the peers' environment.  [default: Adam alone]")
@click.option("--out", type=FOLDER, default=HERE / "results")
def main(what: str, peers: str, out: Path) -> None:
    """Fit what is missing, and print the table."""
    path = out / ("lenet5_choose.csv" if what == "choose" else "lenet5.csv")
    methods = [name for name in GRID if peers != sys.executable or name not in PEERS[1:]]
    if what == "choose":
        wanted = [(name, lr, 0) for name in methods for lr in GRID[name]]
    else:
        chosen = best(pd.read_csv(out / "lenet5_choose.csv"))
        wanted = [(name, chosen[name], seed) for seed in SEEDS for name in methods]
    for method, lr, seed in wanted:
        if not recorded(path, KEY, (method, lr, seed)):
            found = fit(method, lr, seed, what == "choose", peers)
            merge(path, pd.DataFrame([dict(zip(KEY, (method, lr, seed), strict=True)) | found]), KEY)
            click.echo(f"{method}, lr {lr}: {found['seconds']:.0f} s, {found['log_likelihood']:.4f}", err=True)
    rows = pd.read_csv(path)
    made = rows.to_string() if what == "choose" else table(rows[rows.lr == rows.method.map(chosen)])
    if what == "report":
        (out / "lenet5.md").write_text(made, encoding="utf-8")
    click.echo(made)


if __name__ == "__main__":
    main()
