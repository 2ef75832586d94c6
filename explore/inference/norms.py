"""Batch normalisations in a posterior's state: statistics that run along, and point estimates of scale and shift."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from explore.core.rng import Rng
from explore.core.shapes import NormTaps
from explore.execution import parallel
from explore.inference.updates import adam
from explore.nets.net import Net

NormPolicy = Literal["frozen", "adam"]
"""Scale and shift stay 1 and 0, or are trained by Adam on the likelihood alone; the statistics run in either case."""


class NormState(NamedTuple):
    """Of all batch normalisations of a net; empty where it has none."""

    values: tuple[Float[Tensor, "R _M 4 _C"], ...]  # scale, shift, running mean, variance; M = 1, or one a member
    moving: adam.Moving  # of scale and shift, where they are trained


def start_norms(net: Net, policy: NormPolicy, replicas: int, members: int, rng: Rng) -> NormState:
    """Before any data."""
    values = tuple(v.repeat(1, members, 1, 1) for v in net.initial_norms(replicas, rng))
    return NormState(values, adam.start(tuple(v[:, :, :2] for v in values) if policy == "adam" else ()))


def expand_norms(norms: NormState, samples: int) -> tuple[Float[Tensor, "R S 4 _C"], ...]:
    """The values for S samples, as `Net` takes them: those of the first S members, or the shared ones S times."""
    return tuple(v[:, :samples].expand(-1, samples, -1, -1) for v in norms.values)


def advance_norms(
    norms: NormState,
    net: Net,
    taps: tuple[NormTaps, ...],
    count: tuple[int, int],
    lr: float,
    step: Int[Tensor, " R"],
) -> NormState:
    """After one pass in training mode.

    The statistics of samples that share values are averaged. So is their gradient, over samples and examples.

    Args:
        norms: before it.
        net: the network.
        taps: of the log-likelihood.
        count: how many samples saw each example, and how many examples there were.
        lr: of Adam.
        step: of each replica; counts from 1.
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
    points, moving = adam.descend(
        tuple(v[:, :, :2] for v in values), tuple(gradients), norms.moving, adam.rates(lr, step.double())
    )
    return NormState(tuple(torch.cat([p, v[:, :, 2:]], 2) for p, v in zip(points, values, strict=True)), moving)
