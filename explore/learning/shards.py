"""A fit in several processes: the replicas in equal parts, its shards, each with random numbers of its own.

How many shards there are is therefore one of the things that decide the numbers; when and where a shard is trained is
not. joblib sends them to processes of this machine or, inside `joblib.parallel_config(backend=...)`, to a cluster of
Dask or Ray.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import joblib
import torch
from jaxtyping import Float
from torch import Tensor

from explore.core import tree
from explore.core.context import execute, execution
from explore.core.rng import Rng
from explore.core.shapes import Info, State
from explore.inference import candidates
from explore.inference.base import Predictive
from explore.learning.fit import Epoch, fit


class _Advanced(NamedTuple):
    """A shard some epochs later."""

    state: State
    info: Info
    generator: Tensor


def streams(rng: Rng, shards: int) -> list[Rng]:
    """The random numbers of each shard; of one alone those of the fit that is not divided."""
    return [rng] if shards == 1 else [rng.shard(i) for i in range(shards)]


def stops(epochs: int, count: int) -> list[int]:
    """About `count` epochs at equal distances, the last one among them."""
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
    """As `fit`, in as many processes as there are streams; in several it yields only after the epochs in `at`.

    Args:
        posterior: what to train; its own settings say for how long.
        x: inputs; of the blocks of `Rng.arms` each shard has the same part.
        y: targets.
        rngs: one stream a shard, see `streams`. They are advanced as `fit` advances its own.
        at: epochs in ascending order, the last of all among them.
        done: see `fit`.
        state: see `fit`; of all replicas.
    """
    if len(rngs) == 1:
        yield from fit(posterior, x, y, rngs[0], done, state)
        return
    parts = _parts(len(x), rngs[0].arms, len(rngs))
    order = torch.cat(parts).argsort()
    posteriors = [candidates.part(posterior, part) for part in parts]
    states: list[State | None] = [None if state is None else tree.part(state, part) for part in parts]
    threads, record = torch.get_num_threads(), execution().record  # of this thread: joblib asks for tasks in others too
    with joblib.Parallel(n_jobs=len(rngs)) as parallel:
        for stop in (epoch for epoch in at if epoch > done):
            ends: list[_Advanced] = parallel(
                joblib.delayed(_advance)(own, x[part], y[part], rng, done, old, stop, threads, record)
                for own, part, rng, old in zip(posteriors, parts, rngs, states, strict=True)
            )
            for rng, end in zip(rngs, ends, strict=True):
                rng.generator.set_state(end.generator)
            done, joined = stop, _joined([end.state for end in ends], order)
            # Not as they came: a fit that is resumed has no strides but these, and they decide last digits.
            states = [tree.part(joined, part) for part in parts]
            yield Epoch(stop, posterior.epochs, joined, _joined([end.info for end in ends], order))


def _parts(replicas: int, arms: int, shards: int) -> list[Tensor]:
    """The replicas of each shard."""
    trials = torch.arange(replicas).view(arms, -1)
    return [part.flatten() for part in trials.tensor_split(shards, 1)]


def _advance(
    posterior: Predictive,
    x: Tensor,
    y: Tensor,
    rng: Rng,
    done: int,
    state: State | None,
    stop: int,
    threads: int,
    recorded: bool | None,
) -> _Advanced:
    """What a process does: the epochs of a shard up to the next stop."""
    torch.set_num_threads(threads)
    execute(record=recorded)
    for epoch in fit(posterior, x, y, rng, done, state):
        if epoch.epoch == stop:
            return _Advanced(epoch.state, epoch.info, rng.generator.get_state())
    raise AssertionError(f"the fit has no epoch {stop}")


def _joined(trees: Sequence[tree.Tree], order: Tensor) -> tree.Tree:
    """Shards side by side, in the order of the replicas; what has no replica axis is the same in all."""
    first, *others = trees
    return tree.map_tensors(lambda *t: torch.cat(t)[order] if t[0].dim() else t[0], first, *others)
