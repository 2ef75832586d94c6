"""MC dropout: one network with random dropout in training and in prediction, as a source of uncertainty.

Gal, Ghahramani: Dropout as a Bayesian Approximation (2016). With dropout rate p, N examples and prior variance
eta, for each layer with W [I, O], whose last row is the bias:

    W = diag(z) M,  z_i = Bernoulli(1 - p) / (1 - p),  z = 1 for the bias
    minimise  -E[log p(y | x, W)] + E|W|^2 / (2 N eta)         with Adam, fresh z for every example

As E z_i^2 = 1 / (1 - p), the penalty is weight decay 1 / (N eta (1 - p)) on rows that can be dropped. A weight sample
uses one z per layer for all inputs. In convolutions, z drops entries of an example's kernel, the same at all positions.

There is no density, hence no KL and no gain; as acquisition, use `information-gain` or `max-variance`.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from explore.core.rng import Rng
from explore.core.shapes import Batch, Weights
from explore.execution import parallel
from explore.inference.updates.noisy_layers import Masked, dropout_mask
from explore.inference.updates.points import PointEstimate, PointState


@dataclass(frozen=True, kw_only=True)
class MCDropout(PointEstimate):
    """Monte Carlo dropout; the state stores the weights M before dropout."""

    epochs: int = 400
    rate: float = 0.05  # p

    ranges: ClassVar[dict[str, str]] = {"rate": "[0, 1)"}
    prior_error: ClassVar[str] = "weights vary in proportion to their size"

    @property
    def certain(self) -> bool:
        return self.rate == 0

    def noisy_layers(self, state: PointState, batch: Batch, rng: Rng) -> tuple[Masked, ...]:
        stream = parallel.apart(rng, int(state.common.step) + 1, 1)
        masks = [z.unsqueeze(1) for z in self._masks(batch.x.shape[0], batch.x.shape[1], stream)]
        return tuple(map(Masked, state.weights, masks))

    def sample(self, state: PointState, n: int, rng: Rng) -> tuple[Tensor, ...]:
        """Draw n weight samples diag(z) M with dropout masks z, so that dropped rows are zero."""
        masks = self._masks(len(state.weights[0]), n, rng)
        return self.layers(state, [z.unsqueeze(3) * w for w, z in zip(state.weights, masks, strict=True)])

    def _masks(self, replicas: int, n: int, rng: Rng) -> tuple[Float[Tensor, "R n I"], ...]:
        """Draw n masks z for each layer and replica."""
        shapes = zip(self.net.shapes, self.net.biases, strict=True)
        return tuple(dropout_mask((replicas, n), inputs, bias, self.rate, rng) for (inputs, _), bias in shapes)

    def penalised(self, weights: Weights) -> Weights:
        """Return E[z^2] M, the gradient of E|W|^2 / 2 with respect to M; the caller divides by N eta."""
        rows = []
        for w, bias in zip(weights, self.net.biases, strict=True):
            scaled = w / (1 - self.rate)
            rows.append(torch.cat([scaled[..., :-1, :], w[..., -1:, :]], -2) if bias else scaled)
        return tuple(rows)


PRESETS: dict[str, dict[str, object]] = {
    # experiments/table_defaults/others.py
    "default": {"epochs": 200, "batch_size": 32, "lr": 0.01, "rate": 0.01},
    # Chosen by the test error of active learning on Boston, on splits not used in published results.
    "small": {"rate": 0.1},
}

# The same rule as for the ensemble.
BY_ROWS = {10: {500: {"epochs": 200, "lr": 0.01, "batch_size": 10, "rate": 0.1}, 1000: PRESETS["default"]}}
