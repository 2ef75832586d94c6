"""Execution settings of a thread, the only global state. Settings other than `World.parts` affect only rounding."""

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch import Tensor

Number = float | Tensor
"""A number as a float, a 0-d tensor, or a tensor [R] with one value per replica."""


class World(NamedTuple):
    """The number of shards of each batch (`parts`); this process computes `held` shards, starting at `first`."""

    parts: int = 1
    first: int = 0
    held: int = 1

    @property
    def processes(self) -> int:
        return self.parts // self.held

    @property
    def rank(self) -> int:
        """The index of this process, from 0."""
        return self.first // self.held


@dataclass(frozen=True)
class Execution:
    """The execution settings of a thread: shards of batches, and the recording of updates."""

    world: World = World()
    record: bool | None = None  # whether updates are recorded and replayed; None: where that is always faster
    dials: Tensor | None = None  # the numbers of a step, in the tensor that recordings read


_execution: ContextVar[Execution] = ContextVar("execution", default=Execution())  # noqa: B039 (it is frozen)


def execution() -> Execution:
    """Return the execution settings of the current thread."""
    return _execution.get()


def execute(**changes: Any) -> None:
    """Change execution settings of the current thread."""
    _execution.set(replace(_execution.get(), **changes))


@contextmanager
def executing(**changes: Any) -> Iterator[None]:
    """Change execution settings of the current thread within a `with` block."""
    token = _execution.set(replace(_execution.get(), **changes))
    try:
        yield
    finally:
        _execution.reset(token)


class Turn(NamedTuple):
    """The inputs of an update that depend on the step number and the training progress."""

    kind: Hashable = None  # identifies the code branches that the update takes; None: do not record this update
    numbers: tuple[float, ...] = ()  # step counts and rates


def numbers(turn: Turn) -> tuple[Number, ...]:
    """Return `turn.numbers`; inside a recorded update, return tensors that are refilled before each replay."""
    dials = execution().dials
    return turn.numbers if dials is None else tuple(dials[: len(turn.numbers)])
