"""Posteriors at 16 to 512 labels.

    python -m experiments.few_labels.run choose --tables FOLDER    # 12 tables, ten trials
    python -m experiments.few_labels.run report                    # eight others, 20 trials
    python -m experiments.few_labels.run choose --tables FOLDER --rows 1000 --methods gp,noisy-kfac --trials 3

Each trial draws labelled rows of a table at random, and up to 1,000 others to test on. `ARD process` is one process
with hyperparameters of maximum likelihood; its noise is at least 1e-4 of the targets' variance.
`ensemble` has five networks with a variance head and weight decay. Its settings were chosen among `CANDIDATES`, by
log-likelihood, and those of `ensemble, long` by RMSE. Methods joined by `+` are mixtures of equal parts. `fit` are the
CPU seconds of a fit, `cpu` with its predictions. Writes results/choose.csv or results/report.csv, a line per set,
number of labels, method and trial; what is there is not run again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import click
import pandas as pd
import torch
from torch import Tensor

from experiments.driver import FOLDER, Key, experiment, fit, names, run_missing, write
from experiments.few_labels import data
from experiments.tables import markdown, sections
from explore import registry
from explore.core.rng import Rng
from explore.inference.predict import Predictor
from explore.inference.presets import recommended_settings, recommended_widths
from explore.nets.likelihoods import Gaussian, Heteroscedastic
from explore.nets.net import mlp

ROWS, MOST = (16, 32, 64, 128, 256, 512), 1000
TRIALS = {"choose": 10, "report": 20}
DRAWS = 256  # networks or functions that predict
NOISE = {"prior_shape": 1.0, "prior_rate": 0.01}
KEY = ["set", "rows", "method"]


class Part(NamedTuple):
    """A posterior, whether its noise depends on the input, hidden layers and settings beside recommended ones."""

    posterior: str
    input_noise: bool = True
    hidden: tuple[int, ...] | None = None  # None: recommended ones
    settings: dict[str, Any] = {}  # noqa: RUF012
    least_noise: float = 0.0  # variance, in predictions


METHODS = {
    "gp": Part("gp"),
    "gp, one noise": Part("gp", False),
    "ARD process": Part("gp", False, settings={"draws": 1, "hyperprior": False}, least_noise=1e-4),
    "ensemble": Part("ensemble", settings={"epochs": 60, "lr": 0.01, "batch_size": 16, "prior_variance": 0.3}),
    "ensemble, long": Part("ensemble", settings={"epochs": 200, "lr": 0.01, "batch_size": 16, "prior_variance": 0.1}),
    "noisy-kfac": Part("noisy-kfac", settings={"members": 5}),
    "noisy-kfac, one noise": Part("noisy-kfac", False, settings={"members": 5}),
    "mclmc": Part("mclmc", hidden=(24, 24)),
}
CANDIDATES = {  # for the ensemble
    f"ensemble, {epochs} epochs, lr {lr}, prior {variance}": Part(
        "ensemble",
        settings={"epochs": epochs, "lr": lr, "batch_size": 16, "prior_variance": variance},
    )
    for epochs, lr in ((60, 0.003), (60, 0.01), (200, 0.003), (200, 0.01), (600, 0.003))
    for variance in (0.01, 0.03, 0.1, 0.3, 1.0)
}
COMPARED = ("gp", "ARD process", "ensemble", "ensemble, long")  # in the report
POOLED = {"gp + noisy-kfac": ("gp", "noisy-kfac")}


class Scored(NamedTuple):
    """What mixtures are made of."""

    log_likelihood: Tensor  # [R, P]
    mean: Tensor  # [R, P]
    below: Tensor  # [R, P]
    fit: float  # CPU seconds
    cpu: float  # with predictions


def scored(part: Part, trials: data.Trials) -> Scored:
    """Fit a posterior to all trials at once, and predict the targets to test on."""
    begin, rng = time.process_time(), Rng(0)
    likelihood: Any = Gaussian(**NOISE)
    if part.input_noise:
        likelihood = Heteroscedastic(**NOISE, resolution=trials.resolution)
    rows, columns = trials.x.shape[1:]
    kind = "heteroscedastic" if part.input_noise else "gaussian"
    cls = registry.find("posteriors", part.posterior)
    hidden = part.hidden or recommended_widths(rows)
    settings = recommended_settings(cls, rows, units=max(hidden), likelihood=kind).settings | part.settings
    module = mlp(columns, hidden, likelihood.outputs_per_target)
    done = fit(part.posterior, module, likelihood, trials.x, trials.y, rng, **settings)
    predictor = Predictor.sample(done.posterior, done.state, DRAWS, rng.stream("test"))
    if part.least_noise:
        predictor = replace(predictor, noise=predictor.noise.clamp_max(1 / part.least_noise))
    fitted, found = time.process_time() - begin, []
    for at, out in predictor.outputs(trials.test_x):
        y = trials.test_y[:, None, at]
        log_prob = predictor.likelihood.log_prob(predictor.noise, out, y)
        density = log_prob.logsumexp(1) - math.log(log_prob.shape[1]) - trials.scale.log()
        found.append((density, predictor.moments_of(out).mean.squeeze(2), predictor.below_of(out, y).squeeze(2)))
    density, mean, below = (torch.cat(every, 1) for every in zip(*found, strict=True))
    return Scored(density, mean, below, fitted / len(trials.x), (time.process_time() - begin) / len(trials.x))


def mixed(parts: list[Scored], trials: data.Trials) -> pd.DataFrame:
    """Score a mixture of equal parts: a line per trial."""
    density = torch.stack([part.log_likelihood for part in parts]).logsumexp(0) - math.log(len(parts))
    mean, below = (torch.stack([getattr(part, name) for part in parts]).mean(0) for name in ("mean", "below"))
    error = (mean - trials.test_y.squeeze(2)) * trials.scale
    return pd.DataFrame(
        {
            "trial": range(1, len(trials.x) + 1),
            "log_likelihood": density.mean(1),
            "rmse": error.square().mean(1).sqrt(),
            "coverage_90": ((below - 0.5).abs() <= 0.45).float().mean(1),
            "fit": sum(part.fit for part in parts),
            "cpu": sum(part.cpu for part in parts),
        }
    )


def counts(differences: pd.Series) -> str:
    """Format numbers of sets: better, no difference and worse by two standard errors, and the sets that are worse."""
    sets = differences.dropna().groupby("set", sort=False)
    errors = sets.mean() / sets.sem()
    worse = errors[errors < -2]
    names = f" ({', '.join(f'{name} {sets.mean()[name]:.2g}' for name in worse.index)})" if len(worse) else ""
    return f"{sum(errors > 2)}, {sum(errors.abs() <= 2)}, {len(worse)}{names}"


def summary(rows: pd.DataFrame) -> str:
    """The process beside each rival, by number of labels; medians over sets of the mean over trials."""
    lines = []
    for count, own in rows.groupby("rows"):
        wide = own.pivot_table(index=["set", "trial"], columns="method", values=["log_likelihood", "rmse"], sort=False)
        for rival in wide.log_likelihood.columns.drop("gp"):
            likelihood = wide.log_likelihood.gp - wide.log_likelihood[rival]
            error = wide.rmse[rival] - wide.rmse.gp
            ratio = (wide.rmse.gp / wide.rmse[rival]).groupby("set").mean().median()
            gain = likelihood.groupby("set").mean().median()
            lines.append([count, rival, counts(likelihood), f"{gain:+.2f}", counts(error), f"{ratio:.2f}"])
    heads = ["labels", "beside", "log-likelihood", "median", "RMSE", "median ratio"]
    cost = rows.groupby(["rows", "method"])[["coverage_90", "fit", "cpu"]].mean().round(3).reset_index()
    costs = markdown(["labels", "method", "90 % intervals hold", "CPU s, fit", "and predictions"], cost.to_numpy())
    return sections({"gp: better, no difference, worse": markdown(heads, lines), "Intervals and seconds": costs})


@experiment(__file__)
@click.argument("part", type=click.Choice([*TRIALS]))
@names("--sets", "set", [*data.CHOOSING, *data.REPORTED], [])
@names("--methods", "method", [name.replace(", ", "/") for name in [*METHODS, *POOLED, *CANDIDATES]], [])
@names("--rows", "number of labels", map(str, (*ROWS, MOST)), map(str, ROWS))
@click.option("--trials", type=click.IntRange(1), help="Number of trials.  [default: 10, or 20 to report]")
@click.option("--tables", type=FOLDER, help="Has the tables that choose.")
def main(
    part: str, sets: list[str], methods: list[str], rows: list[str], trials: int | None, tables: Path | None, out: Path
) -> None:
    """Run what is missing."""
    sets = sets or list(data.CHOOSING if part == "choose" else data.REPORTED)
    methods = methods or list(METHODS if part == "choose" else COMPARED)

    @cache
    def drawn(name: str, count: int) -> data.Trials | None:
        return data.drawn(name, count, trials or TRIALS[part], tables)

    @cache
    def one(name: str, count: int, method: str) -> Scored:
        trials = drawn(name, count)
        assert trials is not None
        return scored((METHODS | CANDIDATES)[method], trials)

    def cells() -> Iterator[Key]:
        for count in map(int, rows):
            for name in sets:
                if drawn(name, count):
                    yield from ((name, count, method.replace("/", ", ")) for method in methods)

    def run(name: str, count: int, method: str) -> pd.DataFrame:
        trials = drawn(name, count)
        assert trials is not None
        return mixed([one(name, count, each) for each in POOLED.get(method, (method,))], trials)

    shown = ["log_likelihood", "rmse", "coverage_90", "fit", "cpu"]
    frame = run_missing(out / f"{part}.csv", KEY, cells(), run, shown)
    write(out / f"{part}.md", summary(frame))


if __name__ == "__main__":
    main()
