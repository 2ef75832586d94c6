"""Regression on the UCI sets by the protocols of the noisy K-FAC, noisy EK-FAC and SLANG papers.

    python -m experiments.uci_regression.run                                # what the README's tables have
    python -m experiments.uci_regression.run --hidden 50-50 --arms noisy-kfac,noisy-ekfac
    python -m experiments.uci_regression.run --datasets kin8nm --full       # 20 splits and all epochs of a larger set

Zhang et al.: Noisy Natural Gradient as Variational Inference (2017), Bae et al.: Eigenvalue Corrected Noisy Natural
Gradient (2018), Table 1, Mishkin et al.: SLANG (2018), Table 2. Hidden layers of 50 ReLU (100 for Protein). On the five
small sets 20 splits and the papers' epochs for the arms of the papers; 5 splits and 100 epochs of all else, unless
`--full` is given. The splits of a set are the replicas of one run, the same with the same random numbers for every arm.

Writes results/runs.csv (a line a run and split), results/curves.csv (a line a run and epoch that was measured, means
over its splits), results/curves.png and results/table.md. What is there is not run again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import click
import matplotlib.pyplot as plt
import pandas as pd
import torch

from experiments.driver import check, experiment, merge, names, run_missing, with_key, write
from experiments.table_defaults.run import CHOSEN, NOISE, SMALL
from experiments.tables import markdown, mean_se, sections
from experiments.uci_regression import pbp
from explore import registry
from explore.core.rng import Rng
from explore.data import load
from explore.inference.predict import Predictor
from explore.learning import compare
from explore.nets.likelihoods import Gaussian
from explore.nets.net import Net, mlp

HERE = Path(__file__).parent
DATASETS = (*SMALL, "kin8nm", "naval", "power", "protein")
PRIORS = {"paper": Gaussian(), "free": NOISE}  # on the noise: Gam(6, 6), Gam(1, .01)
KEY = ["dataset", "arm", "hidden", "prior", "epochs", "splits"]
SHORT = 5, 100  # splits, epochs
METRICS = {
    "rmse": "RMSE", "log_likelihood": "log-likelihood", "joint_log_likelihood": "joint log-likelihood",
    "moment_log_likelihood": "moment-matched log-likelihood", "gibbs_log_likelihood": "Gibbs log-likelihood",
    "coverage_95": "coverage of 95 %", "bound": "evidence lower bound, nats an example",
}  # fmt: skip

CURVES = {"bound": "train/bound", "log_likelihood": "test/log_likelihood", "rmse": "test/rmse"}  # means over splits


class Arm(NamedTuple):
    """A posterior and its settings."""

    posterior: str
    settings: dict[str, Any] = {}
    samples: int = 10  # for predictions
    full: bool = True  # whether it is run at full length on the small sets
    noisy: bool = False  # whether it has noisy K-FAC's presets for the larger sets


PLAIN = {"preset": "plain"}  # the fields, which are of the papers' protocol
# Chosen on validation parts of the splits 21 to 23 of Energy and Yacht. From the default deviation of 0.05 and in steps
# of 0.01 most hidden units are given up there before they have learnt anything.
BBB = PLAIN | {"lr": 0.003, "initial_std": 0.001}
ARMS = {
    "noisy-kfac": Arm("noisy-kfac", noisy=True),
    "noisy-kfac amortised": Arm("noisy-kfac", {"preset": "paper-amortised"}),
    "noisy-ekfac": Arm("noisy-ekfac", noisy=True),
    "noisy-adam": Arm("noisy-adam", PLAIN),
    "bbb": Arm("bbb", BBB),
    "slang": Arm("slang", {"preset": "uci"}, 20),
    # The preset's prior on biases is flat: where a hidden unit is dead its bias is drawn with deviations up to 1000.
    "slang biases as weights": Arm("slang", {"preset": "uci", "bias_prior_variance": None}, 20),
    "slang L=8": Arm("slang", {"preset": "uci", "rank": 8}, 20, full=False),
    "slang L=32": Arm("slang", {"preset": "uci", "rank": 32}, 20, full=False),
    "ensemble": Arm(*CHOSEN["ensemble"]),
    "noisy-kfac amortised x 5": Arm("noisy-kfac", {"preset": "paper-amortised", "members": 5}, 50),
    "block-tridiagonal": Arm("block-tridiagonal", {"preset": "paper"}, full=False),
    "vogn": Arm("vogn", {"preset": "uci"}, 100, full=False),
    "whvi": Arm("whvi", {"preset": "uci"}, 100, full=False),
    "tensor-factorised": Arm("tensor-factorised", PLAIN, full=False),
    "mc-dropout": Arm("mc-dropout", PLAIN, 100, full=False),
    "map": Arm("map", PLAIN, 1, full=False),
}
NAMES = (*ARMS, "pbp")  # the comparator has no settings of ours
# Batches of 100 on the larger sets.
HUNDREDS = ("noisy-kfac amortised", "noisy-kfac amortised x 5", "noisy-adam", "bbb", "block-tridiagonal")
# Of SLANG by set: lr and beta, and the logarithms of the precisions of noise (in units of the target) and prior, which
# its authors search anew on every split. These are the middles of the intervals that their search is confined to, but
# for the noise of Energy, which is better at its end on validation parts of the splits 21 to 23.
SLANG = {
    "boston": (0.01, 0.01, -2.4, 0.0), "concrete": (0.005, 0.005, -3.2, 0.0), "energy": (0.01, 0.01, 0.1, -2.0),
    "kin8nm": (0.01, 0.01, 5.05, 0.0), "naval": (0.01, 0.01, 11.15, -2.0), "power": (0.005, 0.005, -2.8, 0.0),
    "wine": (0.005, 0.01, 0.95, 2.0), "yacht": (0.08, 0.08, -1.1, 0.0),
}  # fmt: skip


def settings(arm: str, dataset: str) -> dict[str, Any]:
    """Those of the papers for a set, less the number of epochs where it is shortened."""
    own, large = ARMS[arm], dataset not in SMALL
    if own.noisy:
        suffix = "-protein" if dataset == "protein" else "-batch-100" if large else ""
        return {"preset": f"paper{suffix}"} | own.settings
    if own.posterior == "slang" and dataset in SLANG:
        lr, beta, _, prior = SLANG[dataset]
        return own.settings | {"lr": lr, "beta": beta, "prior_variance": math.exp(-prior)}
    return ({"batch_size": 100} if large and arm in HUNDREDS else {}) | own.settings


class Run(NamedTuple):
    """What tells one run from the others."""

    dataset: str
    arm: str
    hidden: str
    prior: str
    epochs: int
    splits: int


def planned(dataset: str, arm: str, hidden: str, prior: str, full: bool) -> Run:
    """At full length, or shortened."""
    if arm == "pbp":
        return Run(dataset, arm, hidden, prior, pbp.EPOCHS, 5 if dataset == "protein" else 20)
    net = Net(mlp(1, [1], 1))
    epochs = registry.posterior(ARMS[arm].posterior, net, Gaussian(), **settings(arm, dataset)).epochs
    splits = 5 if dataset == "protein" else 20
    if not full and not (ARMS[arm].full and dataset in SMALL):
        splits, epochs = SHORT[0], min(epochs, SHORT[1])
    return Run(dataset, arm, hidden, prior, epochs, splits)


def noise(run: Run) -> Gaussian:
    """With its prior, or known where a paper has it so."""
    if run.prior == "free" or ARMS[run.arm].posterior != "slang" or run.dataset not in SLANG:
        return PRIORS[run.prior]
    return Gaussian(noise_std=float(math.exp(-SLANG[run.dataset][2] / 2) / load(run.dataset).y.std()))


def train(run: Run, curves: Path) -> pd.DataFrame:
    """Fit and measure: a row a split. A row a measured epoch is written to `curves`."""
    rng = Rng(0)
    parts = compare.split(load(run.dataset), run.splits, rng)
    widths = [100 if run.dataset == "protein" else int(width) for width in run.hidden.split("-")]
    if run.arm == "pbp":
        return by_pbp(parts, widths, rng)
    arm = ARMS[run.arm]
    own = settings(run.arm, run.dataset) | {"epochs": run.epochs}
    posterior = registry.posterior(arm.posterior, Net(mlp(parts.x.shape[2], widths, 1)), noise(run), **own)
    begin, lines = time.process_time(), []
    for found in compare.follow(posterior, parts, rng, arm.samples):
        if isinstance(found, compare.Measured):
            at = {column: found.scalars[tag].mean().item() for column, tag in CURVES.items()}
            lines.append({"epoch": found.epoch} | at)
            last = found
    cpu = time.process_time() - begin
    check(run.arm, last.state)
    predictor = Predictor.sample(posterior, last.state, arm.samples, rng.stream("test", last.epoch))
    values = likelihoods(predictor, parts) | {"bound": last.scalars["train/bound"]}
    values |= {tag: last.scalars[f"test/{tag}"] for tag in METRICS if tag not in values}
    merge(curves, with_key(pd.DataFrame(lines), KEY, run), KEY)
    rows = {"split": range(1, run.splits + 1)} | {k: v.numpy() for k, v in values.items()}
    return pd.DataFrame(rows | {"cpu": cpu})


def by_pbp(parts: compare.Splits, widths: list[int], rng: Rng) -> pd.DataFrame:
    """Fit and measure probabilistic back-propagation: its predictions are Gaussians."""
    assert parts.scale is not None  # of regressions alone
    begin, scale = time.process_time(), parts.scale[:, :1].double()
    model = pbp.fit(parts.x.double(), parts.y[..., 0].double(), widths, rng)
    mean, variance = model.predict(parts.test_x.double())
    error = parts.test_y[..., 0] - mean
    density = (pbp.gaussian(error, torch.zeros(()), variance) - scale.log()).mean(1)
    values = {
        "rmse": (error.square().mean(1, keepdim=True).sqrt() * scale)[:, 0],
        "log_likelihood": density,
        "moment_log_likelihood": density,
        "coverage_95": (error.abs() < 1.959964 * variance.sqrt()).double().mean(1),
    }
    rows = {"split": range(1, len(error) + 1)} | {k: v.numpy() for k, v in values.items()}
    return pd.DataFrame(rows | {"cpu": time.process_time() - begin})


def likelihoods(predictor: Predictor, parts: compare.Splits) -> dict[str, torch.Tensor]:
    """Two log-likelihoods beside those of `compare.measure`, in original units, each [R].

    That of the Gaussian with the predictive mean and total variance, and the mean over nets, E_q[log p(y | x, W)].
    """
    assert parts.scale is not None  # of regressions alone
    log_scale = parts.scale.log().sum(1)
    mean, variance, noise = predictor.label_moments(parts.test_x)
    total = variance + noise
    density = -0.5 * ((parts.test_y - mean).square() / total + total.log() + math.log(2 * math.pi))
    return {
        "moment_log_likelihood": density.mean((1, 2)) - log_scale,
        "gibbs_log_likelihood": predictor.log_prob(parts.test_x, parts.test_y).mean((1, 2)) - log_scale,
    }


def tables(runs: pd.DataFrame, paper: pd.DataFrame) -> str:
    """Means and standard errors over splits by metric; the papers' cells below ours. † is a shortened run."""
    made = {}
    for (hidden, prior), own in runs.groupby(["hidden", "prior"], sort=False):
        cited = paper[(paper.hidden == hidden) & (prior == "paper")]
        sets = [name for name in DATASETS if name in set(own.dataset)]
        for tag, title in METRICS.items():
            lines = _lines(own, cited[cited.metric == tag], tag, sets)
            made[f"{title}; hidden layers {hidden}, prior of the noise: {prior}"] = markdown(["", *sets], lines)
        lengths = {
            (run.arm, run.dataset): f"{run.splits} x {run.epochs}, {run.cpu:.0f}"
            for run in own.drop_duplicates(["dataset", "arm"]).itertuples()
        }
        cells = [[arm, *(lengths.get((arm, name), "") for name in sets)] for arm in dict.fromkeys(own.arm)]
        made[f"Splits x epochs, CPU seconds; {hidden}, {prior}"] = markdown(["", *sets], cells)
    return sections(made)


def _lines(own: pd.DataFrame, cited: pd.DataFrame, tag: str, sets: list[str]) -> Iterator[list[str]]:
    digits = {name: ".4f" if name in ("kin8nm", "naval") and tag == "rmse" else ".3f" for name in sets}
    papers = cited.groupby("arm", sort=False)
    for arm in (arm for arm in NAMES if arm in set(own.arm)):
        rows = {name: own[(own.arm == arm) & (own.dataset == name)] for name in sets}
        values = {name: found[tag] for name, found in rows.items()}
        short = {name: "†" if _shortened(found) else "" for name, found in rows.items()}
        whole = {name: v[:0] if short[name] else v for name, v in values.items()}  # beside a paper
        yield [arm, *(mean_se(v, digits[n]) + short[n] if v.notna().any() else "" for n, v in values.items())]
        for source, published in papers.get_group(arm).groupby("source", sort=False) if arm in papers.groups else ():
            label = "preprint v1" if "preprint v1" in str(source) else "paper"
            cells = dict(zip(published.dataset, zip(published.value, published.se, strict=True), strict=True))
            if cells.keys() & set(sets):
                yield [f"{arm}: {label}", *(_cited(cells.get(name), whole[name], digits[name]) for name in sets)]


def _shortened(own: pd.DataFrame) -> bool:
    return bool((own[["splits", "epochs"]] == list(SHORT)).all(axis=None))


def _cited(theirs: tuple[float, float] | None, ours: pd.Series, form: str) -> str:
    """A paper's cell, and by how many combined standard errors ours is above it."""
    if theirs is None:
        return ""
    value, se = theirs
    cell = f"{value:{form}} ± {se:{form}}"
    if not len(ours):
        return cell
    mean, error = map(float, ours.agg(["mean", "sem"]))
    return f"{cell} ({(mean - value) / math.hypot(error, se):+.1f})"


def picture(curves: pd.DataFrame, path: Path) -> None:
    """The bound of every arm that has one, on each set as it trains."""
    sets = [name for name in DATASETS if name in set(curves.dataset)]
    figure, axes = plt.subplots(1, len(sets), figsize=(4 * len(sets), 4), squeeze=False, layout="constrained")
    for ax, name in zip(axes[0], sets, strict=True):
        for arm, line in curves[curves.dataset == name].groupby("arm", sort=False):
            ax.plot(line.epoch, line.bound, label=arm)
        last = curves[(curves.dataset == name) & (curves.epoch > curves.epochs / 10)].bound
        ax.set(title=name, xlabel="epoch", xscale="log", ylim=(last.quantile(0.05), None))
    axes[0][0].set_ylabel("evidence lower bound, nats an example")
    axes[0][0].legend(fontsize="small")
    figure.savefig(path, dpi=120)


@experiment(__file__)
@names("--datasets", "data set", DATASETS)
@names("--arms", "arm", NAMES)
@click.option("--hidden", type=click.Choice(["50", "50-50"]), default="50", show_default=True)
@click.option("--prior", type=click.Choice(list(PRIORS)), default="paper", show_default=True, help="Of the noise.")
@click.option("--full", is_flag=True, help="20 splits and all epochs of everything.")
def main(datasets: list[str], arms: list[str], hidden: str, prior: str, full: bool, out: Path) -> None:
    """Run what is missing, and write the tables."""
    cells = (planned(dataset, arm, hidden, prior, full) for arm, dataset in product(arms, datasets))
    run_missing(
        out / "runs.csv", KEY, cells, lambda *cell: train(Run(*cell), out / "curves.csv"), [*list(METRICS)[:2], "cpu"]
    )
    runs, curves = (pd.read_csv(out / name, dtype={"hidden": str}) for name in ("runs.csv", "curves.csv"))
    paper = pd.read_csv(HERE / "papers.csv", dtype={"hidden": str})
    write(out / "table.md", tables(runs, paper))
    shown = curves[(curves.hidden == "50") & (curves.prior == "paper") & curves.bound.notna()]
    if len(shown):
        picture(shown, out / "curves.png")


if __name__ == "__main__":
    main()
