"""Coverage of 90 % intervals where the noise grows with the input.

    python -m experiments.sampling.coverage

Ten data sets, the replicas of one fit: x uniform on [0, 3], y = sin(2 x) + N(0, s(x)^2) with s = 0.05 + 0.25 x, for a
number of training rows, and 3,000 test points. Coverage is counted in each third of x; a network with one noise covers
too much on the left and too little on the right. Posteriors and networks are those of `experiments.sampling.run`.
Writes results/coverage.csv, a line per number of rows, method and third; `error` is the standard error over data sets.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from experiments.driver import commit, experiment, merge
from experiments.sampling.run import covered, fitted
from explore.core.rng import Rng
from explore.learning.compare import Splits

SETS, TEST, ROWS = 10, 3000, (100, 500)
CHOSEN = ("five fits", "five fits, input noise", "mclmc, input noise")


def data(n: int, rng: Rng) -> Splits:
    """Return standardised training and test examples, the latter sorted by x."""
    x = 3 * rng.uniform(SETS, n + TEST, 1)
    x[:, n:] = x[:, n:].sort(1).values
    y = (2 * x).sin() + (0.05 + 0.25 * x) * rng.normal(*x.shape)
    x, y = ((t - t[:, :n].mean(1, keepdim=True)) / t[:, :n].std(1, keepdim=True) for t in (x, y))
    return Splits(x[:, :n], y[:, :n], x[:, n:], y[:, n:], y.new_ones(SETS, 1))


@experiment(__file__)
def main(out: Path) -> None:
    """Fit, and write a line per third."""
    for n in ROWS:
        parts = data(n, Rng(n))
        for method in CHOSEN:
            _, _, predictor = fitted(method, parts, parts.y[0].numpy())
            thirds = covered(predictor, parts.test_x, parts.test_y).unflatten(1, (3, -1)).mean((2, 3))
            rows = pd.DataFrame({
                "rows": n, "method": method, "third": range(1, 4), "coverage": thirds.mean(0),
                "error": thirds.std(0) / SETS**0.5, "commit": commit(),
            })  # fmt: skip
            print(rows.to_string(index=False), flush=True)
            merge(out / "coverage.csv", rows, ["rows", "method", "third"])


if __name__ == "__main__":
    main()
