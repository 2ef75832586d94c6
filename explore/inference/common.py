"""The part of the state that all posteriors share: noise, counters, batch normalisations and learned prior variances.

Batch normalisations have running statistics, and point estimates of scale and shift.

A learned prior variance eta, of N(0, eta), is the closed-form maximum of the bound. With the density q = N(M, Sigma)
held fixed, KL(q || N(0, eta)) over n coordinates that share eta is least at

    eta = (|M|^2 + tr Sigma) / n

(Graves, Practical Variational Inference for Neural Networks, 2011), kept within [1e-4, 1e2]. It is set at the end of
each epoch, so that the bound cannot fall there; the density follows with its next update.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from explore.core.rng import Rng
from explore.core.shapes import Means, NormTaps
from explore.execution import parallel
from explore.inference.updates import adam
from explore.nets.protocols import Network, Phi

LEAST, MOST = 1e-4, 1e2
NormPolicy = Literal["frozen", "adam"]
"""Scale and shift stay 1 and 0, or Adam trains them on the likelihood alone; the statistics run in either case."""
Rows = float | Float[Tensor, "_R _I 1"]
"""The prior variance of one tensor of coordinates: one for all, or one for each row ([R, 1, 1]: for each replica)."""


class NormState(NamedTuple):
    """The batch normalisations of a net; empty where it has none."""

    values: tuple[Float[Tensor, "R _M 4 _C"], ...]  # scale, shift, running mean, variance; M = 1, or one a member
    moving: adam.Moving  # of scale and shift, where they are trained


class Prior(NamedTuple):
    """Learned variances: for each tensor of coordinates [R, 1, 1], or [R, I, 1] where the bias has its own."""

    variance: tuple[Float[Tensor, "R _I 1"], ...]  # eta, of the end of the last epoch
    held: tuple[Float[Tensor, "R _I 1"], ...]  # eta at the last update, where the density itself depends on it


class Common(NamedTuple):
    """The part of the state that all posteriors share."""

    noise: Phi  # the likelihood's own posterior
    alive: Bool[Tensor, " R"]  # a replica that failed is frozen at its last good state
    step: Int[Tensor, ""]  # updates so far; on the CPU, so that reading it never waits for a device
    taken: Int[Tensor, " R"]  # how many of them each replica took: some posteriors reject steps
    n_data: Float[Tensor, ""]  # N, the effective data size; on the CPU
    norms: NormState  # batch normalisations
    prior: Prior | None = None  # its learned variances; None: they are a setting


def start_norms(net: Network, policy: NormPolicy, replicas: int, members: int, rng: Rng) -> NormState:
    """Return batch normalisations before any data."""
    values = tuple(v.repeat(1, members, 1, 1) for v in net.initial_norms(replicas, rng))
    return NormState(values, adam.start(tuple(v[:, :, :2] for v in values) if policy == "adam" else ()))


def expand_norms(norms: NormState, samples: int) -> tuple[Float[Tensor, "R S 4 _C"], ...]:
    """Return the values for S samples, as `Net` takes them: of the first S members, or the shared ones S times."""
    return tuple(v[:, :samples].expand(-1, samples, -1, -1) for v in norms.values)


def advance_norms(
    norms: NormState,
    net: Network,
    taps: tuple[NormTaps, ...],
    count: tuple[int, int],
    lr: float,
    step: Int[Tensor, " R"],
) -> NormState:
    """Return batch normalisations after a training pass, from the taps of the log-likelihood.

    Samples that share values share the mean of their statistics; gradients are averaged over samples and examples, the
    two numbers in `count`. Adam has the rate `lr` and each replica's step, from 1.
    """
    values, gradients = [], []
    for v, t, norm in zip(norms.values, taps, net.norms, strict=True):
        statistics, gradient = t.statistics, t.grads / count[1]
        if v.shape[1] == 1:
            statistics, gradient = statistics.mean(1, keepdim=True), gradient.sum(1, keepdim=True) / count[0]
        statistics, gradient = parallel.mean((statistics, gradient))
        values.append(torch.cat([v[:, :, :2], torch.lerp(v[:, :, 2:], statistics, norm.momentum)], 2))
        gradients.append(-gradient * norm.affine)  # one without scale and shift has nothing to train
    if not norms.moving.first:
        return NormState(tuple(values), norms.moving)
    points = tuple(v[:, :, :2] for v in values)
    points, moving = adam.descend(points, tuple(gradients), norms.moving, adam.rates(lr, step.double()))
    return NormState(tuple(torch.cat([p, v[:, :, 2:]], 2) for p, v in zip(points, values, strict=True)), moving)


def start_prior(
    eta: float, shapes: Sequence[tuple[int, int]], biases: Sequence[bool], replicas: int, rng: Rng
) -> Prior:
    """Return equal variances before any epoch; `biases` says in which tensors the last row has its own."""
    variance = tuple(
        torch.full((replicas, inputs if bias else 1, 1), eta, dtype=rng.dtype, device=rng.device)
        for (inputs, _), bias in zip(shapes, biases, strict=True)
    )
    return Prior(variance, variance)


def best_variance(second: Means, biases: Sequence[bool]) -> tuple[Float[Tensor, "R _I 1"], ...]:
    """Return eta at the maximum of the bound, from the second moments E_q[w^2], a tuple of [R, I, O]."""
    variances = []
    for squares, bias in zip(second, biases, strict=True):
        rows = squares.mean(2, keepdim=True)
        if bias:
            weights = rows[:, :-1].mean(1, keepdim=True).expand_as(rows[:, :-1])
            rows = torch.cat([weights, rows[:, -1:]], 1)
        else:
            rows = rows.mean(1, keepdim=True)
        variances.append(rows.clamp(LEAST, MOST))
    return tuple(variances)
