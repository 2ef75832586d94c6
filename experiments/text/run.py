"""A tiny GPT goes on to a small corpus: distributions over its last layer, LoRA adapters or all layers, beside Adam.

    experiments/text/environment.sh FOLDER
    python -m experiments.text.run --python FOLDER/bin/python --tune
    python -m experiments.text.run --python FOLDER/bin/python

The settings of each method are those of `CANDIDATES` with the best log-likelihood on the validation part (`--tune`).
Every fit is a process of its own, on one thread. Writes results/runs.csv and results/table.md.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pandas as pd

from experiments.driver import Key, experiment, names, run_missing, write
from experiments.tables import markdown, mean_se

KFAC = [
    {"lr": 0.03, "prior_variance": 0.05}, {"lr": 0.01, "prior_variance": 0.05},
    {"lr": 0.01, "prior_variance": 0.05, "kl_weight": 0.01}, {"lr": 0.003, "prior_variance": 0.05, "kl_weight": 0.01},
]  # fmt: skip
VOGN = [
    {"lr": 0.00001}, {"lr": 0.00003},
    {"lr": 0.0001, "prior_variance": 0.05}, {"lr": 0.0005, "prior_variance": 0.05}, {"lr": 0.0005},
    {"lr": 0.0005, "prior_variance": 0.05, "kl_weight": 0.01},
]  # fmt: skip
CANDIDATES: dict[str, list[dict[str, float]]] = {
    "adam last": [{"lr": 0.0003}, {"lr": 0.001}, {"lr": 0.003}, {"lr": 0.01}],
    "adam lora": [{"lr": 0.0003}, {"lr": 0.001}, {"lr": 0.003}, {"lr": 0.01}],
    "adam all": [{"lr": 0.0001}, {"lr": 0.0003}, {"lr": 0.001}, {"lr": 0.003}],
    "noisy-kfac last": KFAC, "noisy-kfac lora": KFAC, "noisy-kfac all": KFAC,
    "vogn last": VOGN, "vogn lora": VOGN, "vogn all": VOGN,
}  # fmt: skip
LAPLACE = ("laplace last", "laplace-torch last")  # around "adam all", with its settings
METHODS = [*CANDIDATES, *LAPLACE]
PLAIN = {"last": "adam last", "lora": "adam lora", "all": "adam all"}
SCORES = {"nll": ".3f", "error": ".3f", "ece": ".4f", "auroc_code": ".3f", "auroc_shuffled": ".3f"}
USED = ["seconds", "memory"]


def best(frame: pd.DataFrame) -> dict[str, str]:
    """Return the settings of each method with the best log-likelihood on validation contexts."""
    rows = frame[frame.data == "validation"].sort_values("nll").groupby("method").first()
    chosen = {str(method): str(settings) for method, settings in rows.settings.items()}
    return chosen | dict.fromkeys(LAPLACE, chosen.get("adam all", "{}"))


def plain(method: str) -> str:
    """The method with which time and memory are compared: Adam on the same parameters."""
    return "adam all" if method in LAPLACE else PLAIN[method.split()[1]]


def summary(frame: pd.DataFrame) -> str:
    """The table of the test scores, with time and memory as multiples of those of Adam on the same parameters."""
    rows = frame[frame.data == "test"]
    used = rows.groupby("method")[USED].mean()
    lines = []
    for method in METHODS:
        if method in used.index and plain(method) in used.index:
            found = [mean_se(rows[rows.method == method][key], form) for key, form in SCORES.items()]
            pairs = zip(used.loc[method], used.loc[plain(method)], strict=True)
            each = [f"{mean:.3g} ({mean / base:.2f})" for mean, base in pairs]
            lines.append([method, *found, *each])
    heads = ["method", "NLL", "error", "ECE", "AUROC, code", "AUROC, shuffled", "CPU seconds (ratio)", "MB (ratio)"]
    return markdown(heads, lines)


@experiment(__file__)
@names("--methods", "method", METHODS, METHODS)
@click.option("--seeds", default=3, help="Of each method, from 1.")
@click.option("--tune", is_flag=True, help="Run the candidates on the validation part instead.")
@click.option("--python", default=sys.executable, help="Of an environment that has all libraries.")
def main(methods: list[str], seeds: int, tune: bool, python: str, out: Path) -> None:
    """Run what is missing."""
    path, file = out / "runs.csv", out / "pretrained.pt"
    command = [python, "-m", "experiments.text.train"]
    if not file.exists():
        subprocess.run([*command, "pretrain", str(file)], check=True)
    chosen = {} if tune else best(pd.read_csv(path))

    def cells() -> Iterator[Key]:
        for seed in [0] if tune else range(1, seeds + 1):
            for method in methods:
                for settings in map(json.dumps, CANDIDATES.get(method, [])) if tune else [chosen[method]]:
                    yield "validation" if tune else "test", method, settings, seed

    def run(data: str, method: str, settings: str, seed: int) -> pd.DataFrame:
        name, part = method.split()
        options = {"method": name, "part": "all" if method in LAPLACE else part, "seed": seed}
        options |= {"tune": data == "validation", **json.loads(settings)}
        words = [*command, "fit", str(file), json.dumps(options)]
        text = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout
        return pd.DataFrame([json.loads(text.splitlines()[-1])])

    frame = run_missing(path, ["data", "method", "settings", "seed"], cells(), run, ["nll", *USED])
    write(out / "table.md", summary(frame))


if __name__ == "__main__":
    main()
