"""Sampled posteriors and noise that depends on the input, beside five fits of noisy K-FAC and the library bde.

    python -m experiments.sampling.run --sets boston,concrete,energy,yacht

Splits 1 to 10 of the UCI sets, five as the replicas of one fit, on one thread. `five fits` and `five fits, input noise`
have the recommended settings of noisy K-FAC and one layer of 50 ReLU. `mclmc` is the sampler's default with that
layer; with `input noise` its network is 24-24 ReLU. Settings were chosen on validation parts of the splits 21 to 25.
Scores are of the mixture of all draws; `coverage_90` is the share of targets in its central 90 % interval, and `cpu`
the seconds of fit and prediction. `experiments.sampling.bde` adds the rows of bde. Writes results/ours.csv, a line per
set, method and split; what is there is not run again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pandas as pd
import torch
from torch import Tensor

from experiments.driver import Key, check, experiment, names, run_missing, split, write
from experiments.table_defaults.run import NOISE, table
from experiments.tables import markdown, mean_se, paired, sections
from explore import registry
from explore.core.rng import Rng
from explore.inference.predict import Predictor
from explore.inference.presets import recommended_settings
from explore.learning.compare import Splits
from explore.learning.fit import last_epoch
from explore.nets.likelihoods import Heteroscedastic
from explore.nets.net import Net, mlp

HERE = Path(__file__).parent
SETS = ("boston", "concrete", "energy", "wine", "yacht", "kin8nm", "naval", "power", "protein")
INPUT_NOISE = Heteroscedastic(prior_shape=1.0, prior_rate=0.01)
METHODS: dict[str, tuple[str, tuple[int, ...], Any, dict[str, int]]] = {
    "five fits": ("noisy-kfac", (50,), NOISE, {"members": 5}),
    "five fits, input noise": ("noisy-kfac", (50,), INPUT_NOISE, {"members": 5}),
    "mclmc": ("mclmc", (50,), NOISE, {}),
    "mclmc, input noise": ("mclmc", (24, 24), INPUT_NOISE, {}),
    "mclmc, input noise, 8 chains": ("mclmc", (24, 24), INPUT_NOISE, {"chains": 8}),
}
TOGETHER, DRAWS = 5, 1000  # splits in one fit, and networks that predict


def coverage(predictor: Predictor, x: Tensor, y: Tensor, level: float = 0.9) -> Tensor:
    """The share of targets in the central interval of each split, [R]."""
    below = torch.cat([predictor.below_of(out, y[:, None, part]) for part, out in predictor.outputs(x)], 1)
    return ((below - 0.5).abs() <= level / 2).double().mean((1, 2))


def scores(method: str, parts: Splits) -> pd.DataFrame:
    """A line per split."""
    name, hidden, likelihood, more = METHODS[method]
    rng, outputs = Rng(0), likelihood.outputs_per_target
    kind = "gaussian" if outputs == 1 else "heteroscedastic"
    cls = registry.find("posteriors", name)
    settings = recommended_settings(cls, parts.x.shape[1], units=max(hidden), likelihood=kind).settings | more
    posterior = registry.posterior(name, Net(mlp(parts.x.shape[2], hidden, outputs)), likelihood, **settings)
    begin = time.process_time()
    state = last_epoch(posterior, parts.x, parts.y, rng.stream("fit")).state
    check(method, state)
    predictor = Predictor.sample(posterior, state, DRAWS, rng.stream("test"))
    found = predictor.evaluate(parts.test_x, parts.test_y, parts.scale)
    cpu = (time.process_time() - begin) / len(parts.x)
    found |= {"coverage_90": coverage(predictor, parts.test_x, parts.test_y)}
    tags = ("log_likelihood", "rmse", "coverage_90")
    return pd.DataFrame({tag: found[tag].numpy() for tag in tags} | {"cpu": cpu})


def summary(ours: pd.DataFrame, theirs: pd.DataFrame) -> str:
    """A table per score: means over the splits, and differences from bde on the same splits."""
    rows = pd.concat([ours, theirs.assign(method="bde")])
    sets, methods = [name for name in SETS if name in set(rows.set)], [*METHODS, "bde"]
    made = {}
    for tag, title in {"log_likelihood": "Log-likelihood", "rmse": "RMSE", "coverage_90": "Coverage of 90 %"}.items():
        cells = rows.pivot_table(values=tag, index="split", columns=["set", "method"])
        present = [m for m in methods if any((name, m) in cells for name in sets)]
        each = [
            [m, *(mean_se(cells[name, m].dropna()) if (name, m) in cells else "" for name in sets)] for m in present
        ]
        made[title] = markdown(["method", *sets], each)
    cells = rows.pivot_table(values="log_likelihood", index="split", columns=["set", "method"])
    apart = [
        [m, *(paired((cells[s, m] - cells[s, "bde"]).dropna()) if (s, m) in cells else "" for s in sets)]
        for m in METHODS if any((s, m) in cells for s in sets)
    ]  # fmt: skip
    made["Log-likelihood, difference from bde"] = markdown(["method", *sets], apart)
    cpu = rows.pivot_table(values="cpu", index="method", columns="set").reindex(methods)[sets]
    seconds = [
        [m, *(f"{v:.1f}" if v == v else "" for v in line)] for m, line in zip(cpu.index, cpu.to_numpy(), strict=True)
    ]
    made["CPU seconds a split"] = markdown(["method", *sets], seconds)
    return sections(made)


@experiment(__file__)
@names("--sets", "set", SETS)
@names("--methods", "method", [name.replace(", ", "+") for name in METHODS])
@click.option("--splits", default=10, help="Of each set.")
@click.option("--rows", default=0, help="Training rows of each split; 0: all.")
def main(sets: list[str], methods: list[str], splits: int, rows: int, out: Path) -> None:
    """Run what is missing."""

    def cells() -> Iterator[Key]:
        for name in sets:
            for method in methods:
                for first in range(1, splits + 1, TOGETHER):
                    yield name, method.replace("+", ", "), first

    def run(name: str, method: str, first: int) -> pd.DataFrame:
        last = min(first + TOGETHER - 1, splits)
        parts = split(table(name), slice(first - 1, last), Rng(0))
        if rows:
            parts = parts._replace(x=parts.x[:, :rows], y=parts.y[:, :rows])
        return scores(method, parts).assign(split=range(first, last + 1))

    frame = run_missing(out / "ours.csv", ["set", "method", "first"], cells(), run, ["log_likelihood", "rmse", "cpu"])
    if (theirs := out / "bde.csv").exists():
        write(out / "table.md", summary(frame, pd.read_csv(theirs)))


if __name__ == "__main__":
    main()
