"""Toy problems for plots, fitted with the settings of a posterior in 3000 to 6000 updates."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from sklearn.datasets import make_moons
from torch import Tensor

from explore.core.rng import Rng
from explore.inference.base import Predictive
from explore.inference.predict import Predictor
from explore.learning.fit import batches, last_epoch
from explore.nets.likelihoods import Bernoulli
from explore.nets.net import Net, mlp
from explore.nets.protocols import Likelihood

UPDATES = 3000, 6000


class Bands(NamedTuple):
    """Data and predictions of a regression with one input, in original units."""

    data_x: Float[Tensor, " n"]
    data_y: Float[Tensor, " n"]
    x: Float[Tensor, " P"]
    mean: Float[Tensor, " P"]
    epistemic: Float[Tensor, " P"]  # standard deviation over the weights
    total: Float[Tensor, " P"]  # standard deviation including the noise


class Boundary(NamedTuple):
    """Data and predictions of a classification with two inputs and two classes, in standard scores."""

    data_x: Float[Tensor, "n 2"]
    data_y: Float[Tensor, " n"]
    axis: Float[Tensor, " P"]  # grid values of both inputs
    probability: Float[Tensor, "P P"]  # of class 1; [second input, first input]


def bands(posterior: Predictive, likelihood: Likelihood, hidden: Sequence[int], rng: Rng, samples: int) -> Bands:
    """Fit a sine with a gap: y = sin(2x) + N(0, 0.01) at 200 points in [-2, -0.7] and [0.7, 2]; predict on [-3, 3]."""
    stream = rng.stream("toy", 0)
    x = 0.7 + 1.3 * stream.uniform(1, 200, 1)
    x[:, ::2] *= -1
    y = (2 * x).sin() + 0.1 * stream.normal(1, 200, 1)
    grid = torch.linspace(-3, 3, 121, dtype=x.dtype, device=x.device)
    x_scale, y_mean, y_scale = x.std(), y.mean(), y.std()
    predictor = _fitted(posterior, likelihood, hidden, x / x_scale, (y - y_mean) / y_scale, stream, samples)
    mean, variance, noise = (t.squeeze() for t in predictor.label_moments((grid / x_scale)[None, :, None]))
    total = (variance + noise).sqrt()
    values = (x.squeeze(), y.squeeze(), grid, mean * y_scale + y_mean, variance.sqrt() * y_scale, total * y_scale)
    return Bands(*(t.cpu() for t in values))


def boundary(posterior: Predictive, hidden: Sequence[int], rng: Rng, samples: int) -> Boundary:
    """Fit a classifier to two moons of 100 points each, and predict on a grid."""
    stream = rng.stream("toy", 1)
    points, classes = make_moons(200, noise=0.2, random_state=rng.seed % 2**32)
    x = stream.tensor((points - points.mean(0)) / points.std(0)).unsqueeze(0)
    y = stream.tensor(classes.astype(np.int64)).unsqueeze(0)
    axis = torch.linspace(-3, 3, 61, dtype=x.dtype, device=x.device)
    second, first = torch.meshgrid(axis, axis, indexing="ij")
    predictor = _fitted(posterior, Bernoulli(), hidden, x, y, stream, samples)
    grid = torch.stack([first, second], -1).flatten(0, 1).unsqueeze(0)
    p = predictor.moments(grid).mean[0, :, 1].view(len(axis), -1)
    return Boundary(*(t.cpu() for t in (x.squeeze(0), y.squeeze(0).to(x), axis, p)))


def _fitted(
    posterior: Predictive, likelihood: Likelihood, hidden: Sequence[int], x: Tensor, y: Tensor, rng: Rng, samples: int
) -> Predictor:
    steps = len(batches(x.shape[1], posterior.batch_size, posterior.min_batches))
    least, most = (max(1, round(updates / steps)) for updates in UPDATES)
    # A sampler uses all data in every update; its settings determine the number of iterations.
    epochs = min(max(posterior.epochs, least), most) if steps > 1 else posterior.epochs
    net = Net(mlp(x.shape[2], list(hidden), getattr(likelihood, "outputs_per_target", 1)))
    posterior = posterior.with_settings(net=net, likelihood=likelihood, epochs=epochs)
    return Predictor.sample(posterior, last_epoch(posterior, x, y, rng).state, samples, rng)
