"""Whether every posterior's default settings train on all nine regression sets.

    python -m experiments.compare.stability

Runs `explore compare` on each set with the default settings of every posterior but for the number of epochs: as many
as make about `--updates` updates with batches of 10, and at least one. `full` gets 10 hidden units, the others 50. A
fit has diverged where it failed, or where its test RMSE is above that of predicting the mean of the targets. Writes
stability.csv (a line a set, posterior and split) and stability.md beside this file; posteriors that are not asked for
keep their lines.
"""

from __future__ import annotations

from pathlib import Path

import click
import pandas as pd

from experiments import driver, tables
from explore import registry
from explore.data import load, uci_splits

HERE = Path(__file__).parent
SETS = ("boston", "concrete", "energy", "kin8nm", "naval", "power", "protein", "wine", "yacht")


def compare(dataset: str, names: list[str], hidden: int, splits: int, epochs: int, out: str) -> pd.DataFrame:
    """Results of the posteriors on a set, a line a posterior and split."""
    result = driver.explore(
        "compare", "--dataset", dataset, "--posterior", ",".join(names), "--hidden", str(hidden),
        "--likelihood", "gaussian", "--splits", str(splits), "--epochs", str(epochs), "--out", out,
    )  # fmt: skip
    return pd.read_csv(Path(result["run"]) / "results.csv")


@click.command()
@click.option("--updates", default=3000, show_default=True)
@click.option("--splits", default=2, show_default=True)
@click.option("--posteriors", help="Separated by commas.  [default: all but hmc]")
@click.option("--out", default="runs", show_default=True, help="Folder of the run folders.")
def main(updates: int, splits: int, posteriors: str | None, out: str) -> None:
    """Run all sets, and write the table."""
    asked = posteriors.split(",") if posteriors else [name for name in registry.names("posteriors") if name != "hmc"]
    groups = [([name for name in asked if name != "full"], 50), ([name for name in asked if name == "full"], 10)]
    for dataset in SETS:
        y = load(dataset).y
        spread = [
            float(((y[test] - y[train].mean(0)) ** 2).mean() ** 0.5) for train, test in uci_splits(len(y), splits)
        ]
        epochs = max(1, round(updates / (0.9 * len(y) / 10)))
        for some, hidden in groups:
            if not some:
                continue
            rows = compare(dataset, some, hidden, splits, epochs, out)
            rows.insert(0, "dataset", dataset)
            rows["relative_rmse"] = rows["rmse"] / rows["split"].map(lambda s, of=spread: of[s - 1])
            rows = rows[["dataset", "posterior", "split", "epochs", "rmse", "relative_rmse", "alive", "seconds"]]
            print(rows.to_string(), flush=True)
            table = driver.merge(HERE / "stability.csv", rows, ["dataset", "posterior"], None)
    table["shown"] = table["relative_rmse"].map("{:.2f}".format).where(table["alive"], "failed")
    worst = table.sort_values("relative_rmse").groupby(["posterior", "dataset"])["shown"].last().unstack()
    text = tables.markdown(["posterior", *worst.columns], worst.reset_index().values.tolist())
    (HERE / "stability.md").write_text(text, encoding="utf-8")
    diverged = table[~table["alive"] | ~(table["relative_rmse"] < 1)]
    print(f"{len(table)} fits, {len(diverged)} diverged", diverged.to_string() if len(diverged) else "", sep="\n")


if __name__ == "__main__":
    main()
