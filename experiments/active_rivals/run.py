"""Active learning with the recommended posterior, beside rivals, on eight sets and three seeds.

    python -m experiments.active_rivals.run
    python -m experiments.active_rivals.run --sets boston --methods recommended,ensemble

Twenty labels, nine more one by one, 100 points to test on; 20 trials of each of the seeds 11, 12 and 13, which were
named before anything ran. All methods start from the same labels. `recommended` has no options at all. Writes
results/trials.csv, a line per set, method, rule, seed, arm and trial: `area`, the mean RMSE over all rounds, and
`last`, that of the last one; and results/table.md. What is there is not run again, and what was stopped goes on.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pandas as pd

from experiments import driver
from experiments.active_default.run import OTHERS, trials
from experiments.driver import FOLDER, Key, experiment, names, run_missing, write
from experiments.tables import markdown, mean_se, sections

HERE = Path(__file__).parent
SETS = ("boston", *OTHERS)
SEEDS, TRIALS = (11, 12, 13), 20
ARD = ["--posterior", "gp", "--likelihood", "gaussian", "-p", "draws=1", "-p", "hyperprior=false"]
METHODS: dict[str, tuple[list[str], tuple[str, ...]]] = {  # options, and rules beside random choice
    "recommended": ([], ("variance-reduction", "core-set")),
    "noisy-kfac": (["--posterior", "noisy-kfac"], ("variance-reduction",)),
    "ensemble": (["--posterior", "ensemble", "--likelihood", "heteroscedastic"], ("variance-reduction",)),
    "ARD process": (ARD, ("variance-reduction", "epig", "max-variance")),
}
KEY = ["set", "method", "rule", "seed"]


def run(runs: Path, name: str, method: str, rule: str, seed: int) -> pd.DataFrame:
    """The trials of a cell; those that label at random run beside the first rule."""
    options, rules = METHODS[method]
    control = "--control" if rule == rules[0] else "--no-control"
    asked = ["--dataset", name, *options, "--acquisition", rule, "--trials", str(TRIALS), "--seed", str(seed), control]
    return trials(driver.active(runs, f"{name}-{method}-{rule}-{seed}".replace(" ", "-"), *asked))


def compared(difference: pd.Series) -> str:
    mean, error = map(float, difference.agg(["mean", "sem"]))
    return f"{mean_se(difference, '.3g')} ({mean / error:+.1f})"


def table(rows: pd.DataFrame) -> str:
    """By set: areas, and their differences from those of the recommended posterior, paired by trial."""
    made = {}
    for name, own in rows.groupby("set", sort=False):
        area = own.pivot_table(index=["seed", "trial"], columns=["method", "arm"], values="area", sort=False)
        lines = []
        for method, arm in [*area.columns]:
            found, best = area[method, arm], area["recommended", "variance-reduction"]
            apart = [compared((found - area[method, "random"]).dropna()) if arm != "random" else ""]
            apart += [compared((best - found).dropna()) if (method, arm) != ("recommended", "variance-reduction") else ""]
            lines.append([method, arm, mean_se(found, ".4g"), f"{found.median():.4g}", *apart])
        made[str(name)] = markdown(["", "rule", "area", "median", "− random", "recommended − this"], lines)
    return sections(made)


@experiment(__file__)
@names("--sets", "set", SETS)
@names("--methods", "method", METHODS)
@click.option("--runs", type=FOLDER, default=HERE / "runs", help="For run folders.")
def main(sets: list[str], methods: list[str], runs: Path, out: Path) -> None:
    """Run what is missing."""

    def cells() -> Iterator[Key]:
        for seed in SEEDS:
            for name in sets:
                for method in methods:
                    yield from ((name, method, rule, seed) for rule in METHODS[method][1])

    frame = run_missing(out / "trials.csv", KEY, cells(), lambda *cell: run(runs, *cell), ["area", "last"])
    write(out / "table.md", table(frame))


if __name__ == "__main__":
    main()
