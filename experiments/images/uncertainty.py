"""Does the uncertainty of image networks tell? Areas under ROC curves for wrong predictions and for other images.

    python -m experiments.images.uncertainty --studies lenet5

The shortened runs of `experiments.images.run` on CIFAR-10, with the same step sizes and seeds. Each also predicts the
2,000 first test images of MNIST, rescaled to 32 x 32 and grey in all three channels. Scores are the confidence (for
wrong predictions, as in the table of Osawa et al.), the entropy and the mutual information (for images of MNIST).

Writes results/uncertainty.csv, a line a run, and results/uncertainty.md.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click
import numpy as np
import pandas as pd
import torch
from sklearn.metrics import roc_auc_score

from experiments.driver import FOLDER, commits, experiment, names, resumed, run_missing, write
from experiments.images.run import HERE, SEEDS, STUDIES, chosen, options
from experiments.tables import markdown, mean_se
from explore.images import load
from explore.learning.saved import PROBABILITIES

KEY = ["study", "arm", "lr", "seed"]
COLUMNS = {
    "wrong": "wrong predictions, by confidence",
    "entropy": "MNIST, by entropy",
    "information": "MNIST, by mutual information",
}
CIFAR_STUDIES = [name for name, study in STUDIES.items() if "cifar10" in study.options]


def other_images(path: Path) -> Path:
    """Write the images of MNIST in the shape of CIFAR-10's, unless they are there."""
    if not path.exists():
        grey = torch.tensor(load("mnist").test_x[:2000], dtype=torch.float32)
        wide = torch.nn.functional.interpolate(grey, size=(32, 32), mode="bilinear", antialias=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(path, x=wide.round().clamp(0, 255).byte().movedim(1, 3).expand(-1, -1, -1, 3).numpy())
    return path


def train(study: str, arm: str, lr: float, seed: int, *, runs: Path) -> pd.DataFrame:
    """Run `explore classify`, and compute the three areas from its probabilities."""
    called = list(options(study, arm, "short", lr))
    called[called.index("--ood") + 1] = str(other_images(runs / "mnist-in-colour.npz").resolve())
    name = f"uncertainty-{study}-{arm}-{seed}".replace(" ", "-").replace(",", "")
    folder, result = resumed("classify", runs, name, *called, "--seed", str(seed), device="cpu")
    saved = np.load(folder / PROBABILITIES)
    wrong = saved["probabilities"].argmax(1) != saved["y"]
    areas = {kind: result["test"][f"auroc_{kind}"] for kind in ("entropy", "information")}
    areas["wrong"] = roc_auc_score(wrong, -saved["probabilities"].max(1))
    return pd.DataFrame([areas | {"error": result["test"]["error"], "commits": commits(folder)}])


def table(rows: pd.DataFrame) -> str:
    """Means and standard errors over seeds."""
    lines = [
        [study, arm, *(mean_se(own[column], ".3f") for column in COLUMNS)]
        for (study, arm), own in rows.groupby(["study", "arm"], sort=False)
    ]
    return markdown(["network", "method", *COLUMNS.values()], lines)


@experiment(__file__)
@names("--studies", "study", CIFAR_STUDIES)
@click.option("--runs", type=FOLDER, default=HERE / "runs", show_default=True, help="For run folders.")
def main(studies: list[str], runs: Path, out: Path) -> None:
    """Run what is missing, and write the table."""
    cells = (
        (study, arm, chosen(HERE / "results/choose.csv", study, arm), seed)
        for study in studies
        for arm in STUDIES[study].arms
        for seed in SEEDS
    )
    rows = run_missing(out / "uncertainty.csv", KEY, cells, partial(train, runs=runs), [*COLUMNS])
    write(out / "uncertainty.md", table(rows))


if __name__ == "__main__":
    main()
