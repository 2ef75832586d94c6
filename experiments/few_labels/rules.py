"""Acquisition rules with the recommended posterior, on the twelve tables that choose.

    python -m experiments.few_labels.rules --tables FOLDER

20 labels, nine more one by one; 20 trials, from the same labels for all rules; 1,500 rows of a table. `gaussian` in
a name means one noise for all inputs. Writes results/rules.csv, a line per set, rule and trial: `area`, the mean RMSE
over all rounds, and `last`, that of the last one; and results/rules.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pandas as pd

from experiments import driver
from experiments.active_default.run import trials
from experiments.driver import FOLDER, Key, experiment, names, run_missing, write
from experiments.few_labels import data
from experiments.tables import markdown

HERE = Path(__file__).parent
ROWS, TEST = 1500, {"diabetes": 150}  # rows of a table; test points, 300 of the others
RULES = ("random", "variance-reduction", "bait", "bait gaussian", "epig", "epig gaussian")


def run(runs: Path, tables: Path, name: str, method: str) -> pd.DataFrame:
    """The trials of a rule."""
    file = runs / f"{name}.csv"
    if not file.exists():
        x, y = (part[:ROWS] for part in data.table(name, tables))
        frame = pd.DataFrame(x, columns=[f"x{i}" for i in range(x.shape[1])]).assign(target=y[:, 0])
        runs.mkdir(parents=True, exist_ok=True)
        frame.to_csv(file, index=False)
    rule, _, noise = method.partition(" ")
    asked = ["--data", str(file), "--target", "target", "--acquisition", rule, "--trials", "20", "--seed", "5"]
    asked += ["--test-size", str(TEST.get(name, 300)), "--no-control"]
    asked += ["--posterior", "gp", "--likelihood", noise] if noise else []
    return trials(driver.active(runs, f"{name}-{method}".replace(" ", "-"), *asked)).drop(columns="arm")


def table(rows: pd.DataFrame) -> str:
    """Areas less those of random labels: in standard errors by set, and in percent over all sets."""
    area = rows.pivot_table(index=["set", "trial"], columns="method", values="area", sort=False)
    apart = area.drop(columns="random").sub(area["random"], axis=0).groupby("set", sort=False)
    errors, share = apart.mean() / apart.sem(), 100 * apart.mean().div(area["random"].groupby("set").mean(), axis=0)
    lines = [[name, *(f"{value:.1f}" for value in own)] for name, own in errors.iterrows()]
    lines.append(["mean, % of the area", *(f"{value:.1f}" for value in share.mean())])
    return markdown(["", *errors.columns], lines)


@experiment(__file__)
@click.option("--tables", type=FOLDER, required=True, help="Has the tables.")
@names("--methods", "method", [rule.replace(" ", "-") for rule in RULES])
@click.option("--runs", type=FOLDER, default=HERE / "runs", help="For run folders.")
def main(tables: Path, methods: list[str], runs: Path, out: Path) -> None:
    """Run what is missing."""

    def cells() -> Iterator[Key]:
        for method in methods:
            yield from ((name, method.replace("-gaussian", " gaussian")) for name in data.CHOOSING)

    frame = run_missing(
        out / "rules.csv", ["set", "method"], cells(), lambda *cell: run(runs, tables, *cell), ["area", "last"]
    )
    write(out / "rules.md", table(frame))


if __name__ == "__main__":
    main()
