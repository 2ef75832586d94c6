"""Requirements on updates, however they run: of fewer replicas, recorded, compiled, as candidates, or in processes.

A `Tape` repeats recorded operations on the same memory: the CPU counterpart of a CUDA graph. What the host decides
or computes while it records, a replay repeats unseen. An `Exchange` connects threads as processes are connected.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from explore.core import tree
from explore.core.context import World
from explore.core.rng import Rng
from explore.core.shapes import Batch, Info, State
from explore.execution import graphs, parallel
from explore.execution.compiled import Inductor
from explore.execution.graphs import Recorder, Updates
from explore.inference import candidates
from explore.testing.oracles import Lone
from explore.testing.subject import N, R, Subject, data, seeded, start, train
from explore.testing.suite import assert_close, assert_same_bits
from explore.testing.values import POSTERIORS

CACHED = ("sampling", "step_factor")  # factors: eigenvectors of equal eigenvalues are arbitrary


class Tape(TorchDispatchMode):
    """Operations and draws from a stream; a `Recorder`."""

    ahead = 2

    def __init__(self, rng: Rng) -> None:
        super().__init__()
        self.rng = rng
        self._calls: list[tuple[Any, Sequence[Any], Mapping[str, Any], Any]] = []
        self._before: list[tuple[Tensor, Tensor]] = []

    def warm(self, run: Callable[[], Any]) -> Any:
        """Run it as on a device: the host reads no values."""
        with tree.unlooked():
            return run()

    def record(
        self, run: Callable[[], tuple[State, Info]], place: State, memory: Sequence[Tensor], healthy: bool
    ) -> tuple[Info, Callable[[], bool]]:
        """Record an update: its info, without meaning before the first replay, and the function that replays it."""
        self._calls, self._before, drawn = [], [], self.rng.generator.get_state()
        with self:
            new, info = self.warm(run)
            graphs.write(new, place)
        # A recording alone does nothing.
        self.rng.generator.set_state(drawn)
        for changed, before in reversed(self._before):
            changed.copy_(before)

        calls = self._calls

        def replay() -> bool:
            with torch.no_grad():
                for call in calls:
                    _repeat(*call)
            return True

        return info, replay

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func._schema.is_mutable:
            changed = args[0].detach()
            self._before.append((changed, changed.clone()))
        out = func(*args, **(kwargs or {}))
        self._calls.append((func, args, kwargs or {}, out))
        return out


def _repeat(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> None:
    if func.is_view:  # of the same memory still
        return
    again = func(*args, **kwargs)
    for old, new in zip(tree_leaves(out), tree_leaves(again), strict=True):
        if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
            old.detach().copy_(new)


# Runs of the same updates ----------------------------------------------------------------------------------


def _run(
    subject: Subject, net: str, steps: int, recorder: Callable[[Rng], Recorder], recordable: bool = True
) -> tuple[Updates, list[Any]]:
    """Return updates with a growing progress, and (state, logged numbers, generator) after each."""
    posterior, rng, every = subject.build(**subject.variant(net)), seeded(), []
    batch, state = data(posterior.net), start(posterior, N, R, rng)
    updates = Updates(posterior, rng, recorder(rng))
    updates.recordable = recordable
    for i in range(steps):
        state, info = updates(state, batch, i / 24)
        every.append((updates.copied(state), updates.copied(info), updates.rng.generator.get_state()))
    return updates, every


@functools.cache
def _plain(subject: Subject, net: str) -> list[Any]:
    return _run(subject, net, 24, Tape, recordable=False)[1]


@POSTERIORS.check("mlp", "conv", "norm-adam")
def recorded_updates_repeat_bit_for_bit(subject: Subject, net: str) -> None:
    plain, (updates, recorded) = _plain(subject, net), _run(subject, net, 24, Tape)
    if not updates.replays:
        pytest.skip("it records nothing")
    assert updates.recordable
    why = f"{subject.name}: updates of one kind, see `turn`, differ in more than its numbers"
    assert_same_bits(recorded[-1], plain[-1], why)


@POSTERIORS.check("mlp")
def compiled_updates_are_plain_ones(subject: Subject, net: str) -> None:
    updates, compiled = _run(subject, net, 4, lambda rng: Inductor(rng, "eager"))
    if not updates.replays and updates.recordable:
        pytest.skip("it records nothing")
    assert updates.recordable, f"{subject.name}: its updates cannot be traced, see the warning"
    assert_close(compiled[-1], _plain(subject, net)[3], f"{subject.name}: a compiled update differs in", rtol=1e-9)


@POSTERIORS.check("mlp", "conv", "norm-adam")
def three_replicas_equal_lone_runs(subject: Subject, net: str) -> None:
    # Batched and lone kernels differ in the last bits, 1e-15 an operation, which 12 updates magnify.
    posterior, (together, *_) = subject.build(**subject.variant(net)), _plain(subject, net)[11]
    batch, drawn = data(posterior.net), posterior.sample(together, 3, seeded(9))
    for r in (0, R - 1):
        part, lone = slice(r, r + 1), functools.partial(Lone, r, R)
        rng = seeded(kind=lone)
        state = start(posterior, N, 1, rng)
        for i in range(12):
            state, _ = posterior.update(state, tree.part(batch, part), rng, i / 24)
        samples = posterior.sample(state, 3, seeded(9, kind=lone))
        why = f"{subject.name}: replica {r} is not what it is in a run of that replica alone:"
        _expect_equal_states(tree.part((together, drawn), part), (state, samples), why)


def _expect_equal_states(actual: tuple[State, Any], expected: tuple[State, Any], why: str) -> None:
    """Compare states but for cached factors, and the samples, which show these."""
    pairs = zip(tree.leaves(actual[0]), tree.leaves(expected[0]), strict=True)
    for (path, a), (_, b) in pairs:
        if path.partition(".")[0] not in CACHED:
            assert_close(a, b, f"{why} {path}", rtol=1e-9)
    assert_close(actual[1], expected[1], f"{why} samples", rtol=1e-9)


# Candidates of one fit -------------------------------------------------------------------------------------


@POSTERIORS.check("mlp", "learned", of=lambda subject: bool(candidates.by_replica(subject.cls)))
def candidates_in_one_fit_are_what_each_is_alone(subject: Subject, variant: str) -> None:
    fixed = subject.variant(variant)
    names = candidates.by_replica(subject.cls) - fixed.keys()
    numbers = {name: getattr(subject.build(), name, 0.5) or 0.5 for name in sorted(names)}
    posteriors = [subject.build(**dict[str, Any]({n: c * v for n, v in numbers.items()}), **fixed) for c in (1.0, 0.7)]
    batch, rng = data(), seeded(kind=functools.partial(Rng, arms=2))
    whole = candidates.together(posteriors, R, rng)
    state = _epochs(whole, start(whole, N, 2 * R, rng), tree.map_tensors(lambda t: torch.cat([t, t]), batch), rng)
    parts = [tree.part(state, block) for block in candidates.blocks(2, R)]
    drawn = [posterior.sample(part, 3, seeded(9)) for posterior, part in zip(posteriors, parts, strict=True)]
    for posterior, part, samples in zip(posteriors, parts, drawn, strict=True):
        rng = seeded()
        alone = _epochs(posterior, start(posterior, N, R, rng), batch, rng)
        expected = posterior.sample(alone, 3, seeded(9)), posterior.learned(alone)
        why = f"{subject.name}: a candidate is not what it is in a fit by itself; is `by_replica` right?"
        assert_close((samples, posterior.learned(part)), expected, why, rtol=1e-9)
    assert not torch.equal(*(next(tree.leaves(samples))[1] for samples in drawn))


def _epochs(posterior: Any, state: State, batch: Batch, rng: Rng) -> State:
    """Return the state after three epochs of five updates, recorded where possible."""
    updates = Updates(posterior, rng, Tape(rng))
    for i in range(15):
        state, _ = updates(state, batch, i / 15)
        state = updates.copied(posterior.end_epoch(state)) if i % 5 == 4 else state
    return posterior.finish(state, iter([batch]), rng)


# Processes -------------------------------------------------------------------------------------------------


class Exchange:
    """The part of `torch.distributed` that `explore.execution.parallel` uses, between threads.

    A thread runs while it holds `turn`, as nets are not for two threads at once.
    """

    DistError = torch.distributed.DistError

    def __init__(self, threads: int) -> None:
        self.turn, self.barrier = threading.Lock(), threading.Barrier(threads)
        self._values: list[Any] = [None] * threads

    def _of_all(self, value: Tensor) -> list[Tensor]:
        """Return every thread's value; no thread goes on before all have read them."""
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

    def broadcast(self, values: Tensor, source: int) -> None:
        values.copy_(self._of_all(values)[source])


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
    assert_same_bits(states[1], states[0], f"{subject.name}: two processes have other states; {advice}")
    one, two = ((s, posterior.sample(s, 3, seeded(9))) for s in (states[0], expected))
    why = f"{subject.name}: two processes with half of a batch each learn something else than one with all; {advice}"
    _expect_equal_states(one, two, why)
