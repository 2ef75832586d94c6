"""modAL asks our regressor and our classifier.

    python -m experiments.interop.with_modal

modAL has strategies for classes and leaves regression to one's own: the largest standard deviation here.
"""

from __future__ import annotations

import numpy as np
from modAL.models import ActiveLearner
from modAL.uncertainty import uncertainty_sampling

import explore
from experiments.interop.problem import POOL, QUICK, curve, rmse, sides


def largest_deviation(model, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    _, std = model.predict(x, return_std=True)
    query = np.argmax(std, keepdims=True)
    return query, x[query]


def main() -> None:
    start = POOL[[5, 20, 32]]
    learner = ActiveLearner(explore.BayesianRegressor(**QUICK), largest_deviation, start, curve(start))
    before = rmse(learner)
    pool = np.delete(POOL, [5, 20, 32], 0)
    for _ in range(9):
        chosen, point = learner.query(pool)
        learner.teach(point, curve(point))
        pool = np.delete(pool, chosen, 0)  # modAL leaves that to the caller
    after = rmse(learner)
    print(f"modAL, regression: RMSE {before:.3f} with 3 labels, {after:.3f} with 12")
    assert after < 0.7 * before

    start = POOL[[0, 59]]
    classifier = ActiveLearner(explore.BayesianClassifier(**QUICK), uncertainty_sampling, start, sides(start))
    pool = POOL[1:-1]
    for _ in range(6):
        chosen, point = classifier.query(pool)
        classifier.teach(point, sides(point))
        pool = np.delete(pool, chosen, 0)
    score = classifier.score(POOL, sides(POOL))
    print(f"modAL, classes: {score:.1%} right with 8 labels")
    assert score >= 0.95


if __name__ == "__main__":
    main()
