"""Simulation-based calibration of mclmc: are the ranks of true functions among the draws uniform?

    python -m experiments.sampling.ranks

Talts et al.: Validating Bayesian Inference Algorithms with Simulation-Based Calibration (2018). 300 simulations, the
replicas of one fit: weights from the prior N(0, 1), 30 inputs from N(0, 1), and targets with a known deviation of 0.3.
The rank of the true output at a new point among 199 draws, spread over 8 chains, falls into one of 20 bins. Models: a
linear network of 4 weights, whose posterior is Gaussian, and 2 tanh units (7 weights). `p` is that of the chi-square
test; `spread` is the deviation of the ranks over that of uniform ones: below 1, draws are too wide. Energy variances
from coarse to fine show the bias of finite steps; 0 stands for NUTS, which corrects its steps. Writes
results/ranks.csv; what is there is not run again.
"""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy import stats
from torch import nn

from experiments.driver import experiment, run_missing
from explore import registry
from explore.core.rng import Rng
from explore.learning.fit import last_epoch
from explore.nets.likelihoods import Gaussian
from explore.nets.net import Net

HERE = Path(__file__).parent
SIMULATIONS, ROWS, BINS, DRAWS, NOISE = 300, 30, 20, 199, 0.3
MODELS: dict[str, tuple[int, nn.Module]] = {
    "linear": (3, nn.Linear(3, 1)),
    "two units": (1, nn.Sequential(nn.Linear(1, 2), nn.Tanh(), nn.Linear(2, 1))),
}
VARIANCES = (0.1, 0.01, 0.001, 0.0)
SETTINGS: dict[str, Any] = {"start": 100, "warmup": 100, "epochs": 1200, "thinning": 10, "chains": 8, "start_batch": 10}
NUTS: dict[str, Any] = {"warmup": 50, "epochs": 250, "thinning": 5, "chains": 4}


def simulated(name: str, variance: float) -> dict[str, Any]:
    """The ranks' statistics of one model, sampled with one energy variance."""
    features, module = MODELS[name]
    net, rng = Net(module), Rng(0, dtype=torch.float64)
    truth = tuple(rng.normal(SIMULATIONS, 1, i, o) for i, o in net.shapes)
    x = rng.normal(SIMULATIONS, ROWS + 1, features)
    f = net.output(truth, x).squeeze(1)
    y = f + NOISE * rng.normal(*f.shape)
    name, more = ("mclmc", SETTINGS | {"energy_variance": variance}) if variance else ("hmc", NUTS)
    posterior = registry.posterior(name, net, Gaussian(noise_std=NOISE), "plain", **more)
    begin = time.process_time()
    epoch = last_epoch(posterior, x[:, :ROWS], y[:, :ROWS], rng.stream("fit"))
    every = net.output(posterior.sample(epoch.state, 10**9, rng), x[:, ROWS:])[:, :, 0, 0]
    chosen = torch.linspace(0, every.shape[1] - 1, DRAWS).long()
    ranks = (every[:, chosen] < f[:, ROWS:, 0]).sum(1).numpy()
    counts = np.bincount(ranks * BINS // (DRAWS + 1), minlength=BINS)
    return {
        "p": stats.chisquare(counts).pvalue, "spread": ranks.std() / np.sqrt(((DRAWS + 1) ** 2 - 1) / 12),
        "r_hat": float(epoch.info["r_hat"].median()), "cpu": time.process_time() - begin,
    }  # fmt: skip


@experiment(__file__)
def main(out: Path) -> None:
    """Simulate what is missing, and write a line per model and energy variance."""
    cells = itertools.product(MODELS, VARIANCES)
    key, report = ["model", "energy_variance"], ["p", "spread", "r_hat", "cpu"]
    run_missing(out / "ranks.csv", key, cells, lambda *cell: pd.DataFrame([simulated(*cell)]), report)


if __name__ == "__main__":
    main()
