"""How many labels a campaign saves: simulated ones, with five labels a round, on tables whose labels are all known.

    python -m experiments.label_savings.run
    python -m experiments.label_savings.run --problems boston,hartmann-6 --methods noisy-kfac

To learn: the number of labels at which the test error has fallen to that of noisy K-FAC with random choice at 60. To
maximise: the number at which the best label is 95 % of the pool's best. Methods start from the same labels. Prints the
tables of the README and writes results/learn.csv and results/maximise.csv, a line a problem, method, arm, trial and
number of labels. What is there is not done again.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.datasets import make_friedman1

from experiments import driver, tables
from experiments.label_savings import gp
from explore import ActiveLearner, data, posterior
from explore.nets.likelihoods import Gaussian
from explore.nets.net import Net, mlp

SETS = ("boston", "concrete", "energy", "kin8nm", "naval", "power", "wine", "yacht")
METHODS = ("noisy-kfac", "ensemble", "gp")
INITIAL, K, LABELS, TRIALS, TEST = 10, 5, 60, 20, 100
KEY = ["problem", "method"]
SEED = 201


def rounds(labels: int) -> int:
    """Fits until there are so many labels."""
    return (labels - INITIAL) // K + 1


# Dixon and Szego (1978), of points in the unit cube.
HARTMANN_C = np.array([1.0, 1.2, 3.0, 3.2])
HARTMANN_3 = (
    np.array([[3, 10, 30], [0.1, 10, 35], [3, 10, 30], [0.1, 10, 35]]),
    1e-4 * np.array([[3689, 1170, 2673], [4699, 4387, 7470], [1091, 8732, 5547], [381, 5743, 8828]]),
)
HARTMANN_6 = (
    np.array([
        [10, 3, 17, 3.5, 1.7, 8], [0.05, 10, 17, 0.1, 8, 14], [3, 3.5, 1.7, 10, 17, 8], [17, 8, 0.05, 10, 0.1, 14],
    ]),
    1e-4 * np.array([
        [1312, 1696, 5569, 124, 8283, 5886], [2329, 4135, 8307, 3736, 1004, 9991],
        [2348, 1451, 3522, 2883, 3047, 6650], [4047, 8828, 8732, 5743, 1091, 381],
    ]),
)  # fmt: skip


def hartmann(a: np.ndarray, p: np.ndarray) -> Callable[[np.random.Generator], tuple[np.ndarray, np.ndarray]]:
    """Points and values."""

    def make(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        x = rng.random((1000, a.shape[1]))
        return x, np.exp(-(a * (x[:, None] - p) ** 2).sum(2)) @ HARTMANN_C

    return make


FUNCTIONS = {
    "hartmann-3": hartmann(*HARTMANN_3),
    "hartmann-6": hartmann(*HARTMANN_6),
    "friedman-1": lambda rng: make_friedman1(1000, random_state=int(rng.integers(2**31))),
}


PROBLEMS = (*SETS, *FUNCTIONS)


def learn(name: str, method: str) -> pd.DataFrame:
    """Test errors of every trial: lines of arm, trial, labels, rmse."""
    if method == "gp":
        found = data.load(name)
        split = data.pool_splits(len(found.x), TRIALS, INITIAL, TEST, SEED)
        starts = zip(split.labelled, split.pool, split.test, strict=True)
        curves = [gp.errors(found.x, found.y, *start, rounds(LABELS), K) for start in starts]
        return lines("max-variance", curves, "rmse")
    with tempfile.TemporaryDirectory() as out:
        result = driver.explore(
            "active", "--dataset", name, "--posterior", method, "--trials", str(TRIALS), "--seed", str(SEED),
            "--initial", str(INITIAL), "--acquire", str(K), "--rounds", str(rounds(LABELS)), "--test-size", str(TEST),
            "--out", out, "--device", "cpu", "--quiet",
        )  # fmt: skip
        return pd.read_csv(Path(result["run"]) / "results.csv")[["arm", "trial", "labels", "rmse"]]


def maximise(name: str, method: str) -> pd.DataFrame:
    """The best value of every trial: lines of arm, trial, labels, best."""
    x, y = FUNCTIONS[name](np.random.default_rng(SEED))
    y, start = y[:, None], data.pool_splits(len(x), TRIALS, INITIAL, 1, SEED).labelled
    if method == "gp":
        curves = [gp.values(x, y, start[t], rounds(LABELS), K) for t in range(TRIALS)]
        return lines("expected-improvement", curves, "best")
    arms = ["expected-improvement", "random"]
    net = Net(mlp(x.shape[1], (10,), 1))
    learner = ActiveLearner(posterior(method, net, Gaussian(), "small"), x, arms, trials=TRIALS, seed=SEED)
    first = np.tile(start, (len(arms), 1))
    learner.tell(first, y[first])
    for _ in range(rounds(LABELS) - 1):
        chosen = learner.ask(K).indices.numpy()
        learner.tell(chosen, y[chosen])
    best = np.maximum.accumulate(y[learner.labelled.numpy(), 0], axis=1)[:, INITIAL - 1 :: K]
    return pd.concat([lines(arm, best[i * TRIALS : (i + 1) * TRIALS], "best") for i, arm in enumerate(arms)])


def lines(arm: str, curves: object, what: str) -> pd.DataFrame:
    """A line a trial and round."""
    frame = pd.DataFrame(np.asarray(curves)).rename_axis("trial").reset_index().melt("trial", var_name="round")
    labels = INITIAL + K * frame["round"].astype(int)
    return pd.DataFrame({"arm": arm, "trial": frame.trial + 1, "labels": labels, what: frame.value})


def crossing(labels: np.ndarray, curve: np.ndarray, level: float) -> float:
    """Where a curve is first below a level, between two points by a straight line; inf: nowhere."""
    below = np.flatnonzero(curve <= level)
    if not len(below):
        return np.inf
    i = below[0]
    share = (curve[i - 1] - level) / (curve[i - 1] - curve[i]) if i else 0.0
    return float(labels[i] if i == 0 else labels[i - 1] + share * (labels[i] - labels[i - 1]))


def needed(rows: pd.DataFrame, what: str, problem: str) -> Iterator[list[str]]:
    """A line a method and rule: labels, and in per cent of random choice's with a bootstrap's deviation over trials."""
    arms = {name: part for name, part in rows.groupby(["method", "arm"], sort=False)}
    if (METHODS[0], "random") not in arms:
        return
    control = matrix(arms.pop((METHODS[0], "random")), what)
    boot = np.random.default_rng(0).integers(len(control), size=(500, len(control)))
    count, labels = at_end if what == "rmse" else to_best(problem), np.sort(rows.labels.unique())
    for (method, arm), part in arms.items():
        curves = [matrix(part, what), control]
        mine, theirs = count(labels, *curves)
        share = np.array([np.divide(*count(labels, *(c[i] for c in curves))) for i in boot])
        spread = f"± {100 * share.std():.0f} %" if np.isfinite(share).all() else "%"
        reached = np.isfinite(mine)
        yield [
            problem, str(method), str(arm), f"{mine:.1f}" if reached else f"more than {LABELS}", f"{theirs:.1f}",
            f"{100 * mine / theirs:.0f} {spread}" if reached else "more than 100 %",
        ]  # fmt: skip


def matrix(rows: pd.DataFrame, what: str) -> np.ndarray:
    """A row a trial, a column a number of labels."""
    return rows.pivot(index="trial", columns="labels", values=what).to_numpy()


def at_end(labels: np.ndarray, rule: np.ndarray, control: np.ndarray) -> tuple[float, float]:
    """Labels until the error is that of the control at the end, of a rule and of the control."""
    level = control.mean(0)[-1]
    return crossing(labels, rule.mean(0), level), float(labels[-1])


def to_best(problem: str) -> Callable[..., tuple[float, float]]:
    """Mean number of labels until a trial has 95 % of the pool's best; one that never has counts as a round more."""
    level = 0.95 * FUNCTIONS[problem](np.random.default_rng(SEED))[1].max()

    def count(labels: np.ndarray, *arms: np.ndarray) -> tuple[float, ...]:
        steps = np.append(labels, labels[-1] + K)
        return tuple(
            float(np.mean(steps[np.where((a >= level).any(1), (a >= level).argmax(1), len(labels))])) for a in arms
        )

    return count  # type: ignore[return-value]


def table(rows: pd.DataFrame, what: str) -> str:
    """Of all problems and methods."""
    every = (line for problem, part in rows.groupby("problem", sort=False) for line in needed(part, what, str(problem)))
    return tables.markdown(["", "method", "rule", "labels", "random", "of random's"], every)


@driver.experiment(__file__)
@driver.names("--problems", "problem", PROBLEMS)
@driver.names("--methods", "method", METHODS)
def main(problems: list[str], methods: list[str], out: Path) -> None:
    """Run what is missing, and print the tables."""
    for work, what in ((learn, "rmse"), (maximise, "best")):
        path, suited = out / f"{work.__name__}.csv", [name for name in problems if (name in SETS) == (what == "rmse")]
        if suited or path.exists():
            print(table(driver.run_missing(path, KEY, product(suited, methods), work), what))


if __name__ == "__main__":
    main()
