"""Active learning by bmdal_reg: `python lcmd_worker.py TRIALS.npz OUT.npz`.

TRIALS.npz has x [n, D], y [n], and for each trial indices of the labelled points (initial), those to test on (test)
and the others (pool), [T, ...]; batch and rounds are numbers. OUT.npz gets rmse [T, rounds], in the units of y. The
network, its training, and LCMD with sketched gradients are those of bmdal_reg's examples.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import numpy as np
import torch

SKETCH = 512
np.Inf = np.inf  # type: ignore[attr-defined]  # bmdal_reg uses the name that NumPy 2 removed


def features(model: Any, x: np.ndarray) -> Any:
    """Inputs of the network, standardised as in its training."""
    data = importlib.import_module("bmdal_reg.bmdal.feature_data")
    scaled = (torch.as_tensor(x, dtype=torch.float32) - model.means_) / (model.stds_ + 1e-30)
    return data.TensorFeatureData(5 * torch.tanh(0.2 * scaled))


def trial(x: np.ndarray, y: np.ndarray, split: list[np.ndarray], batch: int, rounds: int) -> list[float]:
    """Label a batch in each round but the last; return the RMSE of each round."""
    nets: Any = importlib.import_module("bmdal_reg.nn_interface")
    select: Any = importlib.import_module("bmdal_reg.bmdal.algorithms").select_batch
    known, test, pool = split
    errors = []
    for _ in range(rounds):
        model = nets.NNRegressor(device="cpu")
        model.fit(x[known], y[known])
        errors.append(float(np.sqrt(np.mean((model.predict(x[test]).ravel() - y[test]) ** 2))))
        single = model.model_.get_single_model(0)
        data = {"train": features(model, x[known]), "pool": features(model, x[pool])}
        chosen, _ = select(
            batch, [single], data, None, "grad", [("rp", [SKETCH])], "lcmd", sel_with_train=True
        )  # fmt: skip
        chosen = chosen.numpy()
        known, pool = np.append(known, pool[chosen]), np.delete(pool, chosen)
    return errors


def main() -> None:
    """Run all trials and write their errors."""
    torch.set_num_threads(1)
    path, out = sys.argv[1:]
    with np.load(path) as given:
        x, y, batch, rounds = given["x"], given["y"], int(given["batch"]), int(given["rounds"])
        splits = list(zip(given["initial"], given["test"], given["pool"], strict=True))
    np.savez(out, rmse=np.array([trial(x, y, list(split), batch, rounds) for split in splits]))


if __name__ == "__main__":
    main()
