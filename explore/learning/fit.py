"""Fitting from scratch: epochs over shuffled batches. Yields after every epoch; prints and saves nothing.

In several processes, see `execution.parallel`, each works on its part of every batch, and all have the same states.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from explore.core.rng import Rng
from explore.core.shapes import Batch, Info, State
from explore.execution import graphs, parallel
from explore.inference.base import Predictive
from explore.learning.feed import ImageFeed


class Epoch(NamedTuple):
    """One pass over the data is done."""

    epoch: int  # from 1
    epochs: int
    state: State
    info: Info  # of the last batch, and what is learned once an epoch


def batches(n: int, size: int, least: int = 1) -> list[slice]:
    """N examples in round(n / size) batches of near-equal size, at least so many, but none that is empty."""
    count = max(min(least, n), round(n / size))
    bounds = [round(i * n / count) for i in range(count + 1)]
    return [slice(a, b) for a, b in zip(bounds[:-1], bounds[1:], strict=True)]


def fit(
    posterior: Predictive,
    x: Float[Tensor, "R n ..."] | ImageFeed,
    y: Tensor,
    rng: Rng,
    done: int = 0,
    state: State | None = None,
) -> Iterator[Epoch]:
    """Train on n examples a replica.

    Args:
        posterior: what to train; its own settings say for how long.
        x: [R, n, ...] inputs, or images that are made into such batches as they are needed.
        y: [R, n, O] targets, or [R, n] class indices.
        rng: the stream of this fit; it fixes start, order and noise.
        done: epochs that a fit which was interrupted has done; to continue it bit for bit, `rng.generator` must be
            as it was after them.
        state: where to start, after those epochs; None: the posterior's initial state. Of as many examples: it
            weighs the prior by their number.

    Yields:
        `Epoch` after each pass; the posterior's `finish` made the last one's state.
    """
    replicas, n = x.shape[:2]
    state = posterior.init(n, replicas, rng) if state is None else state
    slices = batches(n, posterior.batch_size, posterior.min_batches)
    rows = torch.arange(replicas, device=x.device).unsqueeze(1)
    total = posterior.epochs * len(slices)
    info: Info = {}
    update = graphs.updates(posterior, rng)
    for epoch in range(done, posterior.epochs):
        order = rng.permutation(replicas, n)
        shuffled_x, shuffled_y = x[rows, order], y[rows, order]
        for i, part in enumerate(slices):
            own = parallel.local_part(part)
            batch = Batch(shuffled_x[:, own], shuffled_y[:, own])
            state, info = update(state, batch, (epoch * len(slices) + i) / total)
        state, info = update.copied((posterior.end_epoch(state), info))
        if epoch + 1 == posterior.epochs:
            state = posterior.finish(state, (Batch(x[:, part], y[:, part]) for part in slices), rng)
        yield Epoch(epoch + 1, posterior.epochs, state, info | posterior.learned(state))


def last_epoch(posterior: Predictive, x: Float[Tensor, "R n ..."] | ImageFeed, y: Tensor, rng: Rng) -> Epoch:
    """The last epoch of a `fit`; the states before it, which would take gigabytes, are not kept."""
    return deque(fit(posterior, x, y, rng), maxlen=1).pop()
