"""scikit-activeml asks our regressor and our classifier, in its wrappers for scikit-learn's estimators.

    python -m experiments.interop.with_skactiveml

Labels that are missing are NaN, or None for classes. Regression is by greedy sampling, which goes by predictions, and
by a committee of three of our regressors; classes by uncertainty sampling.
"""

from __future__ import annotations

import numpy as np
from skactiveml.classifier import SklearnClassifier
from skactiveml.pool import GreedySamplingTarget, QueryByCommittee, UncertaintySampling
from skactiveml.regressor import SklearnRegressor

import explore
from experiments.interop.problem import POOL, QUICK, curve, rmse, sides


def regression(strategy, given) -> tuple[float, float]:
    """RMSE before and after nine labels; `given` makes what the strategy is asked with."""
    y = np.full(len(POOL), np.nan)
    y[[5, 20, 32]] = curve(POOL[[5, 20, 32]])
    model = SklearnRegressor(explore.BayesianRegressor(**QUICK))
    before = rmse(model.fit(POOL, y))
    for _ in range(9):
        chosen = strategy.query(POOL, y, **given())
        y[chosen] = curve(POOL[chosen])
    _, std = model.fit(POOL, y).predict(POOL, return_std=True)
    assert (std > 0).all()
    return before, rmse(model)


def committee() -> list[SklearnRegressor]:
    return [SklearnRegressor(explore.BayesianRegressor(**QUICK | {"random_state": i})) for i in range(3)]


def main() -> None:
    tried = {
        "greedy sampling": (
            GreedySamplingTarget(random_state=0),
            lambda: {"reg": SklearnRegressor(explore.BayesianRegressor(**QUICK))},
        ),
        "query by committee": (QueryByCommittee(random_state=0), lambda: {"ensemble": committee()}),
    }
    for name, (strategy, given) in tried.items():
        before, after = regression(strategy, given)
        print(f"scikit-activeml, {name}: RMSE {before:.3f} with 3 labels, {after:.3f} with 12")
        assert after < 0.7 * before

    y = np.full(len(POOL), None, dtype=object)
    y[[0, 59]] = sides(POOL[[0, 59]])
    model = SklearnClassifier(
        explore.BayesianClassifier(**QUICK), classes=["left", "right"], missing_label=None, random_state=0
    )
    strategy = UncertaintySampling(missing_label=None, random_state=0)
    for _ in range(6):
        chosen = strategy.query(POOL, y, clf=model)
        y[chosen] = sides(POOL[chosen])
    score = model.fit(POOL, y).score(POOL, sides(POOL))
    print(f"scikit-activeml, classes: {score:.1%} right with 8 labels")
    assert score >= 0.95


if __name__ == "__main__":
    main()
