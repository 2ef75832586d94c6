"""How wide the prior is to be where there are few rows, and which preset of others: parts of the sets that choose.

    python -m experiments.table_defaults.few

The first rows, in random order, of Diabetes and four UCI sets; candidates on validation parts of the splits 21 to 40 of
these. Writes results/few.csv, a line a set, number of rows, candidate and split, and prints means over the sets. What
is there is not run again.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

import click
import numpy as np
import pandas as pd

from experiments.driver import experiment, run_missing
from experiments.table_defaults.run import CHOSEN, DEFAULT, NOISE, TAGS, table
from experiments.table_defaults.study import KEY, Candidate, Study
from experiments.tables import markdown
from explore.data.base import Dataset

DATASETS = ("diabetes", "boston", "concrete", "energy", "wine")
ROWS = (60, 130, 200, 300)  # of which 72 % are trained on
SPLITS, SHARE = slice(20, 40), 0.2
OTHERS: dict[str, Candidate] = {
    f"{name}, {preset}": (name, {"preset": preset})
    for name in ("bbb", "tensor-factorised", "whvi")
    for preset in ("default", "small")
}
CANDIDATES: dict[str, Candidate] = (
    {"ensemble": CHOSEN["ensemble"], "small": ("noisy-kfac", {"preset": "small"})}
    | {
        f"prior variance {variance}": ("noisy-kfac", DEFAULT | {"prior_variance": variance})
        for variance in (0.1, 0.3, 1.0, 2.0)
    }
    | OTHERS
    | {"whvi, at least 16 batches": ("whvi", {"preset": "default", "min_batches": 16})}
)


def part(name: str) -> Dataset:
    """So many rows of a set, both in its name."""
    dataset, rows = name.rsplit(" ", 1)
    whole = table(dataset)
    some = np.random.default_rng(0).permutation(len(whole.x))[: int(rows)]
    return whole._replace(name=name, x=whole.x[some], y=whole.y[some], lines=(), ids=())


def means(rows: pd.DataFrame) -> str:
    """Log-likelihoods by number of rows, each set's less those of its ensemble, averaged over the sets."""
    found = rows.assign(rows=rows.dataset.str.rsplit(" ", n=1).str[1].astype(int))
    wide = found.pivot_table("log_likelihood", ["rows", "dataset"], "candidate", sort=False)
    apart = wide.sub(wide.ensemble, axis=0).groupby("rows").mean()
    lines = [[name, *(f"{apart[name][count]:+.3f}" for count in apart.index)] for name in apart.columns]
    return markdown(["", *(f"{count} rows" for count in apart.index)], lines)


@experiment(__file__)
def main(out: Path) -> None:
    """Run what is missing, and print the means."""
    study = Study(part, NOISE, 50, TAGS, {}, {}, CANDIDATES, CHOSEN)

    def run(name: str, candidate: str) -> pd.DataFrame:
        return study.score(name, candidate, CANDIDATES[candidate], SPLITS, SHARE)

    sets = [f"{dataset} {rows}" for rows in ROWS for dataset in DATASETS]
    click.echo(means(run_missing(out / "few.csv", KEY, product(sets, CANDIDATES), run)))


if __name__ == "__main__":
    main()
