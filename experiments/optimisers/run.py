"""Optimisers in one plain training script, beside Adam, IVON and EVON: how many lines change, and what is gained.

    experiments/optimisers/environment.sh FOLDER
    python -m experiments.optimisers.run --python FOLDER/bin/python

`plain.py` trains LeNet-5 on 10,000 images for three epochs by Adam. Every other optimiser is `plain.py` with lines of
`CHANGES` instead, and predicts with 20 weight samples. Learning rates, and initial Hessians of IVON and EVON, are those
of `CANDIDATES` with the best log-likelihood on 5,000 other training images of MNIST (`--tune`); scores are of the test
images of MNIST and CIFAR-10. One thread. Writes results/runs.csv, and the changes as results/NAME.diff.
"""

from __future__ import annotations

import difflib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
import pandas as pd

from experiments.driver import Key, experiment, names, run_missing, write
from experiments.tables import markdown, mean_se, sections
from explore.images import load

HERE = Path(__file__).parent
IMPORT, MODEL, TRAIN, PREDICT = (
    "import torch\n",
    "optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)\n",
    "        loss = F.cross_entropy(model(images), labels)\n        loss.backward()\n",
    "    p = model(test_x).softmax(-1)\n",
)
SAMPLED = TRAIN.replace(
    "        loss = F", "        with optimizer.sampled(): loss = F"
)  # one line, to be counted as one
MEMBERS = "    p = sum(net(test_x).softmax(-1) for net in optimizer.sample_modules(20)) / 20\n"
NOISY = TRAIN.replace("        loss", "            loss")


def ours(name: str, more: str = "") -> dict[str, str]:
    """The changes for one of the optimisers of `explore.optim`."""
    made = f'optimizer = explore.optim.{name}(model, "categorical", len(x), lr={{lr}}{more})\n'
    return {IMPORT: f"import explore\n{IMPORT}", MODEL: made, TRAIN: SAMPLED, PREDICT: MEMBERS}


def theirs(module: str, name: str) -> dict[str, str]:
    """The changes for IVON or EVON, in whose block the backward pass must be."""
    made = f"optimizer = {module}.{name}(model.parameters(), lr={{lr}}, ess=len(x), hess_init={{hess}})\n"
    predict = "    p = 0\n    for _ in range(20):\n        with optimizer.sampled_params():\n"
    return {
        IMPORT: f"import {module}\n{IMPORT}", MODEL: made,
        TRAIN: f"        with optimizer.sampled_params(train=True):\n{NOISY}",
        PREDICT: f"{predict}            p += model(test_x).softmax(-1) / 20\n",
    }  # fmt: skip


CHANGES = {
    "Adam": {MODEL: MODEL.replace("1e-3", "{lr}")},
    "IVON": theirs("ivon", "IVON"),
    "EVON": theirs("evon", "EVON"),
    "VOGN": ours("VOGN"),
    "NoisyAdam": ours("NoisyAdam"),
    "NoisyKFAC": ours("NoisyKFAC"),
    "NoisyEKFAC": ours("NoisyEKFAC"),
    "SLANG": ours("SLANG"),
}
HESSIANS = {"IVON": (0.1, 0.5, 2.0), "EVON": (0.1, 1.0, 3.0)}
CANDIDATES: dict[str, tuple[float, ...]] = {
    "Adam": (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016), "IVON": (0.05, 0.1, 0.2, 0.4), "EVON": (0.003, 0.01, 0.03),
    "VOGN": (0.00025, 0.0005, 0.001, 0.002), "NoisyAdam": (0.05, 0.1, 0.2, 0.4),
    "NoisyKFAC": (0.1, 0.2, 0.3, 0.6), "NoisyEKFAC": (0.05, 0.1, 0.2, 0.3), "SLANG": (0.05, 0.1, 0.2, 0.4),
}  # fmt: skip
SCORES = ["accuracy", "nll", "ece", "seconds"]


def script(name: str, lr: float, hess: float) -> str:
    """The text of `plain.py` for an optimiser."""
    text = (HERE / "plain.py").read_text()
    for old, new in CHANGES[name].items():
        if text.count(old) != 1:
            raise ValueError(f"plain.py has {text.count(old)} times {old!r}")
        text = text.replace(old, new.format(lr=lr, hess=hess))
    return text


def changed(name: str) -> tuple[str, int]:
    """The difference from `plain.py`, and the number of lines that it changes or adds."""
    plain, text = script("Adam", 0.001, 0).splitlines(), script(name, CANDIDATES[name][0], 0.1).splitlines()
    lines = list(difflib.unified_diff(plain, text, "plain.py", f"{name}.py", lineterm="", n=0))
    return "\n".join(lines) + "\n", sum(line.startswith("+") and not line.startswith("+++") for line in lines)


def arrays(name: str, tune: bool, folder: Path) -> Path:
    """Write 10,000 training images of a set and its test images, or 5,000 other training images, to a file."""
    path, images = folder / f"{name}-{tune}.npz", load(name)
    order = np.random.default_rng(0).permutation(len(images.x))
    x, y = np.asarray(images.x)[order[:15000]], np.asarray(images.y)[order[:15000]]
    test = (x[10000:], y[10000:]) if tune else (images.test_x, images.test_y)
    np.savez(path, x=x[:10000], y=y[:10000], test_x=test[0], test_y=test[1])
    return path


def best(frame: pd.DataFrame) -> dict[str, tuple[float, float]]:
    """The candidate of each method with the best log-likelihood on validation images."""
    rows = frame[frame.part == "validation"].sort_values("nll").groupby("method").first()
    return {str(method): (row.lr, row.hess) for method, row in rows.iterrows()}


def summary(frame: pd.DataFrame) -> str:
    """A table for each set of images."""
    made = {}
    for name, rows in frame[frame.part == "test"].groupby("images", sort=False):
        lines = [
            [m, changed(m)[1], *(mean_se(rows[rows.method == m][score]) for score in SCORES)]
            for m in CHANGES if (rows.method == m).any()
        ]  # fmt: skip
        made[f"{name}, mean and standard error over seeds"] = markdown(["optimiser", "lines", *SCORES], lines)
    return sections(made)


@experiment(__file__)
@names("--methods", "method", CHANGES, CHANGES)
@names("--images", "image set", ["mnist", "cifar10"], ["mnist", "cifar10"])
@click.option("--seeds", default=5, help="Of each method, from 1.")
@click.option("--epochs", default=3)
@click.option("--tune", is_flag=True, help="Run the candidates on validation images of MNIST instead.")
@click.option("--python", default=sys.executable, help="Of an environment that has all optimisers.")
def main(methods: list[str], images: list[str], seeds: int, epochs: int, tune: bool, python: str, out: Path) -> None:
    """Run what is missing."""
    path = out / "runs.csv"
    chosen = {} if tune else best(pd.read_csv(path))

    def cells() -> Iterator[Key]:
        for method in methods:
            hessians = HESSIANS.get(method, (0.0,))
            pairs = [(lr, h) for lr in CANDIDATES[method] for h in hessians] if tune else [chosen[method]]
            for name in ["mnist"] if tune else images:
                for seed in [0] if tune else range(1, seeds + 1):
                    for lr, hess in pairs:
                        yield name, "validation" if tune else "test", method, lr, hess, seed

    def run(name: str, part: str, method: str, lr: float, hess: float, seed: int) -> pd.DataFrame:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "script.py").write_text(script(method, lr, hess))
            file = arrays(name, part == "validation", Path(folder))
            command = [python, f"{folder}/script.py", str(file), str(epochs), str(seed)]
            text = subprocess.run(command, check=True, capture_output=True, text=True, env=dict(os.environ)).stdout
        return pd.DataFrame([json.loads(text.splitlines()[-1])])

    frame = run_missing(path, ["images", "part", "method", "lr", "hess", "seed"], cells(), run, SCORES)
    for method in methods:
        write(out / f"{method}.diff", changed(method)[0])
    write(out / "table.md", summary(frame))


if __name__ == "__main__":
    main()
