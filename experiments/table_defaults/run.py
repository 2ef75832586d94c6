"""Settings for a table of one's own: noisy K-FAC with a warm start, beside a deep ensemble.

    python -m experiments.table_defaults.run choose    # candidates on validation parts of the splits 21 to 25
    python -m experiments.table_defaults.run report    # those chosen, on the test parts of the first splits

One hidden layer of 50 ReLU, 100 weight samples for predictions (1000 of twenty fits), prior Gam(1, .01) on the noise,
of which it says next to nothing. The splits of a set are the replicas of one run, on one thread; `cpu` are the seconds
of fit and prediction of all of them. `choose` takes 5 splits of the five small sets and of Diabetes, and one of three
larger ones; `report` 20 of the small ones and 5 of the larger ones, protein among them, which chose nothing. Writes
results/choose.csv and results/report.csv, a line a set, candidate and split, and prints tables. What is there is not
run again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from sklearn.datasets import load_diabetes

from experiments.driver import experiment, names
from experiments.table_defaults.study import Candidate, Study
from explore.data import load
from explore.data.base import Dataset
from explore.data.table import load_table
from explore.inference.presets import noise_for
from explore.nets.likelihoods import Gaussian

HERE = Path(__file__).parent
SMALL = ("boston", "concrete", "energy", "wine", "yacht")
LARGE = ("kin8nm", "naval", "power")
TUNED = dict.fromkeys((*SMALL, "diabetes"), slice(20, 25)) | dict.fromkeys(LARGE, slice(20, 21))  # splits, from 0
REPORTED = {name: slice(0, 20 if name in SMALL else 5) for name in (*SMALL, *LARGE, "protein")}
NOISE = Gaussian(**noise_for("default"))
TAGS = {"log_likelihood": "log-likelihood", "rmse": "RMSE", "coverage_95": "coverage of 95 %"}


def table(name: str) -> Dataset:
    """One of the UCI sets, or Diabetes (442 x 10), which scikit-learn has."""
    if name != "diabetes":
        return load(name)
    return load_table(load_diabetes(as_frame=True, scaled=False).frame, "target").dataset


LATE: dict[str, Any] = {
    "epochs": 120, "batch_size": 64, "min_batches": 16, "samples": 2, "lr": 1.0, "lr_schedule": "linear",
    "lr_decay": 0.0, "lr_decay_at": 0.8, "beta": 0.1, "statistics_interval": 5, "factor_interval": 5,
    "adaptive_damping": False, "trust_region": 0.25, "warm_start": 0.7, "prior_variance": 2.0,
}  # fmt: skip
DEFAULT = LATE | {"warm_start": 0.5, "lr_decay_at": 0.7}  # since Diabetes is among the sets that choose
FIVE, LATE_FIVE = DEFAULT | {"members": 5}, LATE | {"members": 5}
SMALLER = {"batch_size": 32}
FEW = SMALLER | {"min_batches": 1}  # of the first looks, before the smallest sets were given more steps
STEP = {"lr_schedule": "step", "lr_decay": 0.1, "lr": 0.3, "trust_region": 0.5}
CANDIDATES: dict[str, Candidate] = {
    f"ensemble, {epochs} epochs, lr {lr}": ("ensemble", {"epochs": epochs, "lr": lr, "batch_size": 32})
    for epochs in (50, 100, 200, 400) for lr in (0.003, 0.01, 0.03) if epochs * lr < 5
} | {
    "five": ("noisy-kfac", LATE_FIVE),
    "five, batches of 64 throughout": ("noisy-kfac", LATE_FIVE | {"min_batches": 1}),
    "five, batches of 32": ("noisy-kfac", LATE_FIVE | SMALLER),
    "five, batches of 32 throughout": ("noisy-kfac", LATE_FIVE | FEW),
    "five, steps fall by ten at 0.8": ("noisy-kfac", LATE_FIVE | FEW | STEP),
    "five, trust region 0.5": ("noisy-kfac", LATE_FIVE | FEW | {"trust_region": 0.5}),
    "five, decay from 0.7 on": ("noisy-kfac", LATE_FIVE | FEW | {"lr_decay_at": 0.7}),
    "five, warm start 0.5": ("noisy-kfac", LATE_FIVE | FEW | {"warm_start": 0.5}),
    "five, factors every ten steps": (
        "noisy-kfac", LATE_FIVE | FEW | {"statistics_interval": 10, "factor_interval": 10}
    ),
    "five, steps of 0.3": ("noisy-kfac", LATE_FIVE | FEW | {"lr": 0.3}),
    "five, warm start 0.5, decay from 0.7 on": ("noisy-kfac", FIVE),
    "five, 300 epochs": ("noisy-kfac", FIVE | {"epochs": 300}),
    "noisy-kfac, twenty, 300 epochs": ("noisy-kfac", FIVE | {"members": 20, "epochs": 300}),
    "one": ("noisy-kfac", LATE),
    "one, batches of 32": ("noisy-kfac", LATE | SMALLER),
    "one, steps of 0.3": ("noisy-kfac", LATE | FEW | {"lr": 0.3}),
    "one, warm start 0.5, decay from 0.7 on": ("noisy-kfac", DEFAULT),
}  # fmt: skip
# The ensemble that is least below the best one in the mean over the sets, and noisy K-FAC's preset `default`.
CHOSEN: dict[str, Candidate] = {
    "ensemble": CANDIDATES["ensemble, 200 epochs, lr 0.003"],
    "noisy-kfac": ("noisy-kfac", DEFAULT),
    "noisy-kfac, five": ("noisy-kfac", FIVE),
}
# What more time brings.
MOST = "noisy-kfac, twenty, 300 epochs"
MORE = {"noisy-kfac, five, 300 epochs": CANDIDATES["five, 300 epochs"], MOST: CANDIDATES[MOST]}
STUDY = Study(table, NOISE, 50, TAGS, TUNED, REPORTED, CANDIDATES, CHOSEN | MORE, {MOST: 1000})


@experiment(__file__)
@click.argument("part", type=click.Choice(["choose", "report"]))
@names("--datasets", "data set", TUNED | REPORTED, ())
def main(part: str, datasets: list[str], out: Path) -> None:
    """Run what is missing, and print the tables."""
    STUDY.run(part, datasets, out)


if __name__ == "__main__":
    main()
