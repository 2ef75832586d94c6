"""Settings for a table of one's own with other posteriors, whose preset `default` the chosen ones are.

    python -m experiments.table_defaults.others choose    # candidates on validation parts of the splits 21 to 25
    python -m experiments.table_defaults.others report    # those chosen, on the test parts of the first 20 splits

On the five small sets, otherwise as experiments/table_defaults/run.py. Writes results/others/choose.csv and
results/others/report.csv, a line a set, candidate and split, and prints tables. What is there is not run again.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import click

from experiments.driver import experiment, names
from experiments.table_defaults.run import CHOSEN as FIRST, DEFAULT, NOISE, REPORTED, SMALL, TAGS, TUNED
from experiments.table_defaults.study import Candidate, Study
from explore.data import load

HERE = Path(__file__).parent
BATCHES: dict[str, Any] = {"epochs": 200, "batch_size": 32}
ADAM = BATCHES | {"samples": 2}
NATURAL: dict[str, Any] = {
    "epochs": 120, "batch_size": 32, "samples": 2, "warm_start": 0.7, "lr_schedule": "linear", "lr_decay": 0.0,
    "lr_decay_at": 0.8,
}  # fmt: skip
# Of SLANG, whose low rank is averaged slowly, and of a full covariance: the expectation over targets in place of drawn
# ones, since its F is estimated from fewer gradients than it has directions.
LOW_RANK: dict[str, Any] = {
    "preset": "plain", "epochs": 120, "batch_size": 64, "min_batches": 16, "samples": 2, "warm_start": 0.5, "lr": 0.3,
    "lr_schedule": "linear", "lr_decay": 0.0, "lr_decay_at": 0.7, "trust_region": 0.25, "initial_precision": 50.0,
}  # fmt: skip
FULL = DEFAULT | {"fisher": "exact"}


def grid(posterior: str, base: dict[str, Any], **settings: list[Any]) -> dict[str, Candidate]:
    """Every combination, named by what varies."""
    combined = [dict(zip(settings, values, strict=True)) for values in product(*settings.values())]
    return {", ".join([posterior, *(f"{k} {v}" for k, v in own.items())]): (posterior, base | own) for own in combined}


CANDIDATES: dict[str, Candidate] = (
    grid("bbb", ADAM, lr=[0.003, 0.01], initial_std=[0.001, 0.01], kl_weight=[1.0, 0.2])
    | grid("tensor-factorised", ADAM, lr=[0.003, 0.01], initial_std=[0.001, 0.01], kl_weight=[1.0, 0.2])
    | grid("whvi", ADAM, lr=[0.003, 0.01], initial_std=[0.001, 0.01], kl_weight=[1.0, 0.2])
    | grid("noisy-adam", NATURAL | {"beta": 0.01}, lr=[0.1, 0.01], trust_region=[None, 2.0], kl_weight=[1.0, 0.2])
    | grid(
        "vogn", NATURAL | {"prior_variance": 1.0, "kl_start": 1.0, "damping": 1e-4}, lr=[0.01, 0.001],
        beta2=[0.1, 0.01], kl_weight=[1.0, 0.2],
    )
    | grid("slang", LOW_RANK, rank=[1, 8], beta=[0.005, 0.01], prior_variance=[1.0, 2.0])
    | grid("full", FULL, beta=[0.01, 0.02], statistics_interval=[1, 5])
    | grid("full", FULL | {"beta": 0.02, "statistics_interval": 1}, prior_variance=[0.3, 1.0])
    | grid("mc-dropout", BATCHES, lr=[0.003, 0.01], rate=[0.01, 0.05, 0.1])
    | grid("map", BATCHES, lr=[0.003, 0.01], prior_variance=[0.1, 1.0])
)  # fmt: skip
# Those least below the best of their posterior over the sets that all its candidates were run on; of VOGN's two that
# are level, the one with Bayes' weight; of MAP's the one with the prior of the others, since a narrow one, better here,
# flattens a sine.
CHOSEN: dict[str, Candidate] = {"ensemble": FIRST["ensemble"]} | {
    name.partition(",")[0]: CANDIDATES[name]
    for name in (
        "bbb, lr 0.01, initial_std 0.001, kl_weight 0.2",
        "tensor-factorised, lr 0.01, initial_std 0.001, kl_weight 0.2",
        "whvi, lr 0.01, initial_std 0.001, kl_weight 1.0",
        "noisy-adam, lr 0.1, trust_region 2.0, kl_weight 0.2",
        "vogn, lr 0.01, beta2 0.1, kl_weight 1.0",
        "slang, rank 8, beta 0.005, prior_variance 2.0",
        "full, prior_variance 0.3",
        "mc-dropout, lr 0.01, rate 0.01",
        "map, lr 0.003, prior_variance 1.0",
    )
}
STUDY = Study(
    load, NOISE, 50, TAGS, {name: TUNED[name] for name in SMALL}, {name: REPORTED[name] for name in SMALL}, CANDIDATES,
    CHOSEN,
)  # fmt: skip


@experiment(__file__, "results/others")
@click.argument("part", type=click.Choice(["choose", "report"]))
@names("--datasets", "data set", SMALL, ())
def main(part: str, datasets: list[str], out: Path) -> None:
    """Run what is missing, and print the tables."""
    STUDY.run(part, datasets, out)


if __name__ == "__main__":
    main()
