"""Probabilistic back-propagation (Hernández-Lobato and Adams 2015), a comparator for regression, batched over splits.

Independent Gaussians over weights, and Gamma distributions over the precision of the noise and of the prior. Examples
are absorbed one at a time by assumed density filtering: the moments of the output are propagated through the network,
and the gradients of the logarithm of the example's evidence update means and variances of the weights (eqs. 4 to 16).
After each pass, the factors of the prior are refined by expectation propagation.

R: splits; all tensors have them as their first dimension, so twenty splits cost about as much as one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from explore.core.rng import Rng

GAMMA = 6.0, 6.0  # shape and rate of both precisions at the start
EPOCHS = 40


def rectified(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance of max(a, 0) for a ~ N(mean, variance), elementwise (eqs. 13 and 14)."""
    ratio = mean / variance.sqrt()
    above = torch.special.ndtr(ratio)
    # φ(r)/Φ(r), without dividing zero by zero where r is very negative
    hazard = (-0.5 * ratio.square() - 0.5 * math.log(2 * math.pi) - torch.special.log_ndtr(ratio)).exp()
    slope = mean + variance.sqrt() * hazard
    first = above * slope
    second = first * slope * (1 - above) + above * variance * (1 - hazard * (hazard + ratio))
    return first, second.clamp_min(1e-12)


def output(means: Sequence[Tensor], variances: Sequence[Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """Propagate moments through ReLU layers with weights [R, out, in + 1]; inputs are [R, N, D], moments [R, N]."""
    mean, variance = x, torch.zeros_like(x)
    for layer, (weight, spread) in enumerate(zip(means, variances, strict=True)):
        if layer:
            mean, variance = rectified(mean, variance)
        mean = torch.cat([mean, torch.ones_like(mean[..., :1])], -1)
        variance = torch.cat([variance, torch.zeros_like(variance[..., :1])], -1)
        fan_in = weight.shape[-1]
        both = weight.square() + spread
        mean, variance = (
            mean @ weight.mT / math.sqrt(fan_in),
            (mean.square() @ spread.mT + variance @ both.mT) / fan_in,
        )
    return mean[..., 0], variance[..., 0]


def gaussian(y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """Return log N(y; mean, variance)."""
    return -0.5 * ((y - mean).square() / variance + (2 * math.pi * variance).log())


def matched_gamma(shape: Tensor, rate: Tensor, evidence: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Match two moments of a precision, from log Z at shapes α, α + 1 and α + 2 (eqs. 7 and 8)."""
    zero, one, two = evidence
    new = 1 / ((zero + two - 2 * one).exp() * (shape + 1) / shape - 1)
    return new, 1 / ((two - one).exp() * (shape + 1) / rate - (one - zero).exp() * shape / rate)


def valid(*values: Tensor) -> Tensor:
    """Return where all values [R, ...] are finite, and all are positive: shape [R]."""
    return torch.stack([((v > 0) & v.isfinite()).flatten(1).all(1) for v in values]).all(0)


class PBP:
    """The approximate posterior of R networks, in standardised units."""

    def __init__(self, replicas: int, widths: Sequence[int], rng: Rng) -> None:
        generator, (shape, rate) = rng.stream("init").generator, GAMMA
        sizes = [(replicas, out, fan_in + 1) for fan_in, out in zip(widths, widths[1:], strict=False)]
        self.means = [torch.randn(s, generator=generator, dtype=torch.float64) / math.sqrt(s[2]) for s in sizes]
        self.variances = [torch.full(s, rate / (shape - 1), dtype=torch.float64) for s in sizes]
        self.noise, self.prior = ([torch.full((replicas, 1), v, dtype=torch.float64) for v in GAMMA] for _ in range(2))
        # The factor of the prior of each weight: its natural parameters, and what it adds to shape and rate.
        self.factors = torch.zeros(4, replicas, sum(s[1] * s[2] for s in sizes), dtype=torch.float64)
        self.factors[0] = (shape - 1) / rate

    def predict(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return means and variances of targets, noise included, both [R, N]."""
        mean, variance = output(self.means, self.variances, x)
        return mean, variance + self.noise[1] / (self.noise[0] - 1)

    def absorb(self, x: Tensor, y: Tensor) -> None:
        """Update with an example of each split: x [R, 1, D], y [R, 1] (eqs. 4 to 8)."""
        weights = [v.requires_grad_() for v in (*self.means, *self.variances)]
        mean, variance = output(self.means, self.variances, x)
        shape, rate = self.noise
        evidence = [gaussian(y, mean, variance + rate / (shape + k - 1)) for k in range(3)]
        slopes = torch.autograd.grad(evidence[0].sum(), weights)
        weights = [v.detach() for v in weights]
        layers = len(self.means)
        news = []
        for m, v, d_m, d_v in zip(weights[:layers], weights[layers:], slopes[:layers], slopes[layers:], strict=True):
            news.append((m + v * d_m, v - v.square() * (d_m.square() - 2 * d_v)))
        noise = matched_gamma(shape, rate, [e.detach() for e in evidence])
        # Where a variance would turn negative, the weight keeps its distribution (as in the authors' code).
        for layer, (m, v) in enumerate(news):
            good = (v > 1e-100) & m.isfinite() & v.isfinite()
            self.means[layer] = torch.where(good, m, weights[layer])
            self.variances[layer] = torch.where(good, v, weights[layers + layer])
        self.noise = self._kept(noise, self.noise)

    def refine(self) -> None:
        """Refine the factors of the prior, one weight after another (section 3.3)."""
        flat = [torch.cat([v.flatten(1) for v in part], 1) for part in (self.means, self.variances)]
        mean, variance = flat
        for i in range(mean.shape[1]):
            precision, shift, more_shape, more_rate = self.factors[:, :, i]
            left = 1 / variance[:, i] - precision
            cavity = 1 / left, (mean[:, i] / variance[:, i] - shift) / left
            shape, rate = self.prior[0][:, 0] - more_shape, self.prior[1][:, 0] - more_rate
            evidence = [gaussian(torch.zeros(()), cavity[1], cavity[0] + rate / (shape + k - 1)) for k in range(3)]
            total = cavity[0] + rate / (shape - 1)
            new_mean = cavity[1] - cavity[0] * cavity[1] / total
            new_variance = cavity[0] - cavity[0].square() / total
            new_shape, new_rate = matched_gamma(shape, rate, evidence)
            good = valid(*(v[:, None] for v in (left, shape - 1, rate, new_variance, new_shape - 1, new_rate)))
            precision_new = 1 / new_variance - left
            factor = torch.stack(
                [precision_new, new_mean / new_variance - cavity[1] * left, new_shape - shape, new_rate - rate]
            )
            self.factors[:, :, i] = torch.where(good, factor, self.factors[:, :, i])
            mean[:, i] = torch.where(good, new_mean, mean[:, i])
            variance[:, i] = torch.where(good, new_variance, variance[:, i])
            pair = new_shape[:, None], new_rate[:, None]
            self.prior = [torch.where(good[:, None], n, o) for n, o in zip(pair, self.prior, strict=True)]
        sizes = [m[0].numel() for m in self.means]
        for part, whole in ((self.means, mean), (self.variances, variance)):
            part[:] = [v.reshape(m.shape) for v, m in zip(whole.split(sizes, 1), part, strict=True)]

    @staticmethod
    def _kept(new: Sequence[Tensor], old: list[Tensor]) -> list[Tensor]:
        good = valid(new[0] - 1, new[1])[:, None]
        return [torch.where(good, n, o) for n, o in zip(new, old, strict=True)]


def fit(x: Tensor, y: Tensor, hidden: Sequence[int], rng: Rng, epochs: int = EPOCHS) -> PBP:
    """Fit to standardised examples: x [R, N, D], y [R, N]. Each split has its own order in every pass."""
    model = PBP(len(x), [x.shape[2], *hidden, 1], rng)
    generator, rows = rng.stream("fit").generator, torch.arange(len(x))
    for _ in range(epochs):
        order = torch.rand(y.shape, generator=generator).argsort(1)
        for at in order.T:
            model.absorb(x[rows, at][:, None], y[rows, at][:, None])
        model.refine()
    return model
