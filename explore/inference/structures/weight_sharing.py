"""Kronecker factors of a layer that is applied at T positions of an example (tokens, pixels).

An example's gradient is the sum over positions of a_t g_t^T, and the layer's block of the Fisher matrix is
E sum_tu a_t a_u^T (x) g_t g_u^T. With the mean a of its inputs and the sum g of its gradients,

    expand   A = E sum_t a_t a_t^T,   S = E mean_t g_t g_t^T            Grosse, Martens (2016), "KFC"
    reduce   A = E a a^T,             S = E g g^T                       Eschenhagen et al. (2023), "K-FAC-reduce"
    auto     A = E [(1 - c) sum_t a_t a_t^T + c T^2 a a^T],   S = E mean_t g_t g_t^T
             c = (E |g|^2 / E sum_t |g_t|^2 - 1) / (T - 1)              of a batch

Each takes inputs and gradients as independent of each other, as K-FAC does. Then "expand" is exact where gradients at
different positions are uncorrelated: each position has outputs of its own, or a dense layer weighs it at random.
"reduce" is exact where they are equal: positions are averaged, and what lies between is linear. "auto" is exact where
any two of them are equally correlated: c is 0 in the first case and 1 in the second, and -1 / (T - 1) where gradients
add up to zero, as those of an attention's keys do. Errors elsewhere: experiments/benchmarks/results/positions.md.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from explore.core.linalg import over
from explore.core.shapes import Taps
from explore.execution import parallel

WeightSharing = Literal["auto", "expand", "reduce"]


def reduced(taps: Taps) -> Taps:
    """The taps of one position: the mean input and the sum of gradients."""
    return Taps(taps.mean_inputs().unsqueeze(3), taps.grads.sum(3, keepdim=True))


def correlation(grads: Float[Tensor, "R S B T O"]) -> Float[Tensor, " R"]:
    """The c of gradients at T > 1 positions, over all processes."""
    one, pooled = parallel.mean((grads.square().sum((1, 2, 3, 4)), grads.sum(3).square().sum((1, 2, 3))))
    return (pooled - one) / ((grads.shape[3] - 1) * one).clamp_min(torch.finfo(one.dtype).tiny)


def correlated_inputs(taps: Taps, like: Float[Tensor, "R I I"]) -> Float[Tensor, "R I I"]:
    """The A of "auto" for this process's part of a batch; `like` has its shape."""
    each, mean = taps.average_inputs(like, 1.0), taps.mean_inputs().flatten(1, 2)
    pooled = taps.grads.shape[3] ** 2 / mean.shape[1] * (mean.mT @ mean)
    return torch.lerp(each, pooled, over(correlation(taps.grads), pooled))
