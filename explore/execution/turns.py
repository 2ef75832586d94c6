"""What changes from update to update though data and states do not: what is due, schedules, corrections of averages."""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from jaxtyping import Float
from torch import Tensor

from explore.core.context import executing, execution

Number = float | Tensor
"""A number, or a tensor that holds it: without axes, or [R], each replica's own."""


class Turn(NamedTuple):
    """All that an update reads of the number of its step and of the progress."""

    kind: Hashable = None  # what it branches on; None: it is not to be recorded
    numbers: tuple[Number, ...] = ()  # steps and rates


def numbers(turn: Turn) -> tuple[Number, ...]:
    """Those of the turn: as they are, or where a recording reads them."""
    dials = execution().dials
    return turn.numbers if dials is None else tuple(dials[: len(turn.numbers)])


def dialled(dials: Float[Tensor, " _n"]) -> AbstractContextManager[Any]:
    """Within it the numbers of turns are read from these tensors."""
    return executing(dials=dials)
