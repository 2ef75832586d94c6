"""One method of another library on the splits of a set: `python methods.py SPLITS.npz METHOD SETTINGS`.

SPLITS.npz has x [R, n, D], y [R, n], test_x [R, P, D], test_y [R, P] in standard scores of each training part, and the
scale [R] of the targets. Prints a line of JSON a split: RMSE, log-likelihood and coverage in original units, and
processor seconds of fit and prediction. Every prediction is a mixture of K Gaussians at each point. The net is 50 ReLU,
batches are of 32, steps fall to zero along half a cosine. It needs torch, scikit-learn and the method's library.
"""

from __future__ import annotations

import importlib
import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

BATCH, SAMPLES = 32, 100


class Prediction(NamedTuple):
    """Means and standard deviations [K, P] of the Gaussians at P points; a deviation may be the same for all."""

    mean: np.ndarray
    std: np.ndarray


def net(features: int) -> nn.Module:
    """The net of all."""
    return nn.Sequential(nn.Linear(features, 50), nn.ReLU(), nn.Linear(50, 1))


def batches(n: int, epochs: int) -> Iterator[Tensor]:
    """Shuffled indices."""
    for _ in range(epochs):
        yield from torch.randperm(n).tensor_split(max(1, round(n / BATCH)))


def nll(out: Tensor, y: Tensor, log_std: Tensor) -> Tensor:
    """The mean negative log-likelihood, up to a constant."""
    return 0.5 * ((y - out.squeeze(-1)) / log_std.exp()).square().mean() + log_std


def trained(model: nn.Module, x: Tensor, y: Tensor, epochs: int, penalty: Callable[[], Any], lr: float) -> Tensor:
    """Adam on the likelihood, whose noise is learnt too, and a penalty a batch; the noise's deviation."""
    log_std = torch.zeros((), requires_grad=True)
    optimizer = torch.optim.Adam([*model.parameters(), log_std], lr=lr, fused=True)
    steps = epochs * max(1, round(len(x) / BATCH))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for part in batches(len(x), epochs):
        optimizer.zero_grad()
        (nll(model(x[part]), y[part], log_std) + penalty()).backward()
        optimizer.step()
        schedule.step()
    return log_std.detach().exp()


def prior_penalty(model: nn.Module, n: int) -> Callable[[], Tensor]:
    """Minus the log-density of N(0, 1), an example."""
    return lambda: torch.stack([p.square().sum() for p in model.parameters()]).sum() / (2 * n)


def torch_ensemble(x: Tensor, y: Tensor, points: Tensor, epochs: int, lr: float) -> Prediction:
    """Five nets with noise of their own, one after the other."""
    means, stds = [], []
    for _ in range(5):
        model = net(x.shape[1])
        stds.append(trained(model, x, y, epochs, prior_penalty(model, len(x)), lr).expand(len(points)))
        means.append(model(points).detach().squeeze(-1))
    return Prediction(torch.stack(means).numpy(), torch.stack(stds).numpy())


def laplace_torch(x: Tensor, y: Tensor, points: Tensor, epochs: int, lr: float) -> Prediction:
    """Kronecker-factored, all weights, linearised; prior and noise by the marginal likelihood."""
    model = net(x.shape[1])
    std = trained(model, x, y, epochs, prior_penalty(model, len(x)), lr)
    data = torch.utils.data.TensorDataset(x, y.unsqueeze(-1))
    approximation: Any = importlib.import_module("laplace").Laplace(
        model, "regression", subset_of_weights="all", hessian_structure="kron", sigma_noise=float(std)
    )
    approximation.fit(torch.utils.data.DataLoader(data, batch_size=256))
    log_prior, log_std = torch.zeros(1, requires_grad=True), std.log().reshape(1).requires_grad_()
    optimizer = torch.optim.Adam([log_prior, log_std], lr=0.05)
    for _ in range(200):
        optimizer.zero_grad()
        (-approximation.log_marginal_likelihood(log_prior.exp(), log_std.exp())).backward()
        optimizer.step()
    found = [approximation(part) for part in points.split(50)]  # its cost grows with the square of a call's points
    mean, variance = (torch.cat([f[i].reshape(-1) for f in found]).detach() for i in (0, 1))
    total = variance + approximation.sigma_noise.detach().square()
    return Prediction(mean[None].numpy(), total.sqrt()[None].numpy())


def ivon(x: Tensor, y: Tensor, points: Tensor, epochs: int, lr: float, hess_init: float) -> Prediction:
    """Its optimiser for the weights, Adam for the noise."""
    model, log_std = net(x.shape[1]), torch.zeros((), requires_grad=True)
    settings = {"ess": len(x), "weight_decay": 1 / len(x), "hess_init": hess_init, "beta2": 0.9999}
    optimizer: Any = importlib.import_module("ivon").IVON(model.parameters(), lr=lr, **settings)
    noise = torch.optim.Adam([log_std], lr=0.01)
    steps = epochs * max(1, round(len(x) / BATCH))
    schedules = [torch.optim.lr_scheduler.CosineAnnealingLR(o, steps) for o in (optimizer, noise)]
    for part in batches(len(x), epochs):
        with optimizer.sampled_params(train=True):
            optimizer.zero_grad()
            noise.zero_grad()
            nll(model(x[part]), y[part], log_std).backward()
        optimizer.step()
        noise.step()
        for schedule in schedules:
            schedule.step()
    return sampled(model, points, log_std.exp(), optimizer.sampled_params)


def bayesian_torch(x: Tensor, y: Tensor, points: Tensor, epochs: int, lr: float) -> Prediction:
    """Bayes by Backprop; the KL of all weights, divided by the number of examples."""
    layers: Any = importlib.import_module("bayesian_torch.layers")
    own = {"prior_mean": 0.0, "prior_variance": 1.0, "posterior_mu_init": 0.0, "posterior_rho_init": -3.0}
    variational: list[Any] = [layers.LinearReparameterization(*s, **own) for s in ((x.shape[1], 50), (50, 1))]
    model = nn.Sequential(variational[0], nn.ReLU(), variational[1])
    for layer in variational:
        layer.dnn_to_bnn_flag = True  # its output is then a tensor alone

    def penalty() -> Any:
        return sum(
            layer.kl_div(mu, torch.log1p(rho.exp()), torch.zeros(()), torch.ones(())) * mu.numel()
            for layer in variational
            for mu, rho in ((layer.mu_weight, layer.rho_weight), (layer.mu_bias, layer.rho_bias))
        ) / len(x)

    return sampled(model, points, trained(model, x, y, epochs, penalty, lr), nullcontext)


def sampled(model: nn.Module, points: Tensor, std: Tensor, drawn: Callable[[], Any]) -> Prediction:
    """The nets of a model that draws its weights anew for each call."""
    means = []
    with torch.no_grad():
        for _ in range(SAMPLES):
            with drawn():
                means.append(model(points).squeeze(-1))
    return Prediction(torch.stack(means).numpy(), std.detach().reshape(1, 1).numpy())


def gaussian_process(x: Tensor, y: Tensor, points: Tensor) -> Prediction:
    """A length-scale a feature, and noise, by the marginal likelihood."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    kernel = ConstantKernel() * RBF(np.ones(x.shape[1])) + WhiteKernel(noise_level_bounds=(1e-6, 1e1))
    model = GaussianProcessRegressor(kernel, random_state=0).fit(x.double().numpy(), y.double().numpy())
    mean, std = model.predict(points.double().numpy(), return_std=True)
    return Prediction(mean[None], std[None])


def gradient_boosting(x: Tensor, y: Tensor, points: Tensor, trees: int, lr: float, least: float) -> Prediction:
    """The mean, and half the distance of the quantiles at one deviation below and above, which may cross: the least."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    def predicted(**loss: Any) -> np.ndarray:
        model = HistGradientBoostingRegressor(max_iter=trees, learning_rate=lr, random_state=0, **loss)
        found: np.ndarray = model.fit(x.numpy(), y.numpy()).predict(points.numpy())
        return found

    low, high = (predicted(loss="quantile", quantile=q) for q in (0.1587, 0.8413))
    return Prediction(predicted()[None], np.maximum((high - low) / 2, least)[None])


METHODS: dict[str, Callable[..., Prediction]] = {
    "torch ensemble": torch_ensemble, "laplace-torch": laplace_torch, "ivon-opt": ivon,
    "bayesian-torch": bayesian_torch, "Gaussian process": gaussian_process, "gradient boosting": gradient_boosting,
}  # fmt: skip


def scores(found: Prediction, y: np.ndarray, scale: float) -> dict[str, float]:
    """In original units; the coverage is that of a Gaussian with the predictive mean and total variance."""
    density = -0.5 * np.square((y - found.mean) / found.std) - np.log(found.std) - 0.5 * math.log(2 * math.pi)
    mean = found.mean.mean(0)
    total = np.sqrt(np.square(found.std).mean(0) + found.mean.var(0))
    return {
        "rmse": scale * float(np.sqrt(np.square(y - mean).mean())),
        "log_likelihood": float((np.logaddexp.reduce(density) - math.log(len(density))).mean()) - math.log(scale),
        "coverage_95": float((np.abs(y - mean) <= 1.959964 * total).mean()),
    }


def main() -> None:
    """Every split in turn."""
    torch.set_num_threads(1)
    path, method, settings = sys.argv[1:]
    splits = {name: torch.from_numpy(value) for name, value in np.load(path).items()}
    for r in range(len(splits["x"])):
        torch.manual_seed(r)
        begin = time.process_time()
        found = METHODS[method](splits["x"][r], splits["y"][r], splits["test_x"][r], **json.loads(settings))
        cpu = time.process_time() - begin
        own = scores(found, splits["test_y"][r].numpy(), float(splits["scale"][r]))
        print(json.dumps({"split": r + 1, **own, "cpu": cpu}), flush=True)


if __name__ == "__main__":
    main()
