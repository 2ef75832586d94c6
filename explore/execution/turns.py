"""What changes from update to update though data and states do not: what is due, schedules, corrections of averages."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

Number = float | Tensor
"""A number, or a tensor that holds it: without axes, or [R], each replica's own."""


class Turn(NamedTuple):
    """All that an update reads of the number of its step and of the progress."""

    kind: Hashable = None  # what it branches on; None: it is not to be recorded
    numbers: tuple[Number, ...] = ()  # steps and rates


_dials: Float[Tensor, " _n"] | None = None


def numbers(turn: Turn) -> tuple[Number, ...]:
    """Those of the turn: as they are, or where a recording reads them."""
    return turn.numbers if _dials is None else tuple(_dials[: len(turn.numbers)])


@contextmanager
def dialled(dials: Float[Tensor, " _n"]) -> Iterator[None]:
    """Within it the numbers of turns are read from these tensors."""
    global _dials
    before, _dials = _dials, dials
    try:
        yield
    finally:
        _dials = before
