"""Updates that are recorded as CUDA graphs and replayed: one launch per update instead of one per operation.

    with graphs.use(True):
        for epoch in fit(posterior, x, y, rng): ...

A recording always repeats the same operations with the same numbers. So a posterior's `Turn` gives the kind of each
step and the numbers that change. Each kind has its own recording, and the changing numbers are tensors that are filled
before each replay. The first two replays of each kind are compared with normal updates. If they differ, or an update
cannot be recorded, the fit warns and continues without recordings.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from explore.core import tree
from explore.core.context import Number, Turn, executing, execution
from explore.core.rng import Rng
from explore.core.shapes import Batch, Info, State
from explore.execution import parallel

LARGEST = 3 * 10**7  # up to this many weights, launches take more time than arithmetic on a fast GPU
AHEAD = 2  # normal updates of each kind before one is recorded: libraries initialise themselves in the first ones
CHECKED = 2  # replays of each kind that are compared with the normal update
MOST = 4  # numbers in a turn
LOOKED_AT = 20  # one of so many steps must be of a kind that can be recorded
Step = Callable[[], tuple[State, Info]]
Replay = Callable[[], None]


def use(asked: bool | None) -> AbstractContextManager[Any]:
    """Set for a block whether fits on a GPU record their updates. None: with at most `LARGEST` weights."""
    return executing(record=asked)


def updates(posterior: Any, rng: Rng) -> Updates:
    """Return the `Updates` of a fit, with recordings on a GPU, if `use` requests them and updates can be recorded."""
    asked, recorded = execution().record, rng.device.type == "cuda" and parallel.world().parts == 1
    if recorded:
        recorded = posterior.net.weights <= LARGEST if asked is None else asked
    if recorded and all(posterior.turn(step, 1.0).kind is None for step in range(2, 2 + LOOKED_AT)):
        recorded = False
        if asked:
            warnings.warn(f"no update of {type(posterior).__name__} with these settings can be recorded", stacklevel=2)
    return Updates(posterior, rng, Cuda(rng) if recorded else None)


class Cuda:
    """A recorder of CUDA graphs. All graphs share one memory pool, so no two graphs may run at the same time."""

    def __init__(self, rng: Rng):
        self.rng, self.stream = rng, torch.cuda.Stream(rng.device)
        self.pool = torch.cuda.graph_pool_handle()

    def warm(self, run: Callable[[], Any]) -> Any:
        """Run an update under the conditions of a recording."""
        main = torch.cuda.current_stream(self.stream.device)
        self.stream.wait_stream(main)
        with torch.cuda.stream(self.stream):
            result = run()
        main.wait_stream(self.stream)
        return result

    def record(self, run: Step, place: State) -> tuple[Info, Replay]:
        """Record an update. Return the values that it logs, and a function that replays it from and to `place`."""
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self.rng.generator)
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
            new, info = run()
            write(new, place)
        return info, graph.replay


class Graph(NamedTuple):
    """A recording for updates of one kind on batches of one shape: its inputs, logged values and replay function."""

    batch: Batch
    info: Info
    replay: Replay


class Updates:
    """The updates of one fit or of online training. A replayed update overwrites the previously returned state."""

    def __init__(self, posterior: Any, rng: Rng, recorder: Any):  # None, or a recorder such as `Cuda`
        self.posterior, self.rng, self.recorder, self.recordable = posterior, rng, recorder, True
        self._graphs: dict[Hashable, Graph] = {}
        self._counts: dict[Hashable, int] = {}  # updates of each kind
        self.replays = 0
        self._place: State = None  # the state that graphs read and write
        self._constants: tuple[float, ...] = ()  # N and other host numbers that are constant in the graphs
        self._dials = torch.empty(MOST, dtype=rng.dtype, device=rng.device)
        self._values: list[Number] = [math.nan] * MOST  # the values of the dials

    def __call__(self, state: State, batch: Batch, progress: float) -> tuple[State, Info]:
        """Return the new state and the logged values, like `posterior.update`; replay a recording if possible."""
        turn = self.posterior.turn(int(state.common.step) + 1, progress) if self.recorder else Turn()
        if self.recorder is None or turn.kind is None:
            return self._plain(state, batch, progress)
        constants = tuple(float(t) for t in tree.tensors(state) if not t.dim() and t is not state.common.step)
        if constants != self._constants:
            self._graphs, self._counts, self._place, self._constants = {}, {}, None, constants
        for i, number in enumerate(turn.numbers):
            if number != self._values[i]:  # each costs a launch, and most do not change
                self._dials[i].fill_(number)
                self._values[i] = number
        key = turn.kind, batch.x.shape, batch.y.shape
        self._counts[key] = self._counts.get(key, 0) + 1
        with executing(dials=self._dials):
            if self._counts[key] > AHEAD + CHECKED and self.recordable:
                return self._replayed(self._graphs[key], state, batch)
            generator = self.rng.generator
            before = generator.get_state()
            result: tuple[State, Info] = self.recorder.warm(lambda: self._plain(state, batch, progress))
            if self._counts[key] <= AHEAD or not self.recordable:
                return result
            after = generator.get_state()
            generator.set_state(before)
            checked = self._checked(key, state, batch, progress, result)
            generator.set_state(after)
            return checked

    def draw_from(self, rng: Rng) -> None:
        """Draw from the random stream `rng` from now on."""
        if self.recorder is None:
            self.rng = rng
        else:  # graphs always draw from the generator with which they were recorded
            self.rng.generator.set_state(rng.generator.get_state())

    def copied(self, values: Any) -> Any:
        """Return the tree `values`, with its tensors cloned if a replay of a recording could overwrite them."""
        return tree.map_tensors(torch.clone, values) if self._graphs else values

    def _plain(self, state: State, batch: Batch, progress: float) -> tuple[State, Info]:
        return self.posterior.update(state, batch, self.rng, progress)

    def _checked(
        self, key: Hashable, state: State, batch: Batch, progress: float, plain: tuple[State, Info]
    ) -> tuple[State, Info]:
        """Return the result of a replay if it agrees with `plain`, the result of the normal update, else `plain`."""
        try:
            plain = tree.map_tensors(torch.clone, plain)  # unchanged tensors are still in the graphs' memory
            if key not in self._graphs:
                self._graphs[key] = self._recorded(state, batch, progress)
            new, info = self._replayed(self._graphs[key], state, batch)
            replayed = _with_host(new, plain[0]), info  # with the host numbers of the normal update
            if _same(replayed, plain):
                return replayed
            why = "a replay differs from the update"
        except RuntimeError as error:  # from CUDA, or from a library that cannot be recorded
            why = str(error).strip().partition("\n")[0]
        self.recordable, self._graphs, self._place = False, {}, None  # frees their memory
        warnings.warn(f"updates cannot be recorded, and run one by one: {why}", stacklevel=4)
        return plain

    def _recorded(self, state: State, batch: Batch, progress: float) -> Graph:
        if self._place is None:
            self._place = tree.map_tensors(lambda t: t.clone() if t.dim() else t, state)
        place, copy = _with_host(self._place, state), Batch(batch.x.clone(), batch.y.clone())
        return Graph(copy, *self.recorder.record(lambda: self._plain(place, copy, progress), place))

    def _replayed(self, graph: Graph, state: State, batch: Batch) -> tuple[State, Info]:
        write(state, self._place)
        write(batch, graph.batch)
        graph.replay()
        self.replays += 1
        now = _with_host(self._place, state)
        return now._replace(common=now.common._replace(step=state.common.step + 1)), graph.info


def _with_host(state: State, host: State) -> State:
    """Return `state` with its 0-d tensors, which are numbers on the host, replaced by the 0-d tensors of `host`."""
    return tree.map_tensors(lambda t, number: t if t.dim() else number, state, host)


def write(values: Any, memory: Any) -> None:
    """Copy the tensors of the tree `values` into the tensors of the tree `memory`; the two may share memory."""
    pairs = list(zip(tree.tensors(values), tree.tensors(memory), strict=True))
    changed = [(a, b) for a, b in pairs if b.dim() and a is not b]
    if not changed:  # the usual case
        return
    # Clone values in the target memory: they could be overwritten before they are read.
    targets = {b.untyped_storage().data_ptr() for _, b in pairs}
    safe = [(a.clone() if a.untyped_storage().data_ptr() in targets else a, b) for a, b in changed]
    for a, b in safe:
        b.copy_(a)


def _same(result: Any, expected: Any) -> bool:
    """Return whether two results agree up to rounding: in every element or, failing that, in norm for every replica."""

    def near(a: Tensor, b: Tensor) -> bool:
        a, b = a.double(), b.double()
        if torch.allclose(a, b, 1e-3, 1e-6, equal_nan=True):
            return True
        off, whole = (t.flatten(1).norm(dim=1) if t.dim() > 1 else t.abs() for t in (a - b, b))
        return bool((off <= 1e-4 * whole).all())

    return all(near(a, b) for a, b in zip(tree.tensors(result), tree.tensors(expected), strict=True))
