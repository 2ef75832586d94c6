"""A sine with a gap between the data, fitted with the settings of a posterior in 3000 to 6000 updates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from explore.core.rng import Rng
from explore.inference.base import Predictive
from explore.inference.predict import Predictor
from explore.learning.fit import batches, last_epoch
from explore.nets.net import Net, mlp
from explore.nets.protocols import Likelihood

UPDATES = 3000, 6000


class Bands(NamedTuple):
    """Data and predictions in original units."""

    data_x: Float[Tensor, " n"]
    data_y: Float[Tensor, " n"]
    x: Float[Tensor, " P"]
    mean: Float[Tensor, " P"]
    epistemic: Float[Tensor, " P"]  # standard deviation over the weights
    total: Float[Tensor, " P"]  # standard deviation including the noise


def bands(posterior: Predictive, likelihood: Likelihood, hidden: Sequence[int], rng: Rng, samples: int) -> Bands:
    """Fit y = sin(2x) + N(0, 0.01) at 200 points in [-2, -0.7] and [0.7, 2]; predict on [-3, 3]."""
    stream = rng.stream("toy", 0)
    x = 0.7 + 1.3 * stream.uniform(1, 200, 1)
    x[:, ::2] *= -1
    y = (2 * x).sin() + 0.1 * stream.normal(1, 200, 1)
    grid = torch.linspace(-3, 3, 121, dtype=x.dtype, device=x.device)
    x_scale, y_mean, y_scale = x.std(), y.mean(), y.std()
    steps = len(batches(x.shape[1], posterior.batch_size, posterior.min_batches))
    least, most = (max(1, round(updates / steps)) for updates in UPDATES)
    # A sampler uses all data in every update; its settings determine the number of iterations.
    epochs = min(max(posterior.epochs, least), most) if steps > 1 else posterior.epochs
    net = Net(mlp(1, list(hidden), getattr(likelihood, "outputs_per_target", 1)))
    posterior = posterior.with_settings(net=net, likelihood=likelihood, epochs=epochs)
    state = last_epoch(posterior, x / x_scale, (y - y_mean) / y_scale, stream).state
    predictor = Predictor.sample(posterior, state, samples, stream)
    mean, variance, noise = (t.squeeze() for t in predictor.label_moments((grid / x_scale)[None, :, None]))
    total = (variance + noise).sqrt()
    values = (x.squeeze(), y.squeeze(), grid, mean * y_scale + y_mean, variance.sqrt() * y_scale, total * y_scale)
    return Bands(*(t.cpu() for t in values))
