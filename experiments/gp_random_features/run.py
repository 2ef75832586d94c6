"""Random-feature Gaussian processes with WHVI over the weights, against mean field and a sparse Gaussian process.

    python -m experiments.gp_random_features.run

Rossi et al.: Walsh-Hadamard Variational Inference (2020), on five functions with closed forms. A square W [D, D] of
WHVI gives the weights of D^2 random features, by 4 D parameters (diagonal covariance) or 3 D + D (D + 1) / 2 (full).
Mean field takes as many features, and the sparse process as many inducing points, as have that number of parameters.
All know the kernel and learn the noise. Writes results/results.csv (one line a function, model and replica),
results/kernels.csv, results/table.md and results/rmse.png; functions that are not asked for keep their lines.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import click
import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from experiments.driver import Integers, experiment, fit, merge, names, write
from experiments.gp_random_features import kernel as kernels, mean_field, sparse
from experiments.gp_random_features.functions import FUNCTIONS
from experiments.tables import markdown, mean_sd, sections
from explore.core.errors import InputError
from explore.core.rng import Rng
from explore.learning import compare
from explore.nets.likelihoods import Gaussian

NOISE_STD = 0.05  # of the targets, in standard deviations of the function
LEARNT_FROM = 500  # points for the kernel
NOISE = Gaussian(prior_shape=1.0, prior_rate=0.01)
BATCH, LR = 64, 0.03
COMMON: dict[str, Any] = {"batch_size": BATCH, "samples": 1, "lr": LR, "initial_std": 0.01}
RESHAPED: dict[str, Any] = {
    "preset": "power", "last_layer": "whvi", "vectors": "reshape", "schedule": "cosine", "noise_start": 0,
}  # fmt: skip
MODELS = {"WHVI": "C0", "mean field": "C2", "mean field, Adam": "C3", "sparse GP": "C1"}
COLUMNS = {"rmse": "RMSE", "log_likelihood": "log-likelihood", "coverage_95": "95 % coverage"}


def sample_splits(name: str, replicas: int, train: int, test: int, rng: Rng) -> compare.Splits:
    """A scrambled Sobol sequence for each replica, in standard scores; the noise is in the test targets too."""
    function = FUNCTIONS[name]
    inputs = len(function.low)
    # Blocks of the axes of one long sequence are sequences themselves.
    engine = torch.quasirandom.SobolEngine(replicas * inputs, scramble=True, seed=rng.seed)
    unit = engine.draw(train + test, dtype=torch.float64).unflatten(1, (replicas, inputs)).transpose(0, 1)
    values = function(unit).unsqueeze(2)
    scale, mean = torch.std_mean(values[:, :train], 1, keepdim=True)
    x = rng.tensor((unit - 0.5) * math.sqrt(12))
    y = rng.tensor((values - mean) / scale) + NOISE_STD * rng.stream("toy").normal(*values.shape)
    # Numbers are told in standard deviations of the function.
    ones = torch.ones(replicas, 1, dtype=rng.dtype)
    return compare.Splits(x[:, :train], y[:, :train], x[:, train:], y[:, train:], ones)


def represent(splits: compare.Splits, kernel: kernels.Kernel, features: int, rng: Rng) -> compare.Splits:
    """The same points by random features."""
    omega = rng.stream("init").normal(len(splits.x), splits.x.shape[2], features // 2)
    return splits._replace(x=kernel.features(splits.x, omega), test_x=kernel.features(splits.test_x, omega))


def linear(name: str, shown: compare.Splits, steps: int, samples: int, rng: Rng, **settings: Any) -> dict[str, Tensor]:
    """A posterior over the weights of features: the columns, each [R]."""
    net = nn.Linear(shown.x.shape[2], 1, bias=False)
    done = fit(name, net, NOISE, shown.x, shown.y, rng, steps=steps, **COMMON, **settings)
    found = compare.measure(done.posterior, done.state, shown, rng.stream("test"), samples)
    return {column: found[f"test/{column}"] for column in COLUMNS}


def gaussian_scores(mean: Tensor, std: Tensor, y: Tensor) -> dict[str, Tensor]:
    """The columns of Gaussian predictions, each [R, P]."""
    score = (y - mean) / std
    return {
        "rmse": (y - mean).square().mean(1).sqrt(),
        "log_likelihood": (-0.5 * score.square() - std.log() - 0.5 * math.log(2 * math.pi)).mean(1),
        "coverage_95": (score.abs() <= 1.959964).to(y).mean(1),
    }


def learn(
    model: str, full: bool, side: int, splits: compare.Splits, kernel: kernels.Kernel, steps: int, samples: int,
    rng: Rng,
) -> pd.DataFrame:  # fmt: skip
    """A line a replica."""
    inputs, wanted = splits.x.shape[2], 3 * side + (side * (side + 1) // 2 if full else side)
    covariance, y, test_y = "full" if full else "diagonal", splits.y.squeeze(2), splits.test_y.squeeze(2)
    start = time.process_time()
    if model == "sparse GP":
        size = sparse.inducing(wanted, inputs, full)
        parameters = sparse.count(size, inputs, full)
        stream = rng.stream("fit")
        mean, std = sparse.predict(kernel, full, size, splits.x, y, splits.test_x, BATCH, steps, LR, stream)
        found = gaussian_scores(mean, std, test_y)
    elif model == "WHVI":
        size, parameters = side**2, wanted
        shown = represent(splits, kernel, size, rng)
        found = linear("whvi", shown, steps, samples, rng, covariance=covariance, **RESHAPED)
    else:
        size = 2 * math.ceil(wanted / 4)  # a cosine and a sine each
        parameters = 2 * size
        shown = represent(splits, kernel, size, rng)
        if model == "mean field":
            best = mean_field.optimum(shown.x, y, NOISE)
            found = gaussian_scores(*best.predict(shown.test_x.double()), test_y)
        else:
            found = linear("bbb", shown, steps, samples, rng, preset="plain")
    seconds = time.process_time() - start
    first = {"model": model, "covariance": covariance, "side": side, "size": size}
    return line(first | {"parameters": parameters}, found, seconds)


def line(first: dict[str, Any], found: dict[str, Tensor], seconds: float) -> pd.DataFrame:
    numbers = {k: v.numpy() for k, v in found.items()}
    return pd.DataFrame(first | {"replica": range(1, len(found["rmse"]) + 1)} | numbers | {"cpu": seconds})


def exact(splits: compare.Splits, kernel: kernels.Kernel) -> pd.DataFrame:
    """The process that all the others approximate, without the approximation."""
    start = time.process_time()
    parts = (splits.x, splits.y.squeeze(2), splits.test_x)
    found = [kernels.exact(kernel, *one) for one in zip(*(p.double().numpy() for p in parts), strict=True)]
    mean, std = (torch.from_numpy(np.stack(part)) for part in zip(*found, strict=True))
    first = {"model": "exact GP", "covariance": "full", "side": 0, "size": splits.x.shape[1], "parameters": 0}
    return line(first, gaussian_scores(mean, std, splits.test_y.squeeze(2)), time.process_time() - start)


def table(rows: pd.DataFrame) -> str:
    """Means with standard deviations over replicas."""
    headings = ["covariance", "model", "parameters", "features or points", *COLUMNS.values(), "CPU s"]
    tables = {}
    for name, here in rows.groupby("function", sort=False):
        lines = []
        for (covariance, _, model), own in here.groupby(["covariance", "side", "model"], sort=False):
            first = own.iloc[0]
            scores = [mean_sd(own[c]) for c in COLUMNS]
            lines.append([covariance, model, first["parameters"] or "", first["size"], *scores, f"{first['cpu']:.0f}"])
        tables[str(name)] = markdown(headings, lines)
    return sections(tables)


def picture(rows: pd.DataFrame) -> Figure:
    """RMSE over the number of parameters; a row for each covariance."""
    names = list(rows["function"].unique())
    figure = Figure(figsize=(3 * len(names), 6), layout="constrained")
    grid = figure.subplots(2, len(names), squeeze=False, sharex="row")
    for column, name in enumerate(names):
        here = rows[rows["function"] == name]
        for axes, covariance in zip(grid[:, column], ("diagonal", "full"), strict=True):
            for model, colour in MODELS.items():
                own = here[(here["model"] == model) & (here["covariance"] == covariance)]
                found = own.groupby("parameters")["rmse"].agg(["mean", "std"])
                look: dict[str, Any] = {"color": colour, "marker": "o", "markersize": 4, "capsize": 2}
                axes.errorbar(found.index, found["mean"], found["std"], label=model, **look)
            reference = here[here["model"] == "exact GP"]["rmse"].mean()
            axes.axhline(reference, color="k", linestyle=":", linewidth=1, label="exact GP")
            axes.set(xscale="log", yscale="log", xlabel="parameters", title=f"{name}, {covariance}")
            ticks = here[(here["model"] == "WHVI") & (here["covariance"] == covariance)]["parameters"].unique()
            axes.set_xticks(ticks, labels=map(str, ticks))
            axes.tick_params("x", which="minor", bottom=False, labelbottom=False)
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter("{x:g}")
    for axes in grid[:, 0]:
        axes.set_ylabel("RMSE")
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=len(MODELS) + 1)
    return figure


@experiment(__file__)
@names("--functions", "function", FUNCTIONS)
@click.option("--sides", type=Integers(), default=(16, 32, 64), show_default=True, help="D of WHVI's square matrices.")
@click.option("--replicas", type=click.IntRange(min=2), default=3, show_default=True)
@click.option("--train", type=click.IntRange(min=2), default=2000, show_default=True, help="Points to learn.")
@click.option("--test", type=click.IntRange(min=1), default=1000, show_default=True, help="Points to test.")
@click.option("--steps", type=click.IntRange(min=1), default=1000, show_default=True, help=f"Of {BATCH} points.")
@click.option("--samples", type=click.IntRange(min=2), default=64, show_default=True, help="For predictions.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
def main(
    functions: list[str], sides: tuple[int, ...], replicas: int, train: int, test: int, steps: int, samples: int,
    seed: int, out: Path,
) -> None:  # fmt: skip
    """Run everything, and write the table and the figure."""
    for side in sides:
        if side < 1 or side & (side - 1):
            raise InputError(f"--sides takes powers of two; got {side}")
    rng = Rng(seed)
    for name in functions:
        splits = sample_splits(name, replicas, train, test, rng)
        kernel = kernels.learn(*(t[0, :LEARNT_FROM].double().numpy() for t in (splits.x, splits.y.squeeze(2))))
        scales = {f"scale_{i}": scale for i, scale in enumerate(kernel.scales, 1)}
        learnt = pd.DataFrame([{"function": name, "variance": kernel.variance, "noise": kernel.noise} | scales])
        merge(out / "kernels.csv", learnt, ["function"])
        rows = [exact(splits, kernel)]
        for full in (False, True):
            for side in sides:
                for model in MODELS:
                    rows.append(learn(model, full, side, splits, kernel, steps, samples, rng))
                    print(f"{name}, {side}, full: {full}: {model}, RMSE {rows[-1]['rmse'].mean():.4f}", flush=True)
        every = pd.concat(rows)
        every.insert(0, "function", name)
        found = merge(out / "results.csv", every, ["function"])
    write(out / "table.md", table(found))
    picture(found).savefig(out / "rmse.png", dpi=80)


if __name__ == "__main__":
    main()
