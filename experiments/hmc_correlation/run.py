"""How well predictive variances agree with those of the exact posterior.

    python -m experiments.hmc_correlation.run --seed 1

Zhang et al. 2017 (Noisy Natural Gradient as Variational Inference), Section 5.2 and Table 3: 20 labelled points, a net
with one hidden layer of 10 ReLU units, prior N(0, 1) on the weights and Gam(6, 6) on the noise's precision; the Pearson
correlation, over 100 other points, of a posterior's predictive variances with those by Hamiltonian Monte Carlo.

Writes OUT/results.csv (one line a set, posterior and trial), hmc.csv (two runs of the sampler compared), results.md and
correlation.png; the sampler's variances are kept in OUT/hmc/ and used again. What is not asked for keeps its lines.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import click
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from torch import Tensor

import explore
from experiments.driver import FOLDER, Fit, fit, merge
from experiments.tables import markdown, mean_se
from explore.core.rng import Rng
from explore.data import pool_splits
from explore.inference.draws import split_r_hat
from explore.inference.gaussian import GaussianPosterior
from explore.inference.predict import Predictor, linearised
from explore.learning.scaling import Standardiser

HERE = Path(__file__).parent
LABELLED, HIDDEN = 20, 10
DATASETS = ("boston", "concrete", "energy", "kin8nm", "naval", "power", "wine", "yacht")

# Table 3: mean and standard error.
PAPER = {
    "bbb": (
        (0.733, 0.021), (0.809, 0.027), (0.414, 0.074), (0.681, 0.018),
        (0.316, 0.094), (0.633, 0.046), (0.915, 0.011), (0.617, 0.053),
    ),
    "noisy-kfac": (
        (0.891, 0.021), (0.913, 0.010), (0.617, 0.087), (0.731, 0.021),
        (0.596, 0.073), (0.829, 0.020), (0.957, 0.009), (0.717, 0.072),
    ),
    "block-tridiagonal": (
        (0.889, 0.024), (0.922, 0.006), (0.646, 0.088), (0.759, 0.023),
        (0.598, 0.070), (0.853, 0.020), (0.964, 0.006), (0.727, 0.070),
    ),
}  # fmt: skip

# Each posterior's own defaults, but for the schedule (2000 steps on all data at once, with
# rates at which the curvature forgets its start) and the model's own prior on all weights. Chosen on Boston, Kin8nm and
# Power, seed 100; one for all sets.
STEPS: dict[str, object] = {"epochs": 2000, "batch_size": LABELLED}
PLAIN: dict[str, object] = {"preset": "plain"}
NATURAL: dict[str, object] = {"samples": 10, "lr": 0.02, "beta": 0.02, "fisher": "exact"}
KFAC: dict[str, object] = STEPS | NATURAL | {"preset": "paper", "adaptive_damping": True}
EKFAC = KFAC | {"preset": "paper-text"}
SETTINGS: dict[str, dict[str, object]] = {
    "bbb": STEPS | PLAIN,
    "noisy-adam": STEPS | NATURAL | PLAIN,
    "noisy-kfac": KFAC,
    "noisy-kfac (exact damping)": KFAC | {"damping": "exact"},
    "noisy-ekfac": EKFAC | {"reset_interval": None},
    "noisy-ekfac (restarts)": EKFAC,
    "block-tridiagonal": KFAC,
    "slang": STEPS | {"preset": "uci", "samples": 10, "rank": 8, "bias_prior_variance": None},
    "vogn": STEPS | PLAIN | {"samples": 10, "lr": 0.003, "beta2": 0.01, "prior_variance": 1.0, "kl_start": 1.0},
    "whvi": STEPS | {"preset": "power", "samples": 10, "lr": 0.01, "schedule": "cosine", "noise_start": 0},
    "ensemble": STEPS | PLAIN | {"epochs": 500, "members": 50},
}
HMC = {"epochs": 300, "warmup": 100, "thinning": 5, "chains": 4}


class Task(NamedTuple):
    """One data set: as many problems as trials, standardised by their labelled points."""

    x: Tensor  # [R, n, D]
    y: Tensor  # [R, n, 1]
    others: Tensor  # [R, P, D]


def task(dataset: str, trials: int, points: int, seed: int, labelled: int = LABELLED) -> Task:
    data = explore.load(dataset)
    split = pool_splits(len(data.x), trials, labelled, points, seed)
    x, y, others = (torch.from_numpy(v) for v in (data.x[split.labelled], data.y[split.labelled], data.x[split.test]))
    inputs, targets = Standardiser.fit(x), Standardiser.fit(y)
    scaled = ((inputs, x), (targets, y), (inputs, others))
    return Task(*(scale.apply(values, torch.float32) for scale, values in scaled))


def fitted(name: str, task: Task, seed: int, **settings: Any) -> Fit:
    """A posterior over the weights of the experiment's net."""
    net = explore.mlp(task.x.shape[2], [HIDDEN], 1)
    return fit(name.partition(" ")[0], net, explore.Gaussian(), task.x, task.y, Rng(seed), **settings)


def by_hmc(dataset: str, task: Task, seed: int, cache: Path) -> dict[str, np.ndarray]:
    """Variances [2, R, P] by two independent runs, the split R-hat of the outputs [2, R, P] and the seconds [2]."""
    if not cache.exists():
        runs = []
        posterior: Any
        for run in (0, 1):
            posterior, state, seconds, _ = fitted("hmc", task, 1000 * seed + run, **HMC)
            out = posterior.net.output(state.weights, task.others).squeeze(3)  # [R, S, P]
            draws = out.unflatten(1, (posterior.draws, posterior.chains)).permute(0, 3, 1, 2)
            r_hat = split_r_hat(draws.flatten(0, 1)).view(draws.shape[:2])
            runs.append({"variance": out.var(1), "r_hat": r_hat, "seconds": seconds})
        cache.parent.mkdir(parents=True, exist_ok=True)
        both: dict[str, Any] = {k: np.stack([np.asarray(r[k], np.float32) for r in runs]) for k in runs[0]}
        np.savez_compressed(cache, **both)
    return dict(np.load(cache))


def correlation(one: np.ndarray, two: np.ndarray) -> np.ndarray:
    """Pearson's, along the last axis; none (NaN) where one is constant, as it is where all units of a net are dead."""
    one, two = (v - v.mean(-1, keepdims=True) for v in (one, two))
    with np.errstate(invalid="ignore"):
        return (one * two).sum(-1) / np.sqrt((one**2).sum(-1) * (two**2).sum(-1))


def trials_of(name: str, task: Task, seed: int, reference: np.ndarray, samples: int) -> tuple[pd.DataFrame, float]:
    """(correlation with the reference by trial, seconds of the fit)."""
    posterior, state, seconds, _ = fitted(name, task, seed, **SETTINGS.get(name, {}))
    predictor = Predictor.sample(posterior, state, samples, Rng(seed).stream("test"))
    variance = predictor.moments(task.others).variance.squeeze(2)
    rows = pd.DataFrame({"trial": range(1, len(variance) + 1), "correlation": correlation(variance.numpy(), reference)})
    if isinstance(posterior, GaussianPosterior) and posterior.over_weights:
        exact = linearised(posterior, state, task.others).variance.squeeze(2)
        rows["linearised"] = correlation(exact.numpy(), reference)
    return rows, seconds


def shown_names(results: pd.DataFrame) -> list[str]:
    """The posteriors that there are results of, in the order of `SETTINGS`."""
    return [name for name in SETTINGS if name in set(results["posterior"])]


def table(results: pd.DataFrame, hmc: pd.DataFrame) -> str:
    """Ours, and the paper's numbers where it has some."""
    columns = {"HMC, twice": hmc.groupby("dataset")["correlation"].apply(mean_se)}
    means = {"HMC, twice": hmc.groupby("dataset")["correlation"].mean()}
    for name in shown_names(results):
        own = results[results["posterior"] == name].groupby("dataset")["correlation"]
        columns[name], means[name] = own.apply(mean_se), own.mean()
        if name in PAPER:
            published = pd.DataFrame(PAPER[name], DATASETS, ["mean", "se"]).reindex(means[name].index)
            columns[f"{name}, paper"] = published.apply(lambda r: f"{r['mean']:.3f} ± {r['se']:.3f}", axis=1)
            means[f"{name}, paper"] = published["mean"]
    shown = [d for d in DATASETS if d in means["HMC, twice"]]
    rows = [[name, *(cells.get(d, "") for d in shown), f"{means[name].mean():.3f}"] for name, cells in columns.items()]
    return markdown(["", *shown, "mean"], rows)


def picture(results: pd.DataFrame, hmc: pd.DataFrame, file: Path) -> None:
    """Mean and standard error of each posterior, set by set; the paper's numbers as open circles."""
    names, colours = shown_names(results), [*(f"C{i}" for i in range(10)), "black"]
    shown = [d for d in DATASETS if d in set(hmc["dataset"])]
    figure, axis = plt.subplots(figsize=(11, 4))
    for i, name in enumerate(names):
        own = results[results["posterior"] == name].groupby("dataset")["correlation"]
        at = np.arange(len(shown)) + (i - (len(names) - 1) / 2) * 0.8 / len(names)
        mean, se = own.mean().reindex(shown), own.sem().reindex(shown)
        axis.errorbar(at, mean, se, fmt="o", color=colours[i], markersize=4, label=name)
        if name in PAPER:
            at, (mean, se) = at + 0.03, np.array(PAPER[name])[[DATASETS.index(d) for d in shown]].T
            axis.errorbar(at, mean, se, fmt="o", color=colours[i], markersize=4, mfc="white", alpha=0.5)
    axis.plot(range(len(shown)), hmc.groupby("dataset")["correlation"].mean().reindex(shown), "k_", label="HMC, twice")
    axis.set_xticks(range(len(shown)), shown)
    axis.set_ylabel("correlation of predictive variances with HMC's")
    axis.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1), title="open: Zhang et al.")
    figure.tight_layout()
    figure.savefig(file, dpi=120)


@click.command()
@click.option("--datasets", default=",".join(DATASETS), show_default=True)
@click.option("--posteriors", default=",".join(SETTINGS), show_default=True)
@click.option("--trials", default=10, show_default=True)
@click.option("--seed", default=1, show_default=True)
@click.option("--points", default=100, show_default=True, help="Points at which variances are compared.")
@click.option("--samples", default=2000, show_default=True, help="Weight samples for predictions.")
@click.option("--out", default=HERE / "results", type=FOLDER, help="Default: results/ here.")
def main(datasets: str, posteriors: str, trials: int, seed: int, points: int, samples: int, out: Path) -> None:
    """Run everything that is asked for and write table and picture of all that is there."""
    for dataset in datasets.split(","):
        problems = task(dataset, trials, points, seed)
        hmc = by_hmc(dataset, problems, seed, out / "hmc" / f"{dataset}-seed{seed}-{trials}x{points}.npz")
        quality = {"r_hat": hmc["r_hat"].max((0, 2)), "seconds": hmc["seconds"].sum()}
        twice = {"dataset": dataset, "trial": range(1, trials + 1), "correlation": correlation(*hmc["variance"])}
        references = merge(out / "hmc.csv", pd.DataFrame(twice | quality), ["dataset", "trial"], "%.5g")
        for name in posteriors.split(","):
            rows, seconds = trials_of(name, problems, seed, hmc["variance"].mean(0), samples)
            print(f"{dataset:9} {name:18} {rows['correlation'].mean():.3f}  {seconds:.0f} s", flush=True)
            rows.insert(0, "posterior", name)
            rows.insert(1, "dataset", dataset)
            results = merge(
                out / "results.csv", rows.assign(seconds=seconds), ["posterior", "dataset", "trial"], "%.5g"
            )
    (out / "results.md").write_text(table(results, references))
    picture(results, references, out / "correlation.png")


if __name__ == "__main__":
    main()
