"""Predictions of bde for one split: `python -I bde_worker.py SPLIT.npz OUT.npz`.

SPLIT.npz has x [n, D], y [n] and test_x [P, D], standardised. OUT.npz gets mean and std, each [members, samples, P],
and the CPU seconds of compilation, fit and prediction. Settings are those of bde's README for regression. Without
`-I`, `import bde` would find the file bde.py in this folder.
"""

from __future__ import annotations

import importlib
import sys
import time
from typing import Any

import numpy as np

SETTINGS: dict[str, Any] = {
    "hidden_layers": [16, 16], "n_members": 8, "seed": 0, "epochs": 200, "validation_split": 0.15, "lr": 1e-3,
    "weight_decay": 1e-4, "warmup_steps": 5000, "n_samples": 2000, "n_thinning": 2,
    "patience": 10,  # None would discard the trained networks
}  # fmt: skip
CHUNK = 500  # test points per prediction, to bound memory


def main() -> None:
    """Fit, predict, write."""
    bde: Any = importlib.import_module("bde")
    loss: Any = importlib.import_module("bde.loss")
    path, out = sys.argv[1:]
    with np.load(path) as split:
        x, y, test_x = split["x"], split["y"], split["test_x"]
    begin = time.process_time()
    regressor = bde.BdeRegressor(**SETTINGS, loss=loss.GaussianNLL())
    regressor.fit(x=x, y=y)
    chunks = [test_x[start : start + CHUNK] for start in range(0, len(test_x), CHUNK)]
    raw = np.concatenate([np.asarray(regressor.predict(chunk, raw=True)) for chunk in chunks], 2)
    mean, std = raw[..., 0], np.logaddexp(0, raw[..., 1]) + 1e-6  # as in BdePredictor._regression_mu_sigma
    np.savez(out, mean=mean, std=std, cpu=time.process_time() - begin)


if __name__ == "__main__":
    main()
