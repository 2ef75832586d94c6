"""The execution settings of a thread, the only global state; results depend on them in the last digits only."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch import Tensor

Number = float | Tensor
"""A number, or a tensor that holds it: without axes, or [R], each replica's own."""


class World(NamedTuple):
    """The number of parts of a batch, and this process's parts."""

    parts: int = 1
    first: int = 0
    held: int = 1

    @property
    def processes(self) -> int:
        return self.parts // self.held

    @property
    def rank(self) -> int:
        """The number of this process, from 0."""
        return self.first // self.held


@dataclass(frozen=True)
class Execution:
    """Execution settings."""

    world: World = World()
    record: bool | None = None  # whether updates are recorded and replayed; None: where that is always faster
    dials: Tensor | None = None  # the numbers of a step, as a recording reads them
    host_reads: bool = True  # whether the host may read values of tensors on the CPU
    assumed: list[Tensor] | None = None  # flags that a recording takes to be true


_execution: ContextVar[Execution] = ContextVar("execution", default=Execution())  # noqa: B039 (it is frozen)


def execution() -> Execution:
    """Return this thread's settings."""
    return _execution.get()


def execute(**changes: Any) -> None:
    """Change this thread's settings."""
    _execution.set(replace(_execution.get(), **changes))


@contextmanager
def executing(**changes: Any) -> Iterator[None]:
    """Change the settings in a block."""
    token = _execution.set(replace(_execution.get(), **changes))
    try:
        yield
    finally:
        _execution.reset(token)


class Turn(NamedTuple):
    """The step number and the training progress, as an update reads them."""

    kind: Hashable = None  # of branches; None: it is not to be recorded
    numbers: tuple[Number, ...] = ()  # steps and rates


def numbers(turn: Turn) -> tuple[Number, ...]:
    """Return the numbers of the turn, or the tensors from which a recording reads them."""
    dials = execution().dials
    return turn.numbers if dials is None else tuple(dials[: len(turn.numbers)])
