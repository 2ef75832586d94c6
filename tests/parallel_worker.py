"""One of the processes of tests/test_parallel.py: the results of the functions below."""

import os
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from explore import registry
from explore.core import tree
from explore.core.rng import Rng
from explore.core.shapes import Batch
from explore.execution import parallel
from explore.learning import optim
from explore.learning.fit import fit
from explore.nets.likelihoods import Categorical, Gaussian, Likelihood
from explore.nets.net import Net, mlp

EPOCHS, N = 2, 32  # 8 steps on batches of 8
COMMON: dict[str, Any] = {"epochs": EPOCHS, "batch_size": 8, "samples": 2}
NATURAL: dict[str, Any] = {"lr": 0.05, "beta": 0.1}
IMAGES = nn.Sequential(
    nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(27, 2), nn.ReLU(), nn.Linear(2, 3)
)
CASES: dict[str, dict[str, Any]] = {
    "noisy-kfac": NATURAL | {"adaptive_damping": True},
    "noisy-ekfac": NATURAL | {"basis_interval": 2, "reset_interval": 3, "reset_damped": True},
    "noisy-adam": NATURAL,
    "vogn": {"lr": 0.01, "beta2": 0.1},
    "vogn sub-batches": {"lr": 0.01, "beta2": 0.1, "sub_batches": 2},
    "slang": NATURAL | {"rank": 2},
    "slang dense": NATURAL | {"rank": 8, "batch_size": 16, "epochs": 4},
    "slang randomised": NATURAL | {"rank": 1, "batch_size": 16, "epochs": 4},
    "bbb": {"lr": 0.01},
    "whvi": {"lr": 0.01},
    "whvi flows": {"lr": 0.01, "flows": 2},
    "tensor-factorised": {"lr": 0.01},
    "full": NATURAL,
    "block-tridiagonal": NATURAL,
    "map": {},
    "mc-dropout": {"rate": 0.1},
    "ensemble": {},
}
WITHOUT_SAMPLES = ("map", "mc-dropout", "ensemble")


def trained(name: str, images: bool = False) -> dict[str, torch.Tensor]:
    """The state after the steps, by path."""
    rng = Rng(3, dtype=torch.float64)
    settings = COMMON | CASES[name]
    kind = name.split()[0]
    if kind in WITHOUT_SAMPLES:
        settings = {key: value for key, value in settings.items() if key != "samples"}
    likelihood: Likelihood
    if images:
        net, likelihood = Net(IMAGES), Categorical()
        x = rng.normal(2, N, 1, 5, 5)
        y = (3 * rng.uniform(2, N)).long()
    else:
        net, likelihood = Net(mlp(3, [20 if "randomised" in name else 5, 4], 2)), Gaussian()
        x = rng.normal(2, N, 3)
        y = x[..., :2].square() + 0.1 * rng.normal(2, N, 2)
    posterior = registry.posterior(kind, net, likelihood, **settings)
    for epoch in fit(posterior, x, y, rng.stream("fit")):
        state = epoch.state
    return dict(tree.leaves(state))


def every() -> dict[str, dict[str, torch.Tensor]]:
    """Of all cases."""
    with_images = ("noisy-kfac", "noisy-ekfac", "noisy-adam", "vogn", "slang")
    return {name: trained(name) for name in CASES} | {f"{name} images": trained(name, True) for name in with_images}


def optimised() -> dict[str, dict[str, torch.Tensor]]:
    """The states of optimisers after three steps, each process with half of the batch and the module within DDP."""
    found, world = {}, parallel.world()
    for kind in (optim.VOGN, optim.NoisyAdam, optim.NoisyKFAC, optim.NoisyEKFAC, optim.SLANG):
        rng = Rng(5, dtype=torch.float64)
        x, y = rng.normal(8, 3), (3 * rng.uniform(8)).long()
        module = nn.Sequential(nn.Linear(3, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, 3)).double()
        for p in module.parameters():
            p.data = rng.normal(*p.shape)
        net = Net(module, trained=True)
        exact: Any = {} if kind in (optim.VOGN, optim.SLANG) else {"fisher": "exact"}  # without drawn targets
        optimizer = kind(module, "categorical", 100, lr=0.01, samples=2, **exact)
        if world.processes == 1:
            posterior, rng = optimizer.posterior.with_settings(net=net), Rng(0, dtype=torch.float64)
            state, stream = posterior.init(100, 1, rng.stream("init")), rng.stream("fit")
            for _ in range(3):
                state, _ = posterior.update(state, Batch(x[None], y[None]), stream)
        else:
            model, part = DistributedDataParallel(module), parallel.local_part(slice(0, 8))
            for _ in range(3):
                optimizer.zero_grad()
                for _ in range(2):
                    with optimizer.sampled():
                        loss = F.cross_entropy(model(x[part]), y[part])
                    loss.backward()
                optimizer.step()
            state = optimizer.posterior_state
        found[optimizer.name] = dict(tree.leaves(state))
    return found


def work(rank: int, port: int, folder: str) -> None:
    """Be one of two processes, and save the results of the functions."""
    torch.set_num_threads(1)
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }  # fmt: skip
    with parallel.joined() as world:
        results = {"every": every(), "optimised": optimised()}
        torch.save(results, f"{folder}/{world.rank}.pt")
