"""Image networks with several posteriors, by `explore classify`: what of the papers' orders shows in shortened runs.

    python -m experiments.images.run choose --studies mnist      # step sizes, on parts of the training images
    python -m experiments.images.run report --studies mnist      # the chosen ones, three seeds
    python -m experiments.images.run report --studies mnist --full

mnist: two layers of 400; SLANG with L = 1 and 32 and Bayes by Backprop (Mishkin et al., SLANG, 2018, Table 3).
vgg16: CIFAR-10, the half-width VGG16; SGD, K-FAC, noisy K-FAC and noisy EK-FAC, with and without augmentation (Bae et
al., Eigenvalue Corrected Noisy Natural Gradient, 2018, Table 2).
lenet5, alexnet, resnet18: CIFAR-10; Adam, MC dropout, VOGN and noisy K-FAC (Osawa et al., Practical Deep Learning with
Bayesian Principles, 2019, Table 1), with LeNet-5 noisy EK-FAC, too. ablation: VOGN on the VGG16, with and without
momentum and batch normalisation.
whvi: CIFAR-10, AlexNet with its dense layers of 4096; Adam, and WHVI in the dense layers without and with three flows
beside dropout in the convolutions (Rossi et al., Walsh-Hadamard Variational Inference, 2020, Table 4). whvi-vgg16: the
same of the VGG16, and resnet18 has an arm of it. vgg16-norm: vgg16 with batch normalisation; it is not run here.

The shortened runs have fewer epochs, of CIFAR-10 fewer images, and a ResNet-18 and the VGG16s of ablation and
whvi-vgg16 of half the width; `--full` has the papers' lengths and nets. Each line of `choose` tests one step size on a
tenth of the training images, with a seed that is not reported.

Writes results/choose.csv, results/runs.csv (a line a run), results/curves.csv (a line a run and epoch that was
measured), results/table.md and results/curves.png. What is there is not run again, and what was stopped goes on.
"""

from __future__ import annotations

import json
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import click
import matplotlib.pyplot as plt
import pandas as pd

from experiments.driver import FOLDER, cards, commits, experiment, merge, names, resumed, run_missing, with_key, write
from experiments.tables import markdown, mean_se, sections
from explore import registry
from explore.core.errors import counted

HERE = Path(__file__).parent
SEEDS, VALIDATED = (0, 1, 2), 9
KEY = ["study", "arm", "length", "lr", "seed"]
METRICS = {"error": "error", "log_likelihood": "log-likelihood", "calibration_error": "calibration error"}


class Arm(NamedTuple):
    """A posterior with its settings, and the step sizes that are tried."""

    options: tuple[str, ...]
    grid: tuple[float, ...]
    like: str = ""  # another arm, whose step size it has


class Study(NamedTuple):
    """Arms that are compared, and pairs of them of which the paper has the first one ahead."""

    options: tuple[str, ...]
    short: tuple[str, ...]
    full: tuple[str, ...]
    arms: dict[str, Arm]
    pairs: tuple[tuple[str, str], ...]


def _settings(posterior: str, *settings: str, preset: str = "plain") -> tuple[str, ...]:
    chosen = ("--posterior", posterior, "--preset", preset)
    return (*chosen, *(part for setting in settings for part in ("-p", setting)))


IMAGE = registry.settings_in(registry.find("posteriors", "noisy-kfac"), "image")
WIDE = 0.005  # the VGG16's prior variance at the preset's KL weight, twice the preset's: better on the validation part


def _curved(posterior: str, kl_weight: float) -> tuple[str, ...]:
    """With so much noise, and the weight decay, which is the KL weight over the prior variance, that all have."""
    variance = kl_weight * WIDE / IMAGE["kl_weight"]
    return _settings(posterior, f"kl_weight={kl_weight:g}", f"prior_variance={variance:g}", preset="image")


LITTLE = 1e-7  # of noise; of the others the KL weights are those that were best on the validation part, see README.md
VGG16: dict[str, Arm] = {  # SGD has a quarter of K-FAC's weight decay, with which it is better
    "SGD": Arm(_settings("map", "optimiser=sgd", "batch_size=128", "prior_variance=0.2"), (0.01, 0.03, 0.1)),
    "K-FAC": Arm(_curved("noisy-kfac", LITTLE), (), "noisy K-FAC"),
    "noisy K-FAC": Arm(_curved("noisy-kfac", 0.1), (0.3, 1.0, 3.0)),
    "noisy EK-FAC": Arm(_curved("noisy-ekfac", 0.02), (), "noisy K-FAC"),
}
NOISY = ("K-FAC", "SGD"), ("noisy K-FAC", "K-FAC"), ("noisy K-FAC", "SGD"), ("noisy EK-FAC", "noisy K-FAC")
ONCE = "augmented, counted once"
COUNTED = 20  # images that an augmented one is worth: better on the validation part than 1 and 10


def _augmented(name: str, worth: int | None = None, options: tuple[str, ...] = ()) -> Arm:
    """With the step size of the runs without augmentation, and their other options, where none are given."""
    counts = () if worth is None else ("-p", f"augmentation={worth}")
    return Arm((*(options or VGG16[name].options), "--augment", "crop-flip", *counts), (), VGG16[name].like or name)


PRACTICAL: dict[str, Arm] = {
    "Adam": Arm(_settings("map", "batch_size=128"), (0.001, 0.003, 0.01)),
    "MC dropout": Arm(_settings("mc-dropout", "batch_size=128", "rate=0.1"), (0.001, 0.003, 0.01)),
    "VOGN": Arm(_settings("vogn", preset="image"), (0.0003, 0.001, 0.003)),
    "noisy K-FAC": Arm(_settings("noisy-kfac", preset="image"), (0.3, 1.0, 3.0)),
}  # fmt: skip
WHVI = Arm(_settings("whvi", preset="image"), (0.0003, 0.001, 0.003))
CIFAR = ("--dataset", "cifar10", "--ood", "none", "--samples", "10")
SMALLER = ("--train", "5000", "--test", "2000", "--epochs", "15", "--measure", "5")
NARROW = (*SMALLER, "-p", "net.widths=16,32,64,128,128")
NORMS = ("without batch normalisation", "with batch normalisation")
STEPS = {  # by momentum: they count 1 / (1 - beta1) times
    0.9: ((0.0001, *PRACTICAL["VOGN"].grid), PRACTICAL["VOGN"].grid),
    0.0: ((0.0003, 0.001, 0.003), (0.003, 0.01, 0.03)),
}
ORDERS = ("VOGN", "Adam"), ("VOGN", "MC dropout"), ("noisy K-FAC", "Adam")
STUDIES = {
    "mnist": Study(
        ("--dataset", "mnist", "--net", "mlp", "--ood", "none", "--samples", "50"),
        ("--epochs", "10"), ("--epochs", "400"),
        {
            "BBB": Arm(_settings("bbb", "batch_size=200", "samples=4", "prior_variance=0.0183"),
                       (0.001, 0.003, 0.01)),
            "SLANG, L=1": Arm(_settings("slang", "rank=1", preset="mnist"), (0.03, 0.1, 0.3, 1.0, 3.0)),
            "SLANG, L=32": Arm(_settings("slang", "rank=32", preset="mnist"), (), "SLANG, L=1"),
        },
        (("SLANG, L=32", "SLANG, L=1"), ("SLANG, L=32", "BBB")),
    ),
    "vgg16": Study(
        ("--dataset", "cifar10", "--net", "vgg16", "--ood", "none", "--samples", "5"),
        SMALLER, ("--epochs", "150"),
        {
            **{name: arm._replace(options=(*arm.options, "--augment", "none")) for name, arm in VGG16.items()},
            "SGD, augmented": _augmented("SGD"),
            "K-FAC, augmented": _augmented("K-FAC", COUNTED),
            "noisy K-FAC, augmented": _augmented("noisy K-FAC", COUNTED, _curved("noisy-kfac", 0.02)),
            "noisy EK-FAC, augmented": _augmented("noisy EK-FAC", COUNTED, _curved("noisy-ekfac", 0.01)),
            **{f"{name}, {ONCE}": _augmented(name, 1) for name in ("K-FAC", "noisy K-FAC")},
        },
        (
            *NOISY,
            *((f"{one}, augmented", f"{other}, augmented") for one, other in NOISY),
            *((f"{name}, augmented", name) for name in VGG16),
            (f"noisy K-FAC, {ONCE}", f"K-FAC, {ONCE}"),
            *((f"{name}, augmented", f"{name}, {ONCE}") for name in ("K-FAC", "noisy K-FAC")),
        ),
    ),
    "lenet5": Study(
        (*CIFAR, "--net", "lenet5", "--augment", "none"), SMALLER, ("--epochs", "210"),
        PRACTICAL | {"noisy EK-FAC": Arm(_settings("noisy-ekfac", preset="image"), (0.3, 1.0, 3.0))},
        (*ORDERS, ("noisy EK-FAC", "Adam"), ("noisy EK-FAC", "noisy K-FAC")),
    ),
    "alexnet": Study(
        (*CIFAR, "--net", "alexnet", "--augment", "none"), SMALLER, ("--epochs", "160"),
        PRACTICAL | {"VOGN": Arm(PRACTICAL["VOGN"].options, (0.0001, *PRACTICAL["VOGN"].grid))}, ORDERS,
    ),
    "resnet18": Study(
        (*CIFAR, "--net", "resnet18", "-p", "net.stem=imagenet", "--augment", "crop-flip"),
        (*SMALLER, "-p", "net.width=32"),
        ("--epochs", "160"), PRACTICAL | {"WHVI": WHVI._replace(grid=(*WHVI.grid, 0.01))},
        (*ORDERS, ("WHVI", "Adam"), ("WHVI", "MC dropout")),
    ),
    "ablation": Study(
        (*CIFAR, "--net", "vgg16", "--augment", "none"), NARROW, ("--epochs", "160"),
        {
            f"momentum {momentum}, {NORMS[norm]}": Arm(
                (*PRACTICAL["VOGN"].options, "-p", f"momentum={momentum}", "-p", f"net.batch_norm={norm}"),
                grids[norm],
            )
            for (momentum, grids), norm in product(STEPS.items(), (False, True))
        },
        (
            *((f"momentum 0.9, {norm}", f"momentum 0.0, {norm}") for norm in NORMS),
            *((f"momentum {momentum}, {NORMS[1]}", f"momentum {momentum}, {NORMS[0]}") for momentum in STEPS),
        ),
    ),
    "whvi": Study(
        (*CIFAR, "--net", "alexnet-dense", "--augment", "crop-flip"), SMALLER, ("--epochs", "160"),
        {
            "Adam": PRACTICAL["Adam"],
            "WHVI": WHVI,
            "WHVI, three flows": Arm(_settings("whvi", "flows=3", preset="image"), (), "WHVI"),
        },
        (("WHVI", "Adam"), ("WHVI, three flows", "WHVI")),
    ),
    "whvi-vgg16": Study(
        (*CIFAR, "--net", "vgg16", "--augment", "crop-flip"), NARROW, ("--epochs", "160"),
        {name: PRACTICAL[name]._replace(grid=(0.0003, *PRACTICAL[name].grid)) for name in ("Adam", "MC dropout")}
        | {"WHVI": WHVI},
        (("WHVI", "Adam"), ("WHVI", "MC dropout")),
    ),
}  # fmt: skip
STUDIES["vgg16-norm"] = STUDIES["vgg16"]._replace(options=(*STUDIES["vgg16"].options, "-p", "net.batch_norm=true"))


def options(study: str, arm: str, length: str, lr: float) -> tuple[str, ...]:
    """What `explore classify` is called with, but for the seed and where the run goes."""
    s = STUDIES[study]
    chosen = (*s.options, *s.arms[arm].options, *(s.full if length == "full" else s.short), "-p", f"lr={lr}")
    return (*chosen, "--validate", "0.1") if length == "choose" else chosen


def train(
    study: str, arm: str, length: str, lr: float, seed: int, *, runs: Path, device: str, curves: Path
) -> pd.DataFrame:
    """Run `explore classify`: its scores in a row. Unless it chooses, its measured epochs are written to `curves`."""
    cell = study, arm, length, lr, seed
    name = "-".join(map(str, cell)).replace(" ", "-").replace(",", "").replace("=", "")
    chosen = (*options(study, arm, length, lr), "--seed", str(seed))
    folder, result = resumed("classify", runs, name, *chosen, device=device)
    if length != "choose":
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        curve = [{"epoch": line["step"]} | {m: line[f"test/{m}"] for m in METRICS} for line in lines]
        merge(curves, with_key(pd.DataFrame(curve), KEY, cell), KEY)
    about = {name: result[name] for name in ("epochs", "alive", "epoch_seconds")}
    about |= {"device": cards(folder), "commits": commits(folder)}
    return pd.DataFrame([{m: result["test"][m] for m in METRICS} | about])


def chosen(path: Path, study: str, arm: str) -> float:
    """The step size with the highest log-likelihood of held-out training images."""
    own = STUDIES[study].arms[arm]
    if own.like and not own.grid:
        return chosen(path, study, own.like)
    every = pd.read_csv(path)
    mine = every[(every.study == study) & (every.arm == arm) & every.alive]
    return float(mine.dropna(subset="log_likelihood").sort_values("log_likelihood").lr.iloc[-1])


def tables(runs: pd.DataFrame) -> str:
    """By study: means over seeds, and differences of its pairs, seed by seed."""
    made = {}
    for (study, length), own in runs.groupby(["study", "length"], sort=False):
        arms, pairs = STUDIES[str(study)].arms, STUDIES[str(study)].pairs
        by = {arm: own[own.arm == arm].set_index("seed") for arm in arms if arm in set(own.arm)}
        lines: list[list[Any]] = [
            [arm, f"{found.lr.iloc[0]:g}", len(found), *_means(found), *_where(found)] for arm, found in by.items()
        ]
        title = f"{study}, {length}: {counted(own.epochs.iloc[0], 'epoch')}"
        made[title] = markdown(["", "lr", "seeds", *METRICS.values(), "on", "seconds an epoch"], lines)
        apart = {(one, other): _difference(by[one], by[other]) for one, other in pairs if {one, other} <= by.keys()}
        if apart := {pair: values for pair, values in apart.items() if len(values)}:
            rows = [[one, other, len(values), *_means(values)] for (one, other), values in apart.items()]
            made[f"{study}, {length}: differences"] = markdown(["", "minus", "seeds", *METRICS.values()], rows)
    return sections(made)


def _means(found: pd.DataFrame) -> list[str]:
    return [mean_se(found[metric], ".4f") for metric in METRICS]


def _where(found: pd.DataFrame) -> list[str]:
    """The devices, and the seconds of an epoch on the processor: runs share a GPU."""
    own = found[found.device == "cpu"].epoch_seconds
    return [", ".join(sorted(set(found.device))), f"{own.median():.1f}" if len(own) else ""]


def _difference(one: pd.DataFrame, other: pd.DataFrame) -> pd.DataFrame:
    """On the seeds that both have."""
    return (one[[*METRICS]] - other[[*METRICS]]).dropna()


def picture(curves: pd.DataFrame, path: Path) -> None:
    """The mean test error by epoch."""
    studies = list(curves.groupby(["study", "length"], sort=False))
    rows = -(-len(studies) // 3)
    figure, axes = plt.subplots(rows, 3, figsize=(21, 4 * rows), squeeze=False, layout="constrained")
    for ax in axes.flat[len(studies) :]:
        ax.remove()
    for ax, ((study, length), own) in zip(axes.flat, studies, strict=False):
        for arm in filter(set(own.arm).__contains__, STUDIES[str(study)].arms):
            means = own[own.arm == arm].groupby("epoch").error.agg(["mean", "sem"])
            ax.errorbar(means.index, means["mean"], means["sem"], capsize=2, label=arm)
        ax.set(title=f"{study}, {length}", xlabel="epoch", ylabel="test error", yscale="log")
        ax.legend(fontsize="small")
    figure.savefig(path, dpi=100)


@experiment(__file__)
@click.argument("part", type=click.Choice(["choose", "report"]))
@names("--studies", "study", STUDIES)
@click.option("--full", is_flag=True, help="At the papers' lengths.")
@click.option("--device", default="cpu", show_default=True)
@click.option("--runs", type=FOLDER, default=HERE / "runs", show_default=True, help="For run folders.")
def main(part: str, studies: list[str], full: bool, device: str, runs: Path, out: Path) -> None:
    """Run what is missing, and write the tables."""
    choosing, choices = part == "choose", out / "choose.csv"
    length = "choose" if choosing else "full" if full else "short"
    cells = (
        (study, name, length, lr, seed)
        for seed, study in product((VALIDATED,) if choosing else SEEDS, studies)
        for name, arm in STUDIES[study].arms.items()
        for lr in (arm.grid if choosing else (chosen(choices, study, name),))
    )
    run = partial(train, runs=runs, device=device, curves=out / "curves.csv")
    rows = run_missing(choices if choosing else out / "runs.csv", KEY, cells, run, ["error"])
    if not choosing:
        steps = [chosen(choices, study, arm) for study, arm in zip(rows.study, rows.arm, strict=True)]
        write(out / "table.md", tables(rows[rows.lr == steps]))  # earlier choices of a step are left out
        picture(pd.read_csv(out / "curves.csv"), out / "curves.png")


if __name__ == "__main__":
    main()
