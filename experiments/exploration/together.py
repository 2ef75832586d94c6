"""Do seeds of PPO that learn in the same batches reach the returns of stable-baselines3, and what do they cost?

    python -m experiments.exploration.together

Trains twenty seeds in the same batches, twenty one after another, and a single one, on one core. Prints and writes
results/together.csv: mean returns over the last tenth of the steps, as shares of the best; the p-value of a two-sided
Mann-Whitney test of the two twenties; and the time of the twenties, in times of the single one.
"""

from __future__ import annotations

from pathlib import Path

import click
import pandas as pd
from scipy.stats import mannwhitneyu

from experiments import driver, tables
from experiments.exploration.run import CONDITIONS, HERE, TASKS, scored, trained

CASES = (("report", "cart-pole", "none"), ("choose", "chain-20", "none"), ("choose", "chain-20", "last-layer"))
WAYS = {"together": (20, "--batched"), "apart": (20, "--no-batched"), "single": (1, "--no-batched")}


def compared(which: str, name: str, condition: str, runs: Path) -> dict[str, object]:
    """Return the line of a case."""
    task, finals, seconds = TASKS[which][name], {}, {}
    for way, (seeds, flag) in WAYS.items():
        folder = trained(f"{name}-{condition}-{way}", task, (*CONDITIONS[condition], flag), 0, seeds, 1, runs)
        each = [scored(own, task) for _, own in pd.read_csv(folder / "results.csv").groupby("seed")]
        finals[way], seconds[way] = [own["final"] for own in each], sum(own["seconds"] for own in each)
    return {
        "task": name, "condition": condition,
        **{way: pd.Series(finals[way]).mean() for way in ("together", "apart")},
        "p": mannwhitneyu(finals["together"], finals["apart"]).pvalue,
        **{f"{way}_cost": seconds[way] / seconds["single"] for way in ("together", "apart")},
    }  # fmt: skip


@click.command()
@click.option("--runs", type=driver.FOLDER, default=HERE / "runs", show_default=True)
def main(runs: Path) -> None:
    """Train what is left, and compare."""
    rows = pd.DataFrame([compared(*case, runs) for case in CASES])
    rows.to_csv(HERE / "results" / "together.csv", index=False, float_format="%.3g")
    lines = [[f"{value:.2f}" if isinstance(value, float) else value for value in row] for row in rows.to_numpy()]
    click.echo(tables.markdown(list(rows), lines))


if __name__ == "__main__":
    main()
