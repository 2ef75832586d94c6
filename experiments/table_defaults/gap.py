"""Epistemic deviation where there are no data: a sine with a gap, noisy K-FAC's preset `default` beside an ensemble.

    python -m experiments.table_defaults.gap

The problem is that of `experiments.whvi_toy.sine`: 200 points in [-2, -0.7] and [0.7, 2].
The deviation over the weights is averaged within |x| < 0.5 and within 0.75 < |x| < 1.95, for ten seeds. Writes
results/gap.csv, a line an arm and seed, and prints a table.
"""

from __future__ import annotations

from pathlib import Path

import click
import pandas as pd

from experiments.driver import commit, experiment, merge
from experiments.table_defaults.run import CHOSEN, FIVE, NOISE
from experiments.table_defaults.study import SAMPLES
from experiments.tables import markdown
from experiments.whvi_toy import sine
from explore import registry
from explore.core.rng import Rng
from explore.nets.net import Net, mlp

ARMS = CHOSEN | {"noisy-kfac, five, prior variance 1": ("noisy-kfac", FIVE | {"prior_variance": 1.0})}


def line(arm: str, seed: int) -> dict[str, object]:
    """What is measured of a fit."""
    name, settings = ARMS[arm]
    posterior = registry.posterior(name, Net(mlp(1, [50], 1)), NOISE, **settings)
    bands = sine.bands(posterior, NOISE, [50], Rng(seed), SAMPLES)
    data = (bands.x.abs() > 0.75) & (bands.x.abs() < 1.95)
    error = (bands.mean - (2 * bands.x).sin())[data].square().mean().sqrt()
    inside, beside = (bands.epistemic[where].mean().item() for where in (bands.x.abs() < 0.5, data))
    measures = {"gap": inside, "data": beside, "ratio": inside / beside, "rmse": error.item()}
    return {"arm": arm, "seed": seed, **measures, "commit": commit()}


@experiment(__file__)
@click.option("--seeds", type=click.IntRange(min=1), default=10, show_default=True)
def main(seeds: int, out: Path) -> None:
    """Run all, and print the table."""
    for arm in ARMS:
        rows = merge(out / "gap.csv", pd.DataFrame([line(arm, seed) for seed in range(seeds)]), ["arm"])
    of = {"gap": "median", "data": "median", "ratio": ["median", "min", "max"], "rmse": "median"}
    cells = rows.groupby("arm", sort=False).agg(of)
    heads = ["", "in the gap", "at the data", "ratio", "least", "greatest", "error of the mean at the data"]
    click.echo(
        markdown(
            heads, ([arm, *(f"{v:.3f}" for v in row)] for arm, row in zip(cells.index, cells.to_numpy(), strict=True))
        )
    )


if __name__ == "__main__":
    main()
