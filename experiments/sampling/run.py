"""Sampled posteriors and noise that depends on the input, beside five fits of noisy K-FAC and the library bde.

    python -m experiments.sampling.run --sets boston,concrete,energy,yacht

Splits 1 to 10 of the UCI sets, five as the replicas of one fit, on one thread. `five fits` have the recommended
settings of noisy K-FAC, and `mclmc` is the sampler's default, both with one layer of 50 ReLU. With `input noise` the
network of both is 24-24 ReLU, and the fits have 600 epochs instead of 400. `NUTS` is the posterior `hmc` with the same
layer of 50 and the same prior. Settings were chosen on validation parts of the splits 21 to 25. Scores are of the
mixture of all draws; `coverage_90` is the share of targets in its central 90 % interval, `r_hat` the median of split
R-hat over predictions at test points, and `cpu` the seconds of fit and prediction. `experiments.sampling.bde` adds the
rows of bde. Writes results/ours.csv, a line per set, number of training rows, method and split; what is there is not
run again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import pandas as pd
import torch
from torch import Tensor

from experiments.driver import Key, experiment, fit, names, run_missing, write
from experiments.sampling import data
from experiments.table_defaults.run import NOISE
from experiments.tables import markdown, mean_se, paired, sections
from explore import registry
from explore.core.rng import Rng
from explore.inference.draws import SampledPosterior
from explore.inference.predict import Predictor
from explore.inference.presets import recommended_settings
from explore.learning.compare import Splits
from explore.learning.scaling import resolution
from explore.nets.likelihoods import Heteroscedastic
from explore.nets.net import mlp

HERE = Path(__file__).parent
INPUT_NOISE = Heteroscedastic(prior_shape=1.0, prior_rate=0.01)
METHODS: dict[str, tuple[str, tuple[int, ...], Any, dict[str, Any]]] = {
    "five fits": ("noisy-kfac", (50,), NOISE, {"members": 5}),
    "five fits, input noise": ("noisy-kfac", (24, 24), INPUT_NOISE, {"members": 5, "epochs": 600}),
    "mclmc": ("mclmc", (50,), NOISE, {}),
    "NUTS": ("hmc", (50,), NOISE, registry.settings_in(registry.find("posteriors", "hmc"), "default")),
    "mclmc, input noise": ("mclmc", (24, 24), INPUT_NOISE, {}),
}
TOGETHER, DRAWS = 5, 1000  # splits in one fit, and networks that predict
TAGS = {"log_likelihood": "Log-likelihood", "rmse": "RMSE", "coverage_90": "Coverage of 90 %"}


def likelihood_of(template: Any, y: np.ndarray) -> Any:
    """The likelihood, with the resolution of targets y if it takes one."""
    if not hasattr(template, "resolution"):
        return template
    return replace(template, resolution=resolution(y))


def covered(predictor: Predictor, x: Tensor, y: Tensor, level: float = 0.9) -> Tensor:
    """1 for targets in the central interval and 0 for others, [R, P, M]."""
    below = torch.cat([predictor.below_of(out, y[:, None, part]) for part, out in predictor.outputs(x)], 1)
    return ((below - 0.5).abs() <= level / 2).double()


def fitted(method: str, parts: Splits, y: np.ndarray) -> tuple[Any, Any, Predictor]:
    """Fit a method to splits of a data set with targets y: a posterior, its state, and a predictor."""
    name, hidden, template, more = METHODS[method]
    likelihood, rng = likelihood_of(template, y), Rng(0)
    outputs = likelihood.outputs_per_target
    kind = "gaussian" if outputs == 1 else "heteroscedastic"
    cls = registry.find("posteriors", name)
    settings = recommended_settings(cls, parts.x.shape[1], units=max(hidden), likelihood=kind).settings | more
    done = fit(name, mlp(parts.x.shape[2], hidden, outputs), likelihood, parts.x, parts.y, rng, **settings)
    return done.posterior, done.state, Predictor.sample(done.posterior, done.state, DRAWS, rng.stream("test"))


def scores(method: str, parts: Splits, y: np.ndarray) -> pd.DataFrame:
    """A line per split, for a data set with targets y."""
    begin = time.process_time()
    posterior, state, predictor = fitted(method, parts, y)
    found = predictor.evaluate(parts.test_x, parts.test_y, parts.scale)
    cpu = (time.process_time() - begin) / len(parts.x)
    found |= {"coverage_90": covered(predictor, parts.test_x, parts.test_y).mean((1, 2))}
    has_chains = isinstance(posterior, SampledPosterior)
    r_hat = posterior.agreement(state, parts.test_x[:, :100])[:, 0].numpy() if has_chains else math.nan
    return pd.DataFrame({tag: found[tag].numpy() for tag in TAGS} | {"r_hat": r_hat, "cpu": cpu})


def summary(ours: pd.DataFrame, theirs: pd.DataFrame) -> str:
    """A table per score: means over the splits, and differences from bde on the same splits."""
    rows = pd.concat([ours, theirs.assign(method="bde")])
    most = rows.groupby("set").rows.transform("max")
    rows["set"] = rows.set.where(rows.rows == most, rows.set + ", " + rows.rows.astype(str))
    ranks = {name: i for i, name in enumerate([*data.SETS, *data.OTHERS])}
    sets = sorted(set(rows.set), key=lambda name: (", " in name, ranks[name.split(", ")[0]], name))
    methods = [m for m in [*METHODS, "bde"] if m in set(rows.method)]
    made = {}
    for tag, title in TAGS.items():
        cells = rows.pivot_table(values=tag, index="split", columns=["set", "method"])
        each = [
            [m, *(mean_se(cells[name, m].dropna()) if (name, m) in cells else "" for name in sets)] for m in methods
        ]
        made[title] = markdown(["method", *sets], each)
    cells = rows.pivot_table(values="log_likelihood", index="split", columns=["set", "method"])
    both = [[m, *((cells[s, m] - cells[s, "bde"]).dropna() if {(s, m), (s, "bde")} <= {*cells} else [] for s in sets)]
            for m in METHODS]  # fmt: skip
    apart = [[m, *(paired(v) if len(v) > 1 else "" for v in values)] for m, *values in both if any(map(len, values))]
    made["Log-likelihood, difference from bde"] = markdown(["method", *sets], apart)
    cpu = rows.pivot_table(values="cpu", index="method", columns="set").reindex(methods)[sets]
    seconds = [
        [m, *(f"{v:.1f}" if v == v else "" for v in line)] for m, line in zip(cpu.index, cpu.to_numpy(), strict=True)
    ]
    made["CPU seconds a split"] = markdown(["method", *sets], seconds)
    return sections(made)


@experiment(__file__)
@names("--sets", "set", [*data.SETS, *data.OTHERS], data.SETS)
@names("--methods", "method", [name.replace(", ", "+") for name in METHODS])
@click.option("--splits", default=10, help="Of each set.")
@data.rows
@data.tables
def main(sets: list[str], methods: list[str], splits: int, rows: int | None, tables: Path | None, out: Path) -> None:
    """Run what is missing."""
    loaded = {name: data.table(name, tables) for name in sets}

    def cells() -> Iterator[Key]:
        for name in sets:
            for method in methods:
                for first in range(1, splits + 1, TOGETHER):
                    yield name, data.size(loaded[name], rows), method.replace("+", ", "), first

    def run(name: str, size: int, method: str, first: int) -> pd.DataFrame:
        last = min(first + TOGETHER - 1, splits)
        parts = data.parts(loaded[name], slice(first - 1, last), size)
        return scores(method, parts, loaded[name].y).assign(split=range(first, last + 1))

    key = ["set", "rows", "method", "first"]
    frame = run_missing(out / "ours.csv", key, cells(), run, ["log_likelihood", "rmse", "cpu"])
    if (theirs := out / "bde.csv").exists():
        write(out / "table.md", summary(frame, pd.read_csv(theirs)))


if __name__ == "__main__":
    main()
