"""Gradient boosting beside posteriors."""

import numpy as np
import pytest
import torch
from scipy import stats

from explore.learning.baselines import boosting
from explore.learning.compare import Splits

R, N, P, UNITS = 2, 400, 300, torch.tensor([[1.0, 10.0], [2.0, 0.5]])  # UNITS: of two targets, on each split


@pytest.fixture(scope="module")
def splits():
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (R, N + P, 2))
    y = np.stack([np.sign(x[..., 0]), x[..., 1] > 0], -1) + rng.normal(0, [0.3, 0.1], (R, N + P, 2))
    inputs, targets = torch.from_numpy(x), torch.from_numpy(y)
    return Splits(inputs[:, :N], targets[:, :N], inputs[:, N:], targets[:, N:], UNITS)


def test_scores_come_near_those_of_the_truth(splits):
    found = {tag: value.tolist() for tag, value in boosting(splits, seed=0, jobs=1).items()}
    for r, units in enumerate(UNITS.numpy()):
        noise = units * [0.3, 0.1]
        assert 0.95 < found["test/rmse"][r] / np.sqrt(np.mean(noise**2)) < 1.3
        best = -stats.norm(0, noise).entropy().sum()
        assert best - 0.8 < found["test/log_likelihood"][r] < best + 0.1
        # A Gaussian's CRPS under its own distribution is sigma / sqrt(pi).
        assert 0.95 < found["test/crps"][r] / (np.mean(noise) / np.sqrt(np.pi)) < 1.3
        assert 0.75 < found["test/coverage_95"][r] < 0.99
