"""Requirements on updates that are recorded, compiled, or run as candidates of one fit.

A `Tape` repeats recorded operations on the same memory: the CPU counterpart of a CUDA graph. What the host decides
or computes while it records, a replay repeats unseen.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from explore.core import tree
from explore.core.context import executing
from explore.core.rng import Rng
from explore.core.shapes import Batch, Info, State
from explore.execution import graphs
from explore.execution.graphs import Inductor, Updates
from explore.inference import candidates
from explore.nets.net import Net
from explore.testing.subject import CONV, MLP, NORM, N, R, Subject, assert_close, assert_same_bits, data, seeded, start
from explore.testing.values import POSTERIORS


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
        with executing(host_reads=False):
            return run()

    def record(
        self, run: Callable[[], tuple[State, Info]], state: State, memory: Sequence[Tensor], well: bool
    ) -> tuple[Info, Callable[[], bool]]:
        """Record an update: its info, without meaning before the first replay, and the function that replays it."""
        self._calls, self._before, drawn = [], [], self.rng.generator.get_state()
        with self:
            new, info = self.warm(run)
            graphs.write(new, state)
        # A recording alone does nothing.
        self.rng.generator.set_state(drawn)
        for changed, before in reversed(self._before):
            changed.copy_(before)

        calls = self._calls

        def replay() -> bool:
            with torch.no_grad():
                for func, args, kwargs, out in calls:
                    _repeat(func, args, kwargs, out)
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


@POSTERIORS.check({"mlp": MLP, "conv": CONV, "norm": NORM})
def recorded_updates_repeat_bit_for_bit(subject: Subject, net: Net) -> None:
    subject.require(net)
    posterior, batch = subject.build(net, batch_norm="adam"), data(net)

    def trained(recordable: bool) -> tuple[Updates, Any]:
        rng = seeded()
        updates = Updates(posterior, rng, Tape(rng))
        updates.recordable = recordable
        state = start(posterior, N, R, rng)
        for i in range(24):
            state, info = updates(state, batch, i / 24)
        return updates, (state, info, rng.normal(1))

    recorded, end_recorded = trained(recordable=True)
    if not recorded.replays:
        pytest.skip("it records nothing")
    plain, end = trained(recordable=False)
    assert recorded.recordable and not plain.replays
    why = f"{subject.name}: updates of one kind, see `turn`, differ in more than its numbers"
    assert_same_bits(end_recorded, end, why)


@POSTERIORS.check()
def compiled_updates_are_plain_ones(subject: Subject) -> None:
    posterior, batch, ends = subject.build(), data(), []
    for backend in ("eager", None):
        rng = seeded()
        updates = Updates(posterior, rng, Inductor(rng, backend) if backend else None)
        state = start(posterior, N, R, rng)
        for _ in range(6):
            state, info = updates(state, batch, 0.0)
        if backend and not updates.replays and updates.recordable:
            pytest.skip("it records nothing")
        assert updates.recordable, f"{subject.name}: its updates cannot be traced, see the warning"
        ends.append((state, info, rng.normal(1)))
    for (path, a), (_, b) in zip(*map(tree.leaves, ends), strict=True):
        assert_close(a, b, f"{subject.name}: {path} is not what it is without compilation", rtol=1e-9)


@POSTERIORS.check({"prior-given": False, "prior-learned": True}, of=lambda s: bool(candidates.by_replica(s.cls)))
def candidates_in_one_fit_are_what_each_is_alone(subject: Subject, learned: bool) -> None:
    if learned and not subject.learns_prior:
        pytest.skip("it learns no prior")
    names = candidates.by_replica(subject.cls) - ({"prior_variance"} if learned else set())
    numbers = {name: getattr(subject.build(), name, 0.5) or 0.5 for name in sorted(names)}
    fixed: dict[str, Any] = {"prior_variance": "learned"} if learned else {}
    posteriors = [subject.build(**dict[str, Any]({n: c * v for n, v in numbers.items()}), **fixed) for c in (1.0, 0.7)]
    batch, rng = data(), seeded(kind=functools.partial(Rng, arms=2))
    whole = candidates.together(posteriors, R, rng)
    ours = _epochs(whole, start(whole, N, 2 * R, rng), Batch(*(torch.cat([t, t]) for t in batch)), rng)
    parts = [tree.part(ours, block) for block in candidates.blocks(2, R)]
    for posterior, part in zip(posteriors, parts, strict=True):
        rng = seeded()
        alone = _epochs(posterior, start(posterior, N, R, rng), batch, rng)
        drawn = ((posterior.sample(state, 3, seeded(9)), posterior.learned(state)) for state in (part, alone))
        for (path, a), (_, b) in zip(*map(tree.leaves, drawn), strict=True):
            why = f"{subject.name}: {path} of a candidate is not what it is in a fit by itself; is `by_replica` right?"
            assert_close(a, b, why, rtol=1e-9)
    one, two = (posterior.sample(state, 3, seeded(9)) for posterior, state in zip(posteriors, parts, strict=True))
    assert not torch.equal(next(tree.leaves(one))[1], next(tree.leaves(two))[1])


def _epochs(posterior: Any, state: State, batch: Batch, rng: Rng) -> State:
    """The state after four epochs of five updates, recorded where possible."""
    updates = Updates(posterior, rng, Tape(rng))
    for i in range(20):
        state, _ = updates(state, batch, i / 20)
        state = updates.copied(posterior.end_epoch(state)) if i % 5 == 4 else state
    return posterior.finish(state, iter([batch]), rng)
