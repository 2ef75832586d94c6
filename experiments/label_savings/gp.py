"""A scientist's usual other choice: a Gaussian process by scikit-learn, with batches.

The kernel of `experiments.active_learning.gp`. Points of a batch are chosen one after another: to learn, the largest
variance given those before; to maximise, the largest expected improvement where those before had the predicted value
(the "kriging believer", Ginsbourger et al. 2010).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from scipy.stats import norm
from sklearn.gaussian_process import GaussianProcessRegressor

from experiments.active_learning import gp
from explore.learning.scaling import Standardiser


def standardised(values: np.ndarray, have: list[int]) -> tuple[Standardiser, np.ndarray]:
    """All values by mean and deviation of some, as the learners do."""
    scale = Standardiser.fit(torch.from_numpy(values[have]))
    return scale, scale.apply(torch.from_numpy(values), torch.float64).numpy()


def improvement(mean: np.ndarray, std: np.ndarray, best: float) -> np.ndarray:
    """E max(0, f - best) of Gaussian f (Mockus 1975)."""
    z = (mean - best) / std
    found: np.ndarray = (mean - best) * norm.cdf(z) + std * norm.pdf(z)
    return found


def batch(x: np.ndarray, y: np.ndarray, have: list[int], left: list[int], k: int, maximise: bool) -> list[int]:
    """K of the points `left`; x and y are standardised, and y is used at the points one has."""
    model, points, values, chosen = gp.fit(x[have], y[have], False), list(have), list(y[have]), list[int]()
    kernel = model.kernel_
    for _ in range(k):
        mean, std = model.predict(x[left], return_std=True)
        scores = improvement(mean, std, max(values)) if maximise else std
        scores[[left.index(i) for i in chosen]] = -np.inf
        at = int(np.argmax(scores))
        chosen.append(left[at])
        points, values = [*points, left[at]], [*values, float(mean[at])]
        model = GaussianProcessRegressor(kernel, optimizer=None).fit(x[points], values)
    return chosen


def campaign(
    x: np.ndarray, y: np.ndarray, start: np.ndarray, pool: np.ndarray, rounds: int, k: int, maximise: bool,
) -> Iterator[tuple[list[int], GaussianProcessRegressor]]:  # fmt: skip
    """Rounds of one trial: the points labelled so far, and what was fitted to them."""
    have, left = list(map(int, start)), list(map(int, pool))
    for step in range(rounds):
        inputs, targets = standardised(x, have)[1], standardised(y, have)[1][:, 0]
        yield list(have), gp.fit(inputs[have], targets[have], False)
        if step + 1 < rounds:
            new = batch(inputs, targets, have, left, k, maximise)
            have, left = have + new, [i for i in left if i not in set(new)]


def errors(
    x: np.ndarray, y: np.ndarray, start: np.ndarray, pool: np.ndarray, test: np.ndarray, rounds: int, k: int,
) -> list[float]:  # fmt: skip
    """Test RMSE after every fit."""
    found = []
    for have, model in campaign(x, y, start, pool, rounds, k, maximise=False):
        mean = model.predict(standardised(x, have)[1][test])[:, None]
        units = standardised(y, have)[0].undo(torch.from_numpy(mean)).numpy()
        found.append(float(np.sqrt(np.mean((units - y[test]) ** 2))))
    return found


def values(x: np.ndarray, y: np.ndarray, start: np.ndarray, rounds: int, k: int) -> list[float]:
    """The best value found after every round, with the aim of the largest one."""
    pool = np.setdiff1d(np.arange(len(x)), start)
    return [float(y[have].max()) for have, _ in campaign(x, y, start, pool, rounds, k, maximise=True)]
