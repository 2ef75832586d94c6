"""Checks that updates agree when replicas run alone, traced, or in several processes."""

import functools
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed
from torch import Tensor

from explore.core import tree
from explore.core.context import World
from explore.core.shapes import Batch, State
from explore.execution import parallel
from explore.execution.graphs import Inductor, Updates
from explore.testing.oracles import Lone
from explore.testing.subject import N, R, Subject, data, seeded, start, train
from explore.testing.suite import assert_close, assert_same_bits
from explore.testing.values import POSTERIORS

CACHED = ("sampling", "step_factor")  # matrix factors, which are not unique (eigenvectors of equal eigenvalues)


def _run(subject: Subject, net: str, recordable: bool) -> tuple[Updates, Any]:
    """Run 12 updates with increasing progress; return the `Updates` and the final (state, metrics, generator state)."""
    posterior, rng = subject.build(**subject.variant(net)), seeded()
    batch, state, info = data(posterior.net), start(posterior, N, R, rng), None
    updates = Updates(posterior, rng, Inductor(rng, backend=None))
    updates.recordable = recordable
    for i in range(12):
        state, info = updates(state, batch, i / 12)
    return updates, (state, info, rng.generator.get_state())


@functools.cache
def _plain(subject: Subject, net: str) -> Any:
    return _run(subject, net, recordable=False)[1]


@POSTERIORS.check("mlp")
def traced_updates_are_plain_ones(subject: Subject, net: str) -> None:
    # A replay repeats all decisions and values that the CPU computed while the update was traced.
    updates, end = _run(subject, net, recordable=True)
    assert updates.recordable, "its updates cannot be traced, see the warning"
    if not updates.replays:
        pytest.skip("it records no graph")
    why = "updates of one kind, see `turn`, differ in more than its numbers:"
    assert_close(end, _plain(subject, net), why, rtol=1e-9)


@POSTERIORS.check("mlp", "norm-adam")
def three_replicas_equal_lone_runs(subject: Subject, net: str) -> None:
    # Kernels round differently with and without a batch, by 1e-15 per operation, which 12 updates amplify.
    posterior, (together, *_) = subject.build(**subject.variant(net)), _plain(subject, net)
    batch, drawn = data(posterior.net), posterior.sample(together, 3, seeded(9))
    for r in (0, R - 1):
        part, lone = slice(r, r + 1), functools.partial(Lone, r, R)
        rng = seeded(kind=lone)
        state = start(posterior, N, 1, rng)
        for i in range(12):
            state, _ = posterior.update(state, tree.part(batch, part), rng, i / 12)
        samples = posterior.sample(state, 3, seeded(9, kind=lone))
        why = f"replica {r} differs from a run of this replica alone:"
        _expect_equal_states(tree.part((together, drawn), part), (state, samples), why)


def _expect_equal_states(actual: tuple[State, Any], expected: tuple[State, Any], why: str) -> None:
    """Assert that two pairs (state, samples) agree. Cached matrix factors are compared through the samples only."""
    for (path, a), (_, b) in zip(*map(tree.leaves, (actual[0], expected[0])), strict=True):
        if path.partition(".")[0] not in CACHED:
            assert_close(a, b, f"{why} {path}", rtol=1e-9)
    assert_close(actual[1], expected[1], f"{why} samples", rtol=1e-9)


class Exchange:
    """A stand-in for the part of `torch.distributed` that `explore.execution.parallel` uses; threads act as processes.

    Networks are not thread-safe, so only the thread that holds the lock `turn` runs.
    """

    DistError = torch.distributed.DistError

    def __init__(self, threads: int) -> None:
        self.turn, self.barrier = threading.Lock(), threading.Barrier(threads)
        self._values: list[Any] = [None] * threads

    def _of_all(self, value: Tensor) -> list[Tensor]:
        """Return the values of all threads, by rank; wait until every thread has read all values."""
        self._values[parallel.world().rank] = value.clone()
        self.turn.release()
        try:
            self.barrier.wait(60)
            values = list(self._values)
            self.barrier.wait(60)
        finally:
            self.turn.acquire()
        return values

    def all_reduce(self, values: Tensor) -> None:
        values.copy_(torch.stack(self._of_all(values)).sum(0))

    def all_gather(self, targets: Sequence[Tensor], values: Tensor) -> None:
        for target, value in zip(targets, self._of_all(values), strict=True):
            target.copy_(value)


@POSTERIORS.check(of=lambda subject: not subject.cls.whole)
def two_processes_learn_what_one_does(subject: Subject) -> None:
    posterior, state, batch = subject.trained()
    with parallel.within(World(2, 0, 2)):  # both parts of each batch, in one process
        expected = train(posterior, state, batch, seeded(4))
    exchange = Exchange(2)

    def process(rank: int) -> State:
        with parallel.within(World(2, rank)), exchange.turn:
            try:
                return train(posterior, state, Batch(*(t.chunk(2, 1)[rank] for t in batch)), seeded(4))
            except BaseException:
                exchange.barrier.abort()
                raise

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(2) as threads:
        patch.setattr(parallel, "dist", exchange)
        states = list(threads.map(process, range(2)))
    advice = (
        "average sums over examples or samples by `parallel.mean`, and draw numbers of each process from "
        "`parallel.apart`:"
    )
    assert_same_bits(states[1], states[0], f"two processes have different states; {advice}")
    one, two = ((s, posterior.sample(s, 3, seeded(9))) for s in (states[0], expected))
    why = f"two processes with half of a batch each differ from one with all of it; {advice}"
    _expect_equal_states(one, two, why)
