"""SWAG: a Gaussian with a low-rank plus diagonal covariance, from the moments of the path of SGD.

Maddox, Garipov, Izmailov, Vetrov, Wilson: A Simple Baseline for Bayesian Uncertainty in Deep Learning (2019),
Algorithm 1, without its pass that recomputes batch-norm statistics for each sample:

    v <- m v + E[d -log p(y|x,w) / dw] + delta w,    w <- w - alpha v     SGD with momentum m and weight decay delta
    every c steps:   n    <- n + 1
                     mu   <- (n mu + w) / (n + 1)
                     mu2  <- (n mu2 + w^2) / (n + 1)
                     D    <- the last K columns of [D, w - mu]
    q(w) = N(mu, (diag(mu2 - mu^2) + D D^T / (K - 1)) / 2)
    w    = mu + sqrt((mu2 - mu^2) / 2) z1 + D z2 / sqrt(2 (K - 1)),    z1, z2 ~ N(0, I)

Collection starts at the fraction `collect_from` of training. Until then n = 0, mu = w, mu2 = w^2 and D = 0. While D has
fewer than K columns, K is their number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from explore.core.context import Turn
from explore.core.rng import Rng
from explore.core.shapes import Batch, Info, Means, Weights
from explore.inference.base import Common, Predictive, common
from explore.inference.updates.adam import loss_gradients
from explore.inference.updates.steps import end_update, train_pass
from explore.nets.protocols import Layer


class SWAGState(NamedTuple):
    """The state of `SWAG`."""

    common: Common
    weights: Means  # w, one [R, I, O] per layer
    velocity: Means  # v
    mean: Means  # mu
    squares: Means  # mu2
    deviations: Weights  # D, one [R, K, I, O] per layer; the newest column last, zeros before the oldest
    collected: Float[Tensor, " R"]  # n


@dataclass(frozen=True, kw_only=True)
class SWAG(Predictive):
    """SWAG; a mixture (`members`) of several fits is MultiSWAG."""

    epochs: int = 200
    lr: float = 0.001  # alpha, constant
    momentum: float = 0.9  # m
    weight_decay: float = 1e-3  # delta
    collect_from: float = 0.75  # the fraction of training after which collection starts
    collect_every: int = 10  # c, in steps
    rank: int = 20  # K

    ranges: ClassVar[dict[str, str]] = {
        "momentum": "[0, 1)", "weight_decay": "[0, inf)", "collect_from": "[0, 1]", "collect_every": "[1, inf)",
        "rank": "[2, inf)",
    }  # fmt: skip
    prior_error: ClassVar[str] = "SWAG's variance is that of the path of SGD, which stays where no data move it"

    def init(self, n_data: float, replicas: int, rng: Rng) -> SWAGState:
        shared, w = common(self, n_data, replicas, rng), self.net.initial(replicas, rng)
        zeros = tuple(map(torch.zeros_like, w))
        columns = tuple(z.unsqueeze(1).repeat(1, self.rank, 1, 1) for z in zeros)
        return SWAGState(shared, w, zeros, w, tuple(x.square() for x in w), columns, w[0].new_zeros(replicas))

    def turn(self, step: int, progress: float) -> Turn:
        collects = progress >= self.collect_from
        return Turn("collect" if collects and step % self.collect_every == 0 else "wait" if collects else "train")

    def update(self, state: SWAGState, batch: Batch, rng: Rng, progress: float = 0.0) -> tuple[SWAGState, Info]:
        noise, w = self.likelihood.expected(state.common.noise), tuple(x.unsqueeze(1) for x in state.weights)
        seen = train_pass(self, state, w, noise, batch)
        gradients = loss_gradients(seen.taps, w, self.weight_decay)
        v = tuple(self.momentum * v + g.squeeze(1) for v, g in zip(state.velocity, gradients, strict=True))
        new = state._replace(weights=tuple(x - self.lr * d for x, d in zip(state.weights, v, strict=True)), velocity=v)
        kind = self.turn(int(state.common.step) + 1, progress).kind
        if kind == "train":
            new = new._replace(mean=new.weights, squares=tuple(x.square() for x in new.weights))
        return end_update(self, seen, self._collect(new) if kind == "collect" else new, state)

    def sample(self, state: SWAGState, n: int, rng: Rng) -> tuple[Layer, ...]:
        columns = state.collected.clamp(2, self.rank)
        z = rng.normal(len(columns), n, self.rank) / (2 * (columns - 1)).sqrt()[:, None, None]
        weights = []
        for mean, squares, deviations in zip(state.mean, state.squares, state.deviations, strict=True):
            deviation = (squares - mean.square()).clamp_min(0).div(2).sqrt().unsqueeze(1)
            noise = deviation * rng.normal(len(mean), n, *mean.shape[1:])
            weights.append(mean.unsqueeze(1) + noise + torch.einsum("rsk,rkio->rsio", z, deviations))
        return self.layers(state, weights)

    def at_mean(self, state: SWAGState) -> tuple[Layer, ...]:
        """Return the layers of the network at the mean, for `write_back`."""
        return self.layers(state, [m.unsqueeze(1) for m in state.mean])

    def _collect(self, state: SWAGState) -> SWAGState:
        rate = (1 / (state.collected + 2))[:, None, None]  # 1 / (n + 1), with the new n
        mean = tuple(torch.lerp(m, w, rate) for m, w in zip(state.mean, state.weights, strict=True))
        squares = tuple(torch.lerp(s, w.square(), rate) for s, w in zip(state.squares, state.weights, strict=True))
        last = tuple((w - m).unsqueeze(1) for w, m in zip(state.weights, mean, strict=True))
        deviations = tuple(torch.cat([d[:, 1:], x], 1) for d, x in zip(state.deviations, last, strict=True))
        return state._replace(mean=mean, squares=squares, deviations=deviations, collected=state.collected + 1)


PRESETS: dict[str, dict[str, object]] = {
    "default": {},
    "vime": {"collect_from": 0.0},  # training without a planned end
}

CONTRACT: dict[str, object] = {
    "lively": {"momentum": 0.3, "collect_from": 0.0, "collect_every": 1},
    "forgetful": {"lr": 1e-6, "collect_from": 0.0, "collect_every": 1},  # without scaling, SGD diverges on large inputs
}
