"""MC dropout: one net, whose uncertainty is that of dropping its inputs at random, in training and afterwards.

Gal, Ghahramani: Dropout as a Bayesian Approximation (2016). For each layer with W [I, O], the bias its last row:

    W = diag(z) M,  z_i = Bernoulli(1 - p) / (1 - p),  z = 1 for the bias
    minimise  -E[log p(y | x, W)] + E|W|^2 / (2 N eta)         with Adam, fresh z for every example

With E z_i^2 = 1 / (1 - p) the penalty is weight decay 1 / (N eta (1 - p)) on the rows that can be dropped, up to a
constant in M the KL of their paper. A sample is one z a layer, the same for every input. In a convolution z drops
entries of the kernel, at all positions alike.

There is no density, hence no KL and no gain: choose by `information-gain` or `max-variance`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from explore.posteriors import adam
from explore.posteriors.base import Common, Predictive, advance, common, settle, with_norms
from explore.rng import Rng
from explore.shapes import Batch, Info, Taps, Weights


class MCDropoutState(NamedTuple):
    """The state of `MCDropout`."""

    common: Common
    weights: Weights  # M; S = 1
    moving: adam.Moving


@dataclass(frozen=True, kw_only=True)
class MCDropout(Predictive):
    """Monte Carlo dropout."""

    epochs: int = 400
    rate: float = 0.05  # p
    lr: float = 0.01  # of Adam at the start; it falls to 0 along half a cosine
    prior_variance: float = 1.0  # eta

    ranges: ClassVar[dict[str, str]] = {"rate": "[0, 1)"}

    @property
    def certain(self) -> bool:
        return self.rate == 0

    def init(self, n_data: float, replicas: int, rng: Rng) -> MCDropoutState:
        weights = self.net.glorot(replicas, rng, 1)
        return MCDropoutState(common(self, n_data, replicas, rng), weights, adam.start(weights))

    def update(
        self, state: MCDropoutState, batch: Batch, rng: Rng, progress: float = 0.0
    ) -> tuple[MCDropoutState, Info]:
        shared, y = state.common, batch.y.unsqueeze(1)
        n_data, step = float(shared.n_data), int(shared.step) + 1
        noise = self.likelihood.expected(shared.noise)
        masks = self._masks(batch.x.shape[0], batch.x.shape[1], rng)
        layers = tuple(_Masked(w, z) for w, z in zip(state.weights, masks, strict=True))
        out, pullback = self.net.train_forward(with_norms(layers, shared, 1), batch.x, samples=1)
        taps = pullback(self.likelihood.score(noise, out, y))

        masked = tuple(layer.taps(t) for layer, t in zip(layers, taps, strict=True))
        gradients = adam.loss_gradients(masked, self._penalised(state.weights), 1 / (n_data * self.prior_variance))
        weights, moving = adam.descend(state.weights, gradients, state.moving, self.lr * adam.cosine(progress), step)
        shared = advance(shared, self, out, y, taps.norms, 1.0)
        info = {"nll": -self.likelihood.log_prob(noise, out, y).mean((1, 2))}
        return settle(MCDropoutState(shared, weights, moving), state), info

    def sample(self, state: MCDropoutState, n: int, rng: Rng) -> Weights:
        """Weights with rows of zeros."""
        masks = self._masks(len(state.weights[0]), n, rng)
        return with_norms([z.unsqueeze(3) * w for w, z in zip(state.weights, masks, strict=True)], state.common, n)

    def _masks(self, replicas: int, n: int, rng: Rng) -> tuple[Float[Tensor, "R n I"], ...]:
        """z: n of them a layer and replica."""
        masks = []
        for (inputs, _), bias in zip(self.net.shapes, self.net.biases, strict=True):
            z = (rng.uniform(replicas, n, inputs) >= self.rate).to(rng.dtype) / (1 - self.rate)
            if bias:
                z[..., -1] = 1
            masks.append(z)
        return tuple(masks)

    def _penalised(self, weights: Weights) -> Weights:
        """E[z^2] M."""
        rows = []
        for w, bias in zip(weights, self.net.biases, strict=True):
            scaled = w / (1 - self.rate)
            rows.append(torch.cat([scaled[..., :-1, :], w[..., -1:, :]], -2) if bias else scaled)
        return tuple(rows)


class _Masked:
    """A layer with a mask of its own for every example."""

    def __init__(self, weights: Tensor, mask: Float[Tensor, "R B I"]):
        self.weights, self.mask = weights, mask[:, None, :, None]  # [R, 1, B, 1, I]

    def __call__(self, a: Tensor) -> Tensor:
        """[R, 1, B, T, I] -> [R, 1, B, T, O]."""
        return ((a * self.mask).flatten(2, 3) @ self.weights).unflatten(2, a.shape[2:4])

    def taps(self, taps: Taps) -> Taps:
        """With the inputs that the weights saw."""
        return Taps(lambda part: taps.part(part).inputs * self.mask[:, :, part], taps.grads)


PRESETS: dict[str, dict[str, object]] = {
    "default": {},
    # Chosen by the test error of active learning on Boston, on other splits than the published ones.
    "small": {"rate": 0.1},
}
