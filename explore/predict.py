"""Predictions of sampled networks, in bounded memory.

Every function here takes weight samples `layers` (S of them, shared by all points) and walks over the points in
chunks, so that no tensor grows with both S and the size of a pool.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from explore.likelihoods import Likelihood, Noise
from explore.nets import Layer, Net
from explore.nets import count_samples as count
from explore.posteriors.gaussian import GaussianPosterior
from explore.shapes import State

BUDGET = 2**21  # numbers a chunk may hold in one layer, over all R and S; a few MiB stay in the processor's cache


class Moments(NamedTuple):
    """Mean and variance of the net's output over the weights (epistemic: the noise is not in it)."""

    mean: Float[Tensor, "R P O"]
    variance: Float[Tensor, "R P O"]


def outputs(net: Net, layers: Sequence[Layer], x: Tensor) -> Iterator[tuple[slice, Float[Tensor, "R S b O"]]]:
    """(which points, their outputs) chunk by chunk.

    Args:
        net: the network.
        layers: weight samples [R, S, I, O] a layer.
        x: [R, P, ...] inputs.
    """
    with torch.no_grad():
        net.output(layers, x[:, :1])  # one point, to learn how wide the layers are
    for part in _parts(x.shape[1], x.shape[0] * count(layers) * net.width):
        with torch.no_grad():  # here, not around the generator, whose body runs later
            out = net.output(layers, x[:, part])
        yield part, out


def moments(net: Net, layers: Sequence[Layer], x: Tensor) -> Moments:
    """Mean and variance over S of the output at each of the points x [R, P, ...]."""
    means, variances = [], []
    for _, out in outputs(net, layers, x):
        # Bessel's correction: S samples estimate the mean too. One sample varies not at all.
        variance, mean = torch.var_mean(out, 1, correction=min(1, out.shape[1] - 1))
        means.append(mean)
        variances.append(variance)
    return Moments(torch.cat(means, 1), torch.cat(variances, 1))


def linearised(posterior: GaussianPosterior, state: State, x: Tensor) -> Moments:
    """Moments of the net linearised at the mean weights: f(x; M) and the diagonal of J Sigma J^T, without sampling.

    Args:
        posterior: one with a Gaussian density.
        state: of that posterior.
        x: [R, P, ...] inputs.
    """
    _, precision, scale = posterior.gaussian(state)
    at_mean = posterior.at_mean(state)
    net, means, variances = posterior.net, [], []
    # An example's gradient is a whole set of weights.
    for part in _parts(x.shape[1], x.shape[0] * net.weights):
        out, pullback = net.forward(at_mean, x[:, part])
        rows = torch.eye(out.shape[-1], dtype=out.dtype, device=out.device)
        variances.append(scale * torch.stack([precision.quad(pullback(row.expand_as(out))) for row in rows], -1))
        means.append(out.squeeze(1))
    return Moments(torch.cat(means, 1), torch.cat(variances, 1))


def _parts(points: int, width: int) -> Iterator[slice]:
    """Slices of the points, such that `width` numbers a point stay within the budget."""
    size = max(1, BUDGET // width)
    return (slice(start, min(start + size, points)) for start in range(0, points, size))


def evaluate(
    net: Net,
    likelihood: Likelihood,
    layers: Sequence[Layer],
    noise: Noise,
    x: Tensor,
    y: Tensor,
    scale: Float[Tensor, "R O"] | None = None,
) -> dict[str, Float[Tensor, " R"]]:
    """Test metrics over all points, each a mean over points.

    Regression: `rmse` of the predictive mean over all outputs, `log_likelihood` of the per-point mixture
    log 1/S sum_s N(y; f_s(x), 1/tau_s), summed over outputs, and `coverage_95`, the share of targets within the
    central 95 % of a Gaussian with the predictive mean and total variance. Classification: `error` rate of the
    averaged probabilities and `log_likelihood`. Both: `epistemic`, the mean standard
    deviation over the weights of the output, or of the class probabilities.

    Args:
        net: the network.
        likelihood: of the targets.
        layers: weight samples.
        noise: one noise parameter a weight sample, from `likelihood.draw`.
        x: [R, P, ...] inputs.
        y: [R, P, O] standardised targets, or [R, P] class indices.
        scale: the original standard deviation of each output; undoes the standardisation in rmse,
            log_likelihood and epistemic.

    Returns:
        name -> [R].
    """
    sums: dict[str, Tensor] = {}
    log_scale = 0.0 if scale is None else scale.log().sum(1, keepdim=True)  # [R, 1]
    unit = 1.0 if scale is None else scale.unsqueeze(1)  # [R, 1, O]
    for part, out in outputs(net, layers, x):
        target = y[:, part]
        log_prob = likelihood.log_prob(noise, out, target.unsqueeze(1))
        shown, discrete = out, hasattr(likelihood, "probabilities")
        if hasattr(likelihood, "probabilities"):
            shown = likelihood.probabilities(out)
        mean = shown.mean(1)
        variance = shown.var(1) if shown.shape[1] > 1 else torch.zeros_like(mean)
        found = {
            "log_likelihood": log_prob.logsumexp(1) - math.log(out.shape[1]) - log_scale,
            "epistemic": (variance.sqrt() * (1.0 if discrete else unit)).mean(-1),
        }
        if discrete:
            found["error"] = (mean.argmax(-1) != target).to(out)
        else:
            total = (variance + (1 / noise).mean(1)[:, None, None]).sqrt()
            found["rmse"] = ((target - mean) * unit).square().mean(-1)
            found["coverage_95"] = ((target - mean).abs() <= 1.959964 * total).to(out).mean(-1)
        for name, value in found.items():
            sums[name] = sums.get(name, 0) + value.sum(1)
    metrics = {name: value / x.shape[1] for name, value in sums.items()}
    if "rmse" in metrics:
        metrics["rmse"] = metrics["rmse"].sqrt()
    return metrics
