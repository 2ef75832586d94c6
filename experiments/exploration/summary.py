"""Interquartile means and probabilities of improvement of report.csv, by rliable (Agarwal et al. 2021).

    experiments/exploration/environment.sh FOLDER
    FOLDER/bin/python experiments/exploration/summary.py

Writes results/summary.md: for each task, the interquartile mean over seeds of the final return (a share of the best)
with its interval, the median of the steps before the first success, and how many seeds end at 0.9 or more; the
probability that a run of the default ends above one of another condition; and the difference of interquartile means to
no bonus, paired by seed. Intervals are 95 % bootstrap intervals, 90 % for the difference, and Bonferroni's for the
probabilities: 1 - 0.05 / (number of conditions).
"""

from pathlib import Path

import numpy as np
import pandas as pd
from rliable import library, metrics  # type: ignore[import-not-found,import-untyped,unused-ignore]
from scipy.stats import trim_mean

RESULTS, DEFAULT, REPEATS = Path(__file__).parent / "results", "last-layer", 2000


def _estimates(scores, measure, size):
    """The estimate and its interval by name."""
    settings = {"reps": REPEATS, "confidence_interval_size": size, "random_state": np.random.RandomState(0)}
    values, ends = library.get_interval_estimates(scores, measure, **settings)
    return {name: (float(np.ravel(value)[0]), *np.ravel(ends[name])) for name, value in values.items()}


def _means(scores):
    return _estimates(scores, lambda m: np.array([metrics.aggregate_iqm(m)]), 0.95)


def _improved(scores):
    others = [name for name in scores if name != DEFAULT]
    pairs = {name: (scores[DEFAULT], scores[name]) for name in others}
    return _estimates(pairs, metrics.probability_of_improvement, 1 - 0.05 / max(len(others), 1)) if others else {}


def _difference(rows, name):
    """The interquartile mean of paired differences to no bonus, and its 90 % interval."""
    paired = rows.pivot(index="seed", columns="condition", values="final")[[name, "none"]].dropna()
    values = (paired[name] - paired["none"]).to_numpy()
    draws = np.random.default_rng(0).choice(values, (REPEATS, len(values)))
    return trim_mean(values, 0.25), *np.quantile(trim_mean(draws, 0.25, axis=1), [0.05, 0.95])


def _text(three):
    return "{:.2f} [{:.2f}, {:.2f}]".format(*three)


def main():
    every = pd.read_csv(RESULTS / "report.csv")
    head = "| task | condition | seeds | final return | at 0.9 | first success | better than this | beside none |"
    lines = [head, "|" + "---|" * 8]
    for task, rows in every.groupby("task", sort=False):
        scores = {name: own.final.to_numpy()[:, None] for name, own in rows.groupby("condition", sort=False)}
        means, improved = _means(scores), _improved(scores) if DEFAULT in scores else {}
        for name, own in rows.groupby("condition", sort=False):
            first = own["first"].fillna(np.inf).median()
            cells = [
                task, name, len(own), _text(means[name]), (own.final >= 0.9).sum(),
                "never" if np.isinf(first) else f"{first:.0f}", _text(improved[name]) if name in improved else "",
                _text(_difference(rows, name)) if name != "none" and "none" in scores else "",
            ]  # fmt: skip
            lines.append("| " + " | ".join(map(str, cells)) + " |")
    (RESULTS / "summary.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
