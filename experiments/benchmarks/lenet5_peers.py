"""A fit of `lenet5` with Adam or another library: `python lenet5_peers.py METHOD LR SEED DATA OUT`.

Prints seconds as JSON. It needs nothing but torch, NumPy and that library.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

BATCH, SAMPLES, WARM = 128, 10, 256


def lenet5() -> nn.Module:
    """As `explore.nets.zoo.lenet5` for 28 x 28."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip


def falling(optimizer: torch.optim.Optimizer, count: int) -> Any:
    """A schedule in a straight line to 0 over the batches of so many images, as our presets have it."""
    steps = -(-count // BATCH)
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)


def adam(model: nn.Module, x: torch.Tensor, y: torch.Tensor, lr: float) -> None:
    """An epoch."""
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    schedule = falling(optimizer, len(x))
    for part in torch.randperm(len(x)).split(BATCH):
        optimizer.zero_grad()
        cross_entropy(model(x[part]), y[part]).backward()
        optimizer.step()
        schedule.step()


def ivon(model: nn.Module, x: torch.Tensor, y: torch.Tensor, lr: float) -> Any:
    """An epoch of its README's loop; the optimiser, which has the posterior."""
    optimizer: Any = importlib.import_module("ivon").IVON(model.parameters(), lr=lr, ess=len(x))
    schedule = falling(optimizer, len(x))
    for part in torch.randperm(len(x)).split(BATCH):
        with optimizer.sampled_params(train=True):
            optimizer.zero_grad()
            cross_entropy(model(x[part]), y[part]).backward()
        optimizer.step()
        schedule.step()
    return optimizer


def laplace(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
    """A Kronecker-factored approximation of the last layer, its default, with the prior by its marginal likelihood."""
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=BATCH)
    found: Any = importlib.import_module("laplace").Laplace(model, "classification")
    found.fit(loader)
    found.optimize_prior_precision(method="marglik")
    return found


def fit(method: str, model: nn.Module, x: torch.Tensor, y: torch.Tensor, lr: float) -> Any:
    """An epoch, and what predicts after it, where that is not the model alone."""
    if method == "IVON":
        return ivon(model, x, y, lr)
    adam(model, x, y, lr)
    return laplace(model, x, y) if method == "Laplace" else None


def probabilities(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Of all images."""
    with torch.no_grad():
        return torch.cat([model(part).softmax(1) for part in x.split(1000)])


def main() -> None:
    """Fit, predict, say."""
    torch.set_num_threads(1)
    method, lr, seed, data, out = sys.argv[1:]
    with np.load(data) as arrays:
        raw, y, test = (torch.from_numpy(arrays[key]) for key in ("x", "y", "test_x"))
    mean, scale = raw.float().mean(), raw.float().std()
    x, test = ((part.float() - mean) / scale for part in (raw, test))
    fit(method, lenet5(), x[:WARM], y[:WARM], float(lr))  # libraries import parts of themselves when they are used
    torch.manual_seed(int(seed))
    model = lenet5()
    start = time.process_time()
    found = fit(method, model, x, y, float(lr))
    seconds = time.process_time() - start
    if method == "IVON":
        p = torch.zeros(len(test), 10)
        for _ in range(SAMPLES):
            with found.sampled_params():
                p += probabilities(model, test) / SAMPLES
    elif method == "Laplace":
        p = torch.cat([found(part, link_approx="probit") for part in test.split(1000)]).detach()
    else:
        p = probabilities(model, test)
    np.save(out, p.numpy())
    print(json.dumps({"seconds": seconds}))


if __name__ == "__main__":
    main()
