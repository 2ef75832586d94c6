"""Gaussian-process anchor for `explore active`: the same splits, protocol and acquisition, by scikit-learn.

An isotropic or anisotropic squared-exponential kernel plus white noise, hyperparameters by maximum marginal likelihood
after every label; inputs and targets standardised on the labelled points.
"""

from __future__ import annotations

import warnings

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from explore.learning.scaling import Standardiser


def fit(x: np.ndarray, y: np.ndarray, ard: bool) -> GaussianProcessRegressor:
    scale = np.full(x.shape[1] if ard else 1, np.sqrt(x.shape[1]))
    kernel = ConstantKernel(1.0, (1e-2, 1e2)) * RBF(scale if ard else scale[0], (1e-1, 1e3)) + WhiteKernel(
        0.1, (1e-4, 1e1)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a length scale at its bound is an answer too
        return GaussianProcessRegressor(kernel, n_restarts_optimizer=0).fit(x, y)


def trial(
    x: np.ndarray, y: np.ndarray, labelled: np.ndarray, test: np.ndarray, pool: np.ndarray,
    rounds: int, ard: bool, rng: np.random.Generator | None,
) -> list[float]:  # fmt: skip
    """Test RMSE after each fit; random acquisition if a generator is given, else the largest variance."""
    have, left, errors = list(labelled), list(pool), []
    for step in range(rounds):
        inputs, targets = (Standardiser.fit(torch.from_numpy(values[have])) for values in (x, y))
        scores = inputs.apply(torch.from_numpy(x), torch.float64).numpy()
        model = fit(scores[have], targets.apply(torch.from_numpy(y[have]), torch.float64).numpy()[:, 0], ard)
        mean = targets.undo(torch.from_numpy(model.predict(scores[test])[:, None])).numpy()
        errors.append(float(np.sqrt(np.mean((mean - y[test]) ** 2))))
        if step + 1 < rounds:
            std = model.predict(scores[left], return_std=True)[1]
            have.append(left.pop(int(np.argmax(std)) if rng is None else int(rng.integers(len(left)))))
    return errors
