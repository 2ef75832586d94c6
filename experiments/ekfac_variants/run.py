"""What noisy EK-FAC's restarts and their damping do on five UCI sets, beside noisy K-FAC with equal settings.

    python -m experiments.ekfac_variants.run                              # every variant, 200 epochs, 10 splits
    python -m experiments.ekfac_variants.run --variants kfac,text,code --epochs 1000 --splits 20

Bae et al.: Eigenvalue Corrected Noisy Natural Gradient (2018), Table 1: 50 ReLU, batches of 10, 10 weight samples in
training and test, prior N(0, 1) on weights and Gam(6, 6) on the noise. The splits of a set are the replicas of one run,
the same with the same random numbers for every variant. Writes results/runs.csv (a line a set, variant, number of
epochs and split) and results/table.md. What the CSV has already is not run again.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import click
import pandas as pd

from experiments.driver import experiment, fit, names, run_missing, write
from experiments.tables import markdown, mean_se, sections
from explore.core.rng import Rng
from explore.data import load
from explore.learning import compare
from explore.nets.likelihoods import Gaussian
from explore.nets.net import mlp

KEY = ["dataset", "variant", "epochs", "splits"]
SAMPLES = 10
TAGS = {"rmse": "RMSE", "log_likelihood": "log-likelihood", "coverage_95": "coverage of 95 %"}
# Settings beside `paper` of noisy K-FAC, which EK-FAC shares; the first two are noisy K-FAC itself.
VARIANTS: dict[str, dict[str, Any]] = {
    "kfac": {},
    "kfac-exact": {"damping": "exact"},
    "kept": {"reset_interval": None},
    "text": {"reset_interval": 50},
    "text-damped": {"reset_interval": 50, "reset_damped": True},
    "five": {"moments_interval": 5, "reset_interval": 5},
    "five-damped": {"moments_interval": 5, "reset_interval": 5, "reset_damped": True},
    "step": {"reset_interval": 1},
    "code": {"reset_interval": 1, "reset_damped": True},
    "code-basis": {"reset_interval": 1, "reset_damped": True, "basis_interval": 1},
    "code-uncorrected": {"reset_interval": 1, "reset_damped": True, "omega": 1e-9},
}
# Table 1 of the paper: RMSE and log-likelihood with standard errors (Boston's .015 is printed so).
PAPER = {
    "noisy K-FAC": {
        "boston": ("2.742 ± .015", "−2.409 ± .047"), "concrete": ("5.019 ± .127", "−3.039 ± .025"),
        "energy": ("0.485 ± .019", "−1.421 ± .004"), "wine": ("0.637 ± .011", "−0.969 ± .014"),
        "yacht": ("0.979 ± .077", "−2.316 ± .006"),
    },
    "noisy EK-FAC": {
        "boston": ("2.527 ± .158", "−2.378 ± .044"), "concrete": ("4.880 ± .120", "−3.002 ± .025"),
        "energy": ("0.497 ± .023", "−1.448 ± .004"), "wine": ("0.635 ± .013", "−0.964 ± .002"),
        "yacht": ("0.974 ± .116", "−2.224 ± .007"),
    },
}  # fmt: skip
DATASETS = tuple(PAPER["noisy K-FAC"])


def train(dataset: str, variant: str, epochs: int, splits: int) -> pd.DataFrame:
    """A line a split."""
    rng = Rng(0)
    parts = compare.split(load(dataset), splits, rng)
    name = "noisy-kfac" if variant.startswith("kfac") else "noisy-ekfac"
    preset = "paper" if name == "noisy-kfac" else "paper-text"
    settings: dict[str, Any] = {"preset": preset, "samples": SAMPLES, "epochs": epochs} | VARIANTS[variant]
    done = fit(name, mlp(parts.x.shape[2], [50], 1), Gaussian(), parts.x, parts.y, rng, **settings)
    measures = compare.measure(done.posterior, done.state, parts, rng.stream("test", epochs), SAMPLES)
    scores = {tag: measures[f"test/{tag}"].numpy() for tag in TAGS} | {"elbo": measures["train/elbo"].numpy()}
    return pd.DataFrame({"split": range(1, splits + 1)} | scores | {"cpu": done.cpu})


def table(runs: pd.DataFrame) -> str:
    """Means and standard errors over splits for each protocol, and what a variant has more than noisy K-FAC, paired."""
    tables = {}
    for (epochs, splits), own in runs.groupby(["epochs", "splits"], sort=False):
        sets = [name for name in DATASETS if name in set(own["dataset"])]
        for column, (tag, title) in enumerate(TAGS.items()):
            rows = [[variant, *cells] for variant, cells in _cells(own, sets, tag, None)]
            if column < 2:
                rows += [[f"paper: {who}", *(cells[name][column] for name in sets)] for who, cells in PAPER.items()]
            tables[f"{title}, {epochs} epochs, {splits} splits"] = markdown(["variant", *sets], rows)
            if column < 2 and "kfac" in set(own["variant"]):
                rows = [[variant, *cells] for variant, cells in _cells(own, sets, tag, "kfac") if variant != "kfac"]
                tables[f"{title} − that of `kfac`, {epochs} epochs, {splits} splits"] = markdown(
                    ["variant", *sets], rows
                )
    return sections(tables)


def _cells(runs: pd.DataFrame, sets: list[str], tag: str, base: str | None) -> Iterator[tuple[str, list[str]]]:
    """Each variant's numbers for the sets, less those of the variant `base` on the same splits where one is named."""
    wide = runs.pivot(index=["dataset", "split"], columns="variant", values=tag)
    for variant in (name for name in VARIANTS if name in wide):
        values = wide[variant] if base is None else wide[variant] - wide[base]
        found = {name: values[name].dropna() for name in sets}
        yield variant, [mean_se(own) if len(own) else "" for own in found.values()]


@experiment(__file__)
@names("--datasets", "data set", DATASETS)
@names("--variants", "variant", VARIANTS)
@click.option("--epochs", type=click.IntRange(min=1), default=200, show_default=True)
@click.option("--splits", type=click.IntRange(2, 20), default=10, show_default=True)
def main(datasets: list[str], variants: list[str], epochs: int, splits: int, out: Path) -> None:
    """Run what is missing, and write the table."""
    cells = product(datasets, variants, [epochs], [splits])
    rows = run_missing(out / "runs.csv", KEY, cells, train, [*TAGS, "cpu"])
    write(out / "table.md", table(rows))


if __name__ == "__main__":
    main()
