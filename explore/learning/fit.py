"""Fitting from scratch: epochs over shuffled batches, in one process or several.

`sharded_fit` divides the replicas into equal shards, each with its own random numbers: their number affects the
results, but when and where a shard is trained does not. joblib sends them to processes of this machine or, inside
`joblib.parallel_config(backend=...)`, to a cluster of Dask or Ray.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import joblib
import torch
from jaxtyping import Float
from torch import Tensor

from explore.core import tree
from explore.core.context import execute, execution
from explore.core.rng import Rng
from explore.core.shapes import Batch, Info, State
from explore.execution import graphs, parallel
from explore.inference import candidates
from explore.inference.base import Predictive
from explore.learning.feed import ImageFeed


class Epoch(NamedTuple):
    """The state after a pass over the data."""

    epoch: int  # from 1
    epochs: int
    state: State
    info: Info  # of the last batch, and the values learned once an epoch


def batches(n: int, size: int, least: int = 1) -> list[slice]:
    """Divide n examples into round(n / size) batches of near-equal size, at least `least`, but none that is empty."""
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
    """Train on n examples per replica; yield an `Epoch` after each pass, the last of them with `finish`ed state.

    Args:
        posterior: what to train; its settings include the number of epochs.
        x: [R, n, ...] inputs, or images that become such batches as they are needed.
        y: [R, n, O] targets, or [R, n] class indices.
        rng: the stream of this fit; it fixes start, order and noise.
        done: epochs of an interrupted fit; `rng.generator` must be as it was after them.
        state: where to start, after those epochs; None: the posterior's initial state. It must have been fitted to as
            many examples, by whose number it weighs the prior.
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
            share = parallel.local_part(part)
            batch = Batch(shuffled_x[:, share], shuffled_y[:, share])
            state, info = update(state, batch, (epoch * len(slices) + i) / total)
        state, info = update.copied((posterior.end_epoch(state), info))
        if epoch + 1 == posterior.epochs:
            state = posterior.finish(state, (Batch(x[:, part], y[:, part]) for part in slices), rng)
        yield Epoch(epoch + 1, posterior.epochs, state, info | posterior.learned(state))


def last_epoch(posterior: Predictive, x: Float[Tensor, "R n ..."] | ImageFeed, y: Tensor, rng: Rng) -> Epoch:
    """The last epoch of a `fit`; earlier states, which would take gigabytes, are dropped."""
    return deque(fit(posterior, x, y, rng), maxlen=1).pop()


def streams(rng: Rng, shards: int) -> list[Rng]:
    """The random stream of each shard; a single one has that of an undivided fit."""
    return [rng] if shards == 1 else [rng.shard(i) for i in range(shards)]


def stops(epochs: int, count: int) -> list[int]:
    """About `count` evenly spaced epochs, including the last."""
    return sorted({math.ceil(epochs * i / count) for i in range(1, count + 1)})


def sharded_fit(
    posterior: Predictive,
    x: Float[Tensor, "R n ..."],
    y: Tensor,
    rngs: Sequence[Rng],
    at: Sequence[int],
    done: int = 0,
    state: State | None = None,
) -> Iterator[Epoch]:
    """Train as `fit` does, in one process a stream of `rngs`; with several, yield only after the epochs in `at`.

    Of the blocks of `Rng.arms` each shard has the same part. The streams advance as that of `fit` does. `at` ascends to
    the last epoch; `done` and `state` are those of `fit`, of all replicas.
    """
    if len(rngs) == 1:
        yield from fit(posterior, x, y, rngs[0], done, state)
        return
    trials = torch.arange(len(x)).view(rngs[0].arms, -1)
    parts = [part.flatten() for part in trials.tensor_split(len(rngs), 1)]  # the replicas of each shard
    order = torch.cat(parts).argsort()
    posteriors = [candidates.part(posterior, part) for part in parts]
    states: list[State | None] = [None if state is None else tree.part(state, part) for part in parts]
    threads, record = torch.get_num_threads(), execution().record  # of this thread: joblib asks for tasks in others too
    with joblib.Parallel(n_jobs=len(rngs)) as workers:
        for stop in (epoch for epoch in at if epoch > done):
            ends = workers(
                joblib.delayed(_advance)(shard, x[part], y[part], rng, done, old, stop, threads, record)
                for shard, part, rng, old in zip(posteriors, parts, rngs, states, strict=True)
            )
            shards, infos, generators = zip(*ends, strict=True)
            for rng, generator in zip(rngs, generators, strict=True):
                rng.generator.set_state(generator)
            done, joined = stop, _joined(shards, order)
            # Not the shards' own tensors: a resumed fit has no other strides than these, which decide last digits.
            states = [tree.part(joined, part) for part in parts]
            yield Epoch(stop, posterior.epochs, joined, _joined(infos, order))


def _advance(
    posterior: Predictive,
    x: Tensor,
    y: Tensor,
    rng: Rng,
    done: int,
    state: State | None,
    stop: int,
    threads: int,
    record: bool | None,
) -> tuple[State, Info, Tensor]:
    """Train a shard up to the next stop, in a process of its own; return its state, info and generator."""
    torch.set_num_threads(threads)
    execute(record=record)
    for epoch in fit(posterior, x, y, rng, done, state):
        if epoch.epoch == stop:
            return epoch.state, epoch.info, rng.generator.get_state()
    raise AssertionError(f"the fit has no epoch {stop}")


def _joined(trees: Sequence[tree.Tree], order: Tensor) -> tree.Tree:
    """Join shards in the order of the replicas; leaves without a replica axis are the same in all."""
    first, *rest = trees
    return tree.map_tensors(lambda *t: torch.cat(t)[order] if t[0].dim() else t[0], first, *rest)
