"""Updates agree when they are recorded, and in several processes."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed
from torch import Tensor

from explore import registry
from explore.core import tree
from explore.core.context import World
from explore.core.shapes import Batch, State
from explore.execution import parallel
from explore.execution.graphs import Updates
from explore.testing.subject import N, R, Subject, data, seeded, start, train
from explore.testing.suite import Suite, assert_close, assert_same_bits
from explore.testing.values import expect_equal_states
from tests.contracts.declared import subjects
from tests.tape import Tape

EXECUTION = Suite()


@EXECUTION.check()
def recorded_updates_are_plain_ones(subject: Subject) -> None:
    # A replay repeats all decisions and values that the CPU computed while the update was recorded.
    ends = []
    for recordable in (True, False):
        posterior, rng = subject.build(), seeded()
        batch, state, info = data(), start(posterior, N, R, rng), None
        updates = Updates(posterior, rng, Tape(rng))
        updates.recordable = recordable
        for i in range(12):
            state, info = updates(state, batch, i / 12)
        assert updates.recordable == recordable, "its updates cannot be recorded, see the warning"
        if recordable and not updates.replays:
            pytest.skip("it records no graph")
        ends.append(tree.map_tensors(torch.clone, (state, info, rng.generator.get_state())))
    replayed, plain = ends
    assert_close(replayed, plain, "updates of one kind, see `turn`, differ in more than its numbers:", rtol=1e-9)


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


@EXECUTION.check(of=lambda subject: not subject.cls.whole)
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
    expect_equal_states(one, two, why)


test_posteriors = EXECUTION.test(subjects(*registry.names("posteriors")))
test_mixtures = EXECUTION.test(subjects("noisy-kfac", "whvi", "mc-dropout", members=3))
