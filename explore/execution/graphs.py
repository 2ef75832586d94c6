"""Updates recorded once and then replayed: a launch for each update, in place of one for each operation.

    with graphs.use(True):
        for epoch in fit(posterior, x, y, rng): ...

`fit` and the dynamics model of VIME run their updates so; the commands have --graphs and --no-graphs.

On a GPU they are CUDA graphs, on a processor programs that torch compiles, see `explore.execution.compiled`.

A graph repeats the same operations with the same numbers. So a posterior says of each step, in its `Turn`, of what kind
it is and which numbers change: kinds have a graph each, and the numbers are tensors that are filled before a replay.
The replays of CUDA graphs have the bits of updates one by one with these tensors. The first two of each kind are
compared with such updates; should they differ, or should something not be recordable, that is said, and the fit goes on
without.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from explore.core import tree
from explore.core.context import executing, execution
from explore.core.rng import Rng
from explore.core.shapes import Batch, Info, State
from explore.execution import parallel
from explore.execution.compiled import Inductor
from explore.execution.turns import Number, Turn, dialled

LARGEST = 3 * 10**7  # weights up to which launches take more of an update's time than arithmetic, on a fast GPU
CHECKED = 2  # replays of each kind that are compared with the update itself
MOST = 4  # numbers of a turn
LOOKED_AT = 20  # steps, of which one at least must be of a kind that is recorded


def use(asked: bool | None) -> AbstractContextManager[Any]:
    """Whether fits record their updates; None: on a GPU those of nets with up to `LARGEST` weights."""
    return executing(record=asked)


@runtime_checkable
class Trainable(Protocol):
    """What graphs ask of a posterior."""

    @property
    def net(self) -> Any:
        """Its network, with a number of `weights`."""

    def update(self, state: State, batch: Batch, rng: Rng, progress: float = 0.0) -> tuple[State, Info]:
        """One step."""

    def turn(self, step: int, progress: float) -> Turn:
        """What that step reads of its number."""


def updates(posterior: Trainable, rng: Rng) -> Updates:
    """Those of a fit in this process, recorded where that is asked for, or always wins."""
    device, alone = rng.device.type, parallel.world().parts == 1
    asked = execution().record
    wanted = device == "cuda" and posterior.net.weights <= LARGEST if asked is None else asked
    kinds: dict[str, Callable[[Rng], Recorder]] = {"cuda": Cuda, "cpu": Inductor}
    recorded = wanted and alone and device in kinds
    if recorded and all(posterior.turn(step, 1.0).kind is None for step in range(2, 2 + LOOKED_AT)):
        recorded = False
        if asked:
            warnings.warn(f"no update of {type(posterior).__name__} with these settings can be recorded", stacklevel=2)
    return Updates(posterior, rng, kinds[device](rng) if recorded else None)


@runtime_checkable
class Recorder(Protocol):
    """What records operations, to repeat them on the same memory.

    Attributes:
        ahead: updates of a kind before it is recorded.
    """

    ahead: int

    @property
    def rng(self) -> Rng:
        """The stream that updates draw from."""

    def warm(self, run: Callable[[], Any]) -> Any:
        """Run it without a recording, as it will be recorded."""

    def record(
        self, run: Callable[[], tuple[State, Info]], here: State, memory: Sequence[Tensor], well: bool
    ) -> tuple[Info, Callable[[], bool]]:
        """What `run` makes beside a state, and what repeats it; a recording alone may leave values out.

        Args:
            run: an update of the state `here`.
            here: where a repetition reads the old state and writes the new one.
            memory: what else `run` reads of what changes.
            well: whether no replica has failed, which a repetition may take for granted; of a device it is not asked.

        A repetition says whether it could be done; where not, nothing has changed.
        """


class Cuda:
    """CUDA graphs, which share their memory: no two of them run at once."""

    ahead = 2  # libraries set themselves up in the first ones

    def __init__(self, rng: Rng):
        self.rng, self.stream = rng, torch.cuda.Stream(rng.device)
        self.pool = torch.cuda.graph_pool_handle()

    def warm(self, run: Callable[[], Any]) -> Any:
        here = torch.cuda.current_stream(self.stream.device)
        self.stream.wait_stream(here)
        with torch.cuda.stream(self.stream):
            made = run()
        here.wait_stream(self.stream)
        return made

    def record(
        self, run: Callable[[], tuple[State, Info]], here: State, memory: Sequence[Tensor], well: bool
    ) -> tuple[Info, Callable[[], bool]]:
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self.rng.generator)
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
            new, info = run()
            write(new, here)

        def replay() -> bool:
            graph.replay()
            return True

        return info, replay


class Graph(NamedTuple):
    """Updates of one kind, on batches of one shape."""

    batch: Batch
    info: Info
    replay: Callable[[], bool]


class Updates:
    """The updates of one fit, or of the fits of a posterior that goes on to learn.

    Args:
        posterior: whose updates they are.
        rng: the stream that all of them draw from, until another one is given.
        recorder: None: they run one by one, as `posterior.update` is.

    A graph writes the state that it returns where it has read it; what `kept` returns is not written any more.
    """

    def __init__(self, posterior: Trainable, rng: Rng, recorder: Recorder | None):
        self.posterior, self.recorder, self.recordable = posterior, recorder, True
        self.rng = recorder.rng if recorder else rng
        self._graphs: dict[Hashable, Graph] = {}
        self._seen: dict[Hashable, int] = {}
        self.replays = 0
        self._here: State = None  # what the graphs read and write
        self._constants: tuple[float, ...] = ()  # N and other numbers of the host, as the graphs have them
        self._dials = torch.empty(MOST, dtype=rng.dtype, device=rng.device)
        self._dialled: list[Number] = [math.nan] * MOST  # what they hold

    def __call__(self, state: State, batch: Batch, progress: float) -> tuple[State, Info]:
        """As `posterior.update`."""
        turn = self.posterior.turn(int(state.common.step) + 1, progress) if self.recorder else Turn()
        apart = any(isinstance(number, Tensor) for number in turn.numbers)  # of candidates
        if self.recorder is None or turn.kind is None or apart:
            return self.posterior.update(state, batch, self.rng, progress)
        if (constants := _constants(state)) != self._constants:
            self._graphs, self._seen, self._here, self._constants = {}, {}, None, constants
        for i, number in enumerate(turn.numbers):
            if number != self._dialled[i]:  # each is a launch, and most stay as they are
                self._dials[i].fill_(number)
                self._dialled[i] = number
        key = turn.kind, batch.x.shape, batch.y.shape, _well(state)
        self._seen[key] = self._seen.get(key, 0) + 1
        with dialled(self._dials):
            if self._seen[key] > self.recorder.ahead + CHECKED and self.recordable:
                return self._replayed(self._graphs[key], state, batch, progress)
            generator = self.rng.generator
            before = generator.get_state()
            found: tuple[State, Info] = self.recorder.warm(
                lambda: self.posterior.update(state, batch, self.rng, progress)
            )
            if self._seen[key] <= self.recorder.ahead or not self.recordable:
                return found
            after = generator.get_state()
            generator.set_state(before)
            checked = self._checked(self.recorder, key, state, batch, progress, found)
            generator.set_state(after)
            return checked

    def draw_from(self, rng: Rng) -> None:
        """Go on with the numbers of another stream."""
        if self.recorder is None:
            self.rng = rng
        else:  # the graphs draw from the generator that they were recorded with
            self.rng.generator.set_state(rng.generator.get_state())

    def kept(self, made: Any) -> Any:
        """A copy of a tree of tensors, where graphs would write to it."""
        return tree.map_tensors(torch.clone, made) if self._graphs else made

    def _checked(
        self,
        recorder: Recorder,
        key: Hashable,
        state: State,
        batch: Batch,
        progress: float,
        found: tuple[State, Info],
    ) -> tuple[State, Info]:
        """By a replay; or what was found without one, should that not be the same."""
        alone = found
        try:
            alone = tree.map_tensors(torch.clone, found)  # what did not change stands in the graphs' memory
            if key not in self._graphs:
                self._graphs[key] = self._recorded(recorder, state, batch, progress)
            made, info = self._replayed(self._graphs[key], state, batch, progress)
            replayed = _with_host(made, alone[0]), info  # numbers of the host stay from here on
            if _same(replayed, alone):
                return replayed
            why = "a replay differs from the update"
        except RuntimeError as error:  # of CUDA, or of a library that cannot be recorded
            why = str(error).strip().partition("\n")[0]
        self.recordable, self._graphs, self._here = False, {}, None  # which lets go of their memory
        warnings.warn(f"updates cannot be recorded, and run one by one: {why}", stacklevel=4)
        return alone

    def _recorded(self, recorder: Recorder, state: State, batch: Batch, progress: float) -> Graph:
        if self._here is None:
            self._here = tree.map_tensors(lambda t: t.clone() if t.dim() else t, state)
        here, own = _with_host(self._here, state), Batch(batch.x.clone(), batch.y.clone())

        def run() -> tuple[State, Info]:
            return self.posterior.update(here, own, self.rng, progress)

        return Graph(own, *recorder.record(run, here, (*own, self._dials), _well(state)))

    def _replayed(self, graph: Graph, state: State, batch: Batch, progress: float) -> tuple[State, Info]:
        write(state, self._here)
        write(batch, graph.batch)
        if not graph.replay():
            return self.posterior.update(state, batch, self.rng, progress)
        self.replays += 1
        now = _with_host(self._here, state)
        return now._replace(common=now.common._replace(step=state.common.step + 1)), graph.info


def _well(state: State) -> bool:
    """Whether no replica has failed; a device is not waited for."""
    alive: Tensor = state.common.alive
    return alive.device.type != "cpu" or bool(alive.all())


def _constants(state: State) -> tuple[float, ...]:
    """The numbers that the host keeps, but for the step."""
    return tuple(float(t) for t in tree.tensors(state) if not t.dim() and t is not state.common.step)


def _with_host(mine: State, given: State) -> State:
    """A state in the memory of one, with the numbers of another that the host keeps: those without axes."""
    return tree.map_tensors(lambda own, other: own if own.dim() else other, mine, given)


def write(given: Any, mine: Any) -> None:
    """The values of one tree into the memory of another, all as they are at the start."""
    pairs = list(zip(tree.tensors(given), tree.tensors(mine), strict=True))
    apart = [(a, b) for a, b in pairs if b.dim() and a is not b]
    if not apart:  # as at most replays
        return
    # What stands in that memory may be overwritten before it is read.
    own = {b.untyped_storage().data_ptr() for _, b in pairs}
    safe = [(a.clone() if a.untyped_storage().data_ptr() in own else a, b) for a, b in apart]
    for a, b in safe:
        b.copy_(a)


def _same(ours: Any, theirs: Any) -> bool:
    """Whether all numbers are the same but for rounding, which on a device is another one each time.

    Of many numbers some are small sums of large ones; then a replica's tensor as a whole must be the same.
    """

    def near(a: Tensor, b: Tensor) -> bool:
        a, b = a.double(), b.double()
        if torch.allclose(a, b, 1e-3, 1e-6, equal_nan=True):
            return True
        off, whole = (t.flatten(1).norm(dim=1) if t.dim() > 1 else t.abs() for t in (a - b, b))
        return bool((off <= 1e-4 * whole).all())

    pairs = zip(tree.tensors(ours), tree.tensors(theirs), strict=True)
    return all(near(a, b) for a, b in pairs)
