"""How work is executed: one value for the thread, set at the edge. Nothing else in `explore` is ambient.

Results do not depend on it but for the last digits. `execution` has the names by which it is set: `graphs.use`,
`parallel.within`, `turns.dialled`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch import Tensor


class World(NamedTuple):
    """How many parts every batch has, and which of them are this process's."""

    parts: int = 1
    first: int = 0
    held: int = 1

    @property
    def processes(self) -> int:
        return self.parts // self.held

    @property
    def rank(self) -> int:
        """Of this process, from 0."""
        return self.first // self.held


@dataclass(frozen=True)
class Execution:
    """How work is executed."""

    world: World = World()
    record: bool | None = None  # updates, to replay them; None: where that always wins
    dials: Tensor | None = None  # in which a recording reads the numbers of a step
    host_reads: bool = True  # whether the host may look at the values of tensors on the processor
    assumed: list[Tensor] | None = None  # collects the flags that a recording takes to be true


_execution: ContextVar[Execution] = ContextVar("execution", default=Execution())  # noqa: B039 (it is frozen)


def execution() -> Execution:
    """That of this thread."""
    return _execution.get()


def execute(**changes: Any) -> None:
    """With these changes from now on."""
    _execution.set(replace(_execution.get(), **changes))


@contextmanager
def executing(**changes: Any) -> Iterator[None]:
    """With these changes within it."""
    token = _execution.set(replace(_execution.get(), **changes))
    try:
        yield
    finally:
        _execution.reset(token)
