"""Laplace approximations around trained networks, beside laplace-torch.

    experiments/benchmarks/peers_environment.sh FOLDER
    python -m experiments.trained.run --peers FOLDER/bin/python

Four networks, trained by Adam with one seed: 50 ReLU on Boston Housing (regression), 30 ReLU on scikit-learn's digits
(ten classes), the same without biases, and LeNet-5 on MNIST.

On the first three, every structure and subset is fitted by both libraries with the prior N(0, 0.1): the largest
relative difference of the standard deviations of the linearised outputs at test points, the log evidence, and the
seconds of each. All data are one batch, since laplace-torch averages the factors of batches in another way. It treats
biases as layers of their own, so "kfac" is the same method without biases only.

On MNIST, approximations with the prior by the evidence: error, log-likelihood and calibration error (15 bins) on the
test images, by the probit and by 100 samples. Writes results/equal.csv and results/mnist.csv.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, cast

import click
import numpy as np
import pandas as pd
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import explore
from experiments.driver import commit, experiment, merge
from explore.core.shapes import Batch
from explore.data import load
from explore.images import load as load_images
from explore.inference.predict import linearised, probit
from explore.learning.compare import BINS
from explore.nets import zoo
from explore.nets.likelihoods import Gaussian

HERE = Path(__file__).parent
STRUCTURES, SUBSETS = ("kfac", "diagonal", "full"), ("last", "all")
VARIANCE, NOISE = 0.1, 0.3
POINTS = 100
AROUND: list[tuple[Any, Any]] = [
    ("kfac", "last"), ("full", "last"), ("diagonal", "all"), ("kfac", "all"), ("ekfac", "all")
]  # fmt: skip


def trained(module: nn.Module, x: Tensor, y: Tensor, epochs: int, lr: float, batch: int) -> nn.Module:
    """Train by Adam with a cosine schedule and the weight decay of the prior N(0, 1)."""
    torch.manual_seed(0)
    optimiser = torch.optim.Adam(module.parameters(), lr=lr)
    steps = epochs * -(-len(x) // batch)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(epochs):
        for part in torch.randperm(len(x)).split(batch):
            optimiser.zero_grad()
            out = module(x[part])
            loss = (out - y[part]).square().mean() / (2 * NOISE**2) if y.dim() == 2 else cross_entropy(out, y[part])
            (loss + sum(p.square().sum() for p in module.parameters()) / (2 * len(x))).backward()
            optimiser.step()
            schedule.step()
    return module.requires_grad_(True).eval()


def problems() -> dict[str, tuple[nn.Module, Tensor, Tensor, Tensor]]:
    """The modules that both libraries approximate, with training data and test points."""
    boston, digits = load("boston"), load_digits()
    x = torch.as_tensor((boston.x - boston.x.mean(0)) / boston.x.std(0)).float()
    y = torch.as_tensor((boston.y - boston.y.mean(0)) / boston.y.std(0)).float()
    torch.manual_seed(0)
    images, classes = torch.as_tensor(digits.data / 16).float(), torch.as_tensor(digits.target).long()
    small = trained(explore.mlp(13, [50], 1), x[POINTS:], y[POINTS:], 200, 0.01, 32)
    wide = trained(explore.mlp(64, [30], 10), images[POINTS:600], classes[POINTS:600], 30, 0.01, 32)
    layers = nn.Linear(64, 30, bias=False), nn.ReLU(), nn.Linear(30, 10, bias=False)
    plain = trained(nn.Sequential(*layers), images[POINTS:600], classes[POINTS:600], 30, 0.01, 32)
    return {
        "boston": (small, x[POINTS:], y[POINTS:], x[:POINTS]),
        "digits": (wide, images[POINTS:600], classes[POINTS:600], images[:POINTS]),
        "digits, no bias": (plain, images[POINTS:600], classes[POINTS:600], images[:POINTS]),
    }


def ours(module: nn.Module, x: Tensor, y: Tensor, points: Tensor, structure: Any, subset: Any) -> dict[str, Any]:
    """Moments, evidence and seconds of this library."""
    begin = time.process_time()
    likelihood = Gaussian(noise_std=NOISE) if y.dim() == 2 else "categorical"
    model = explore.laplace(
        module, x, y, likelihood, structure=structure, layers=subset, prior_variance=VARIANCE, weight_sharing="expand"
    )
    fitted = time.process_time()
    posterior: Any = model.posterior
    moments = linearised(posterior, model.state, points.unsqueeze(0))
    predicted = time.process_time()
    batch = Batch(x.unsqueeze(0), y.unsqueeze(0))
    evidence = float(posterior.log_evidence(model.state, [batch]))
    return {
        "mean": moments.mean[0], "variance": moments.variance[0], "evidence": evidence, "fit": fitted - begin,
        "predict": predicted - fitted,
    }  # fmt: skip


def theirs(peers: str, module: nn.Module, x: Tensor, y: Tensor, points: Tensor, *options: Any) -> Any:
    """The same of laplace-torch, in its environment."""
    with tempfile.TemporaryDirectory() as folder:
        network, out = Path(folder) / "network.pt", Path(folder) / "out.npz"
        torch.save({"module": module, "x": x, "y": y, "points": points, "batch": 0}, network)
        worker = [peers, str(HERE / "laplace_torch.py"), str(network), str(out), *map(str, options)]
        subprocess.run(worker, check=True)
        with np.load(out) as found:
            return {name: torch.as_tensor(found[name]) for name in found.files}


def equal(peers: str) -> pd.DataFrame:
    """A line per network, structure and subset."""
    lines = []
    ours(*problems()["digits"], "kfac", "all")  # the first call imports modules
    for name, (module, x, y, points) in problems().items():
        for structure in STRUCTURES:
            for subset in SUBSETS:
                if structure == "full" and subset == "all" and name != "boston":
                    continue  # 2,260 weights times ten outputs: laplace-torch takes minutes
                mine = ours(module, x, y, points, structure, subset)
                other = theirs(peers, module, x, y, points, structure, subset, VARIANCE, NOISE if y.dim() == 2 else 0)
                ratio = (mine["variance"] / other["variance"]).sqrt() - 1
                lines.append({
                    "network": name, "structure": structure, "layers": subset, "deviation": float(ratio.abs().max()),
                    "mean": float((mine["mean"] - other["mean"]).abs().max()),
                    "evidence": mine["evidence"], "evidence_theirs": float(other["evidence"]),
                    "fit": mine["fit"], "fit_theirs": float(other["fit"]),
                    "predict": mine["predict"], "predict_theirs": float(other["predict"]),
                })  # fmt: skip
                print(lines[-1], flush=True)
    return pd.DataFrame(lines)


def scores(p: Tensor, y: Tensor) -> dict[str, float]:
    """Error, log-likelihood and expected calibration error."""
    confidence, chosen = p.max(1)
    right = (chosen == y).double()
    bins = (confidence * BINS).long().clamp_max(BINS - 1)
    gaps = [(confidence[bins == b].double().mean() - right[bins == b].mean()).abs() * (bins == b).double().mean()
            for b in range(BINS) if bool((bins == b).any())]  # fmt: skip
    return {
        "error": 1 - float(right.mean()), "log_likelihood": float(p[range(len(y)), y].double().log().mean()),
        "calibration_error": float(torch.stack(gaps).sum()),
    }  # fmt: skip


def mnist(epochs: int, count: int) -> pd.DataFrame:
    """LeNet-5 on MNIST: the network itself, and approximations around it."""
    images = load_images("mnist")
    raw, y, test, test_y = (torch.as_tensor(np.asarray(a)) for a in (images.x, images.y, images.test_x, images.test_y))
    mean, scale = raw.float().mean(), raw.float().std()
    x, points = ((part.float() - mean) / scale for part in (raw[:count], test))
    y, test_y = y[:count].long(), test_y.long()
    torch.manual_seed(0)
    module = trained(zoo.build("lenet5", (1, 28, 28), 10, {}), x, y, epochs, 1e-3, 128)
    with torch.no_grad():
        own = torch.cat([module(part).softmax(1) for part in points.split(1000)])
    lines = [{"method": "the network itself", "predictive": "", "fit": 0.0, **scores(own, test_y)}]
    for structure, layers in AROUND:
        begin = time.process_time()
        model = explore.laplace(module, x, y, structure=structure, layers=layers)
        fit, posterior = time.process_time() - begin, cast(Any, model.posterior)
        print(structure, layers, "prior variance", model.state.eta.tolist(), "fit", round(fit, 1), flush=True)
        for predictive in ("probit", "sampled"):
            if predictive == "probit":
                p = torch.cat([probit(posterior, model.state, part[None])[0] for part in points.split(500)])
            else:
                p = model.probabilities(points)[0]
            lines.append(
                {"method": f"{structure}, {layers}", "predictive": predictive, "fit": fit, **scores(p, test_y)}
            )
            print(lines[-1], flush=True)
    return pd.DataFrame(lines)


@experiment(__file__)
@click.option("--peers", help="The python of laplace-torch's environment; without it, only MNIST.")
@click.option("--epochs", default=5, help="Of LeNet-5.")
@click.option("--images", default=60_000, help="Training images of LeNet-5; 0: leave it out.")
def main(peers: str | None, epochs: int, images: int, out: Path) -> None:
    """Compare, and write results."""
    if peers:
        merge(out / "equal.csv", equal(peers).assign(commit=commit()), ["network", "structure", "layers"])
    if images:
        merge(out / "mnist.csv", mnist(epochs, images).assign(commit=commit()), ["method", "predictive"])


if __name__ == "__main__":
    main()
