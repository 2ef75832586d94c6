"""Baselines that have no posterior, fitted on the splits of a comparison: histogram gradient boosting."""

from typing import Any

import joblib
import numpy as np
import torch
from torch import Tensor

from explore.learning.compare import Splits

BOOSTING = "boosting"
LEVELS = tuple((k + 0.5) / 10 for k in range(10))  # midpoints, for the integral of the pinball loss
DEVIATIONS = 2.0728  # between the quantiles .15 and .85 of a Gaussian
LEAST = 1e-3  # smallest deviation, in those of the targets


def boosting(splits: Splits, seed: int, jobs: int) -> dict[str, Tensor]:
    """Return test scores of scikit-learn's gradient boosting by tag, one per split [R], in original units.

    Models of the mean and of ten quantiles have up to 1000 trees, and stop when a tenth of the examples, held out, is
    no longer predicted better. test/crps is twice the mean pinball loss of the sorted quantiles. test/log_likelihood
    and test/coverage_95 are those of a Gaussian with the predicted mean; the distance of two quantiles gives its
    deviation.
    """
    assert splits.scale is not None, "boosting is a baseline for numeric targets"
    x, y, test_x, test_y = (part.double().cpu().numpy() for part in splits[:4])
    tasks = [(r, o) for r in range(len(x)) for o in range(y.shape[2])]
    scores = joblib.Parallel(n_jobs=jobs)(
        joblib.delayed(_scores)(x[r], y[r, :, o], test_x[r], test_y[r, :, o], seed) for r, o in tasks
    )
    scale = splits.scale.double().cpu()
    each = {name: torch.tensor([one[name] for one in scores]).view(scale.shape) for name in scores[0]}
    return {
        "test/rmse": (each["square"] * scale.square()).mean(1).sqrt(),
        "test/log_likelihood": (each["log_density"] - scale.log()).sum(1),
        "test/crps": (each["crps"] * scale).mean(1),
        "test/coverage_95": each["covered"].mean(1),
    }


def _scores(x: np.ndarray, y: np.ndarray, test_x: np.ndarray, test_y: np.ndarray, seed: int) -> dict[str, float]:
    """Return scores for one standardised target [n], averaged over test points."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    def predicted(**loss: Any) -> np.ndarray:
        model = HistGradientBoostingRegressor(max_iter=1000, early_stopping=True, random_state=seed, **loss)
        return model.fit(x, y).predict(test_x)

    mean = predicted()
    quantiles = np.sort([predicted(loss="quantile", quantile=level) for level in LEVELS], 0)  # they may cross
    deviation = np.maximum((quantiles[-2] - quantiles[1]) / DEVIATIONS, LEAST)
    above, levels, z = test_y - quantiles, np.array(LEVELS)[:, None], (test_y - mean) / deviation
    return {
        "square": np.square(test_y - mean).mean(),
        "log_density": np.mean(-0.5 * np.square(z) - np.log(deviation) - 0.5 * np.log(2 * np.pi)),
        "crps": 2 * np.maximum(levels * above, (levels - 1) * above).mean(),
        "covered": np.mean(np.abs(z) <= 1.959964),
    }
