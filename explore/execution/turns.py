"""The inputs of an update that change from step to step: due work, schedules, corrections of averages."""

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
    """Everything that an update reads of the number of its step and of the progress."""

    kind: Hashable = None  # of branches; None: it is not to be recorded
    numbers: tuple[Number, ...] = ()  # steps and rates


def numbers(turn: Turn) -> tuple[Number, ...]:
    """Return the numbers of the turn, or the tensors from which a recording reads them."""
    dials = execution().dials
    return turn.numbers if dials is None else tuple(dials[: len(turn.numbers)])


def dialled(dials: Float[Tensor, " _n"]) -> AbstractContextManager[Any]:
    """Read the numbers of turns from these tensors."""
    return executing(dials=dials)
