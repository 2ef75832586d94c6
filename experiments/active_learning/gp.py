"""Gaussian-process anchor for `explore active`: the same splits, protocol and acquisition, by scikit-learn.

    python -m experiments.active_learning.gp --dataset boston --trials 40 --seed 1

An isotropic (or, with --ard, anisotropic) squared-exponential kernel plus white noise, hyperparameters by maximum
marginal likelihood after every label; inputs and targets standardised on the labelled points.
"""

from __future__ import annotations

import json
import time
import warnings
from pathlib import Path

import click
import numpy as np
import pandas as pd
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from experiments.shared import mean_se
from explore.data import load, pool_splits
from explore.scaling import Standardiser


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


@click.command()
@click.option("--dataset", default="boston", show_default=True)
@click.option("--trials", default=40, show_default=True)
@click.option("--rounds", default=10, show_default=True)
@click.option("--initial", default=20, show_default=True)
@click.option("--test-size", default=100, show_default=True)
@click.option("--seed", default=1, show_default=True)
@click.option("--ard", is_flag=True, help="One length scale a feature.")
@click.option("--out", type=click.Path(path_type=Path), help="Write the RMSE of every trial here, as JSON.")
def main(
    dataset: str, trials: int, rounds: int, initial: int, test_size: int, seed: int, ard: bool, out: Path | None
) -> None:
    """Run the anchor and print mean and standard error of the last RMSE of both arms."""
    data, start = load(dataset), time.perf_counter()
    split = pool_splits(len(data.x), trials, initial, test_size, seed)
    rmse = {
        arm: np.array([
            trial(
                data.x, data.y, split.labelled[t], split.test[t], split.pool[t], rounds, ard,
                np.random.default_rng([seed, t]) if arm == "random" else None,
            )
            for t in range(trials)
        ])
        for arm in ("active", "random")
    }  # fmt: skip
    seconds = time.perf_counter() - start
    last = {arm: errors[:, -1] for arm, errors in rmse.items()}
    last["difference"] = last["active"] - last["random"]
    for arm, errors in last.items():
        print(f"{arm:10s} {mean_se(pd.Series(errors))}")
    print(f"{seconds:.1f} s")
    if out:
        out.write_text(json.dumps({"rmse": {arm: e.tolist() for arm, e in rmse.items()}, "seconds": seconds}))


if __name__ == "__main__":
    main()
