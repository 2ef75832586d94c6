"""One round of `uci_speed` of Adam and those other libraries that are there: `python uci_speed_peers.py SECONDS`.

Prints a line of JSON a method and number of samples. It needs nothing but torch.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.functional import mse_loss

EXAMPLES, BATCH, BATCHES, EPOCHS = 455, 10, 46, 100
Step = Callable[[torch.Tensor, torch.Tensor], None]


def net() -> nn.Module:
    """The net of all."""
    return nn.Sequential(nn.Linear(13, 50), nn.ReLU(), nn.Linear(50, 1))


def adam(samples: int) -> Step:
    """Plain Adam."""
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()

    return step


def ivon(samples: int) -> Step:
    """Its README's loop."""
    model = net()
    optimizer: Any = importlib.import_module("ivon").IVON(model.parameters(), lr=0.1, ess=EXAMPLES)

    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        for _ in range(samples):
            with optimizer.sampled_params(train=True):
                optimizer.zero_grad()
                mse_loss(model(x), y).backward()
        optimizer.step()

    return step


def bayesian_torch(samples: int) -> Step:
    """Bayes by Backprop, by its conversion of a plain net, with Adam."""
    library: Any = importlib.import_module("bayesian_torch.models.dnn_to_bnn")
    model = net()
    prior = {"prior_mu": 0.0, "prior_sigma": 1.0, "posterior_mu_init": 0.0, "posterior_rho_init": -3.0}
    library.dnn_to_bnn(model, prior | {"type": "Reparameterization", "moped_enable": False, "moped_delta": 0.5})
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        optimizer.zero_grad()
        loss = sum(mse_loss(model(x), y) for _ in range(samples)) / samples
        (loss + library.get_kl_loss(model) / EXAMPLES).backward()
        optimizer.step()

    return step


def per_update(step: Step, seconds: float) -> float:
    """Processor seconds of an update."""
    x, y = torch.randn(BATCH, 13), torch.randn(BATCH, 1)
    for _ in range(10):
        start = time.process_time()
        step(x, y)
        once = time.process_time() - start
    count = min(max(2, int(seconds / once)), 10 * BATCHES)
    start = time.process_time()
    for _ in range(count):
        step(x, y)
    return (time.process_time() - start) / count


def laplace() -> float:
    """Processor seconds of a Kronecker-factored Laplace approximation of a trained net."""
    data = torch.utils.data.TensorDataset(torch.randn(EXAMPLES, 13), torch.randn(EXAMPLES, 1))
    approximation: Any = importlib.import_module("laplace").Laplace(
        net(), "regression", subset_of_weights="all", hessian_structure="kron"
    )
    start = time.process_time()
    approximation.fit(torch.utils.data.DataLoader(data, batch_size=BATCH))
    return time.process_time() - start


def say(method: str, samples: int, seconds: float) -> None:
    """A line."""
    print(json.dumps({"method": method, "samples": samples, "splits": 1, "seconds": seconds}), flush=True)


def main() -> None:
    """Measure what is there."""
    torch.set_num_threads(1)
    seconds = float(sys.argv[1])
    steps = {"torch Adam": (adam, "torch", (1,)), "ivon-opt": (ivon, "ivon", (10, 1)),
             "bayesian-torch": (bayesian_torch, "bayesian_torch", (10, 1))}  # fmt: skip
    trained = 0.0
    for method, (make, module, counts) in steps.items():
        for samples in counts if importlib.util.find_spec(module) else ():
            cost = per_update(make(samples), seconds) * BATCHES * EPOCHS
            trained = trained or cost
            say(method, samples, cost)
    if importlib.util.find_spec("laplace"):
        say("laplace-torch after Adam", 1, trained + laplace())


if __name__ == "__main__":
    main()
