"""Defaults for large and wide tables, beside a deep ensemble with input noise and gradient boosting.

    python -m experiments.large_tables.run choose --tables FOLDER    # two splits of three tables
    python -m experiments.large_tables.run report --tables FOLDER    # three splits of three others

The tables are of the UCI repository, as in github.com/treforevans/uci_datasets: bike, pumadyn32nm and elevators choose,
and pol, parkinsons and keggdirected are reported; all six were named before the first run. A folder has them as
NAME.csv, with a header and the target in the last column. All splits are replicas of one fit. `cpu` are the seconds
of a split. Writes results/choose.csv or results/report.csv, a line per set, method and split; what is there is not
run again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import pandas as pd
import torch
from sklearn.ensemble import HistGradientBoostingRegressor

from experiments.driver import FOLDER, Key, check, experiment, names, run_missing, split
from explore import registry
from explore.core.rng import Rng
from explore.data.base import Dataset
from explore.data.table import load_table
from explore.inference.predict import Predictor
from explore.inference.presets import recommended_settings
from explore.learning.compare import Splits
from explore.learning.fit import last_epoch
from explore.learning.scaling import resolution
from explore.nets.likelihoods import Heteroscedastic
from explore.nets.net import Net, mlp

SETS = {"choose": ("bike", "pumadyn32nm", "elevators"), "report": ("pol", "parkinsons", "keggdirected")}
SPLITS = {"choose": 2, "report": 3}
DRAWS = 100
NOISE = Heteroscedastic(prior_shape=1.0, prior_rate=0.01)


class Method(NamedTuple):
    """A posterior with noise that depends on the input, its hidden layers, and settings beside recommended ones."""

    posterior: str
    hidden: tuple[int, ...]
    settings: dict[str, Any]


def natural(hidden: tuple[int, ...], batch: int, epochs: int, **settings: Any) -> Method:
    return Method("noisy-kfac", hidden, {"batch_size": batch, "epochs": epochs, **settings})


BOOSTING = "gradient boosting"
METHODS = {
    "default": Method("noisy-kfac", (50,), {}),
    "50, batch 256, 60": natural((50,), 256, 60),
    "50-50, batch 256, 60": natural((50, 50), 256, 60),
    "100-100, batch 256, 60": natural((100, 100), 256, 60),
    "100-100, batch 256, 60, bound 1": natural((100, 100), 256, 60, trust_region=1.0),
    "100-100, batch 256, 60, beta .3": natural((100, 100), 256, 60, beta=0.3),
    "100-100, batch 256, 180": natural((100, 100), 256, 180),
    "100-100, batch 1024, 240": natural((100, 100), 1024, 240),
    "200-200, batch 256, 60": natural((200, 200), 256, 60),
    "ensemble, 50": Method("ensemble", (50,), {"members": 5, "epochs": 100, "batch_size": 64}),
    "ensemble, 100-100": Method("ensemble", (100, 100), {"members": 5, "epochs": 60, "batch_size": 128}),
}


def table(name: str, folder: Path) -> Dataset:
    frame = pd.read_csv(folder / f"{name}.csv")
    return load_table(frame, frame.columns[-1]).dataset


def boosted(parts: Splits) -> pd.DataFrame:
    """RMSE of histogram gradient boosting with early stopping, which takes a tenth of the rows."""
    every = zip(parts.x, parts.y[..., 0], parts.test_x, parts.test_y[..., 0], parts.scale[:, 0], strict=True)
    lines = []
    for x, y, test_x, test_y, scale in every:
        begin = time.process_time()
        found = HistGradientBoostingRegressor(max_iter=1000, early_stopping=True, random_state=0).fit(x, y)
        error = (found.predict(test_x.numpy()) - test_y.numpy()) * float(scale)
        lines.append({"rmse": np.sqrt(np.mean(error**2)), "cpu": time.process_time() - begin})
    return pd.DataFrame(lines)


def scores(method: Method, parts: Splits) -> pd.DataFrame:
    begin, rng, (rows, columns) = time.process_time(), Rng(0), parts.x.shape[1:]
    cells = [resolution(y.numpy())[0] for y in parts.y]
    likelihood = replace(NOISE, resolution=(max(cells),))
    cls, net = registry.find("posteriors", method.posterior), Net(mlp(columns, method.hidden, 2))
    chosen = recommended_settings(cls, rows, columns, units=max(method.hidden), likelihood="heteroscedastic").settings
    posterior = registry.posterior(method.posterior, net, likelihood, **chosen | method.settings)
    state = last_epoch(posterior, parts.x, parts.y, rng.stream("fit")).state
    check(method.posterior, state)
    predictor = Predictor.sample(posterior, state, DRAWS, rng.stream("test"))
    found = predictor.evaluate(parts.test_x, parts.test_y, parts.scale)
    line = {name: found[name].numpy() for name in ("log_likelihood", "rmse", "coverage_95")}
    return pd.DataFrame(line | {"cpu": (time.process_time() - begin) / len(parts.x)})


@experiment(__file__)
@click.argument("part", type=click.Choice([*SETS]))
@click.option("--tables", type=FOLDER, required=True, help="Has the tables.")
@names("--sets", "set", [name for part in SETS.values() for name in part], [])
@names("--methods", "method", [name.replace(", ", "/") for name in [*METHODS, BOOSTING]])
def main(part: str, tables: Path, sets: list[str], methods: list[str], out: Path) -> None:
    """Run what is missing."""

    def cells() -> Iterator[Key]:
        for name in sets or SETS[part]:
            yield from ((name, method.replace("/", ", ")) for method in methods)

    def run(name: str, method: str) -> pd.DataFrame:
        parts = split(table(name, tables), slice(0, SPLITS[part]), Rng(0, dtype=torch.float32))
        found = boosted(parts) if method == BOOSTING else scores(METHODS[method], parts)
        return found.assign(split=range(1, len(found) + 1))

    run_missing(out / f"{part}.csv", ["set", "method"], cells(), run, ["rmse", "cpu"])


if __name__ == "__main__":
    main()
