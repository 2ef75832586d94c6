"""The transitions a dynamics model learns from."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor


class Replay:
    """The last `capacity` transitions, first in, first out.

    A transition is stored whole, so that none ever pairs the end of one episode with the start of the next.

    Args:
        capacity: how many transitions are kept.
        inputs: I, size of an observation and an action together.
        outputs: O, size of an observation.
        device: where they are kept.
    """

    def __init__(self, capacity: int, inputs: int, outputs: int, device: str | torch.device = "cpu"):
        self.capacity, self.seen = capacity, 0
        # The system gives memory to the rows that are written, so an unfilled one costs nothing.
        self._inputs = torch.empty(capacity, inputs, device=device)
        self._next = torch.empty(capacity, outputs, device=device)

    def __len__(self) -> int:
        return min(self.seen, self.capacity)

    @property
    def inputs(self) -> Float[Tensor, "n I"]:
        """Observation and action of every transition, in no particular order."""
        return self._inputs[: len(self)]

    @property
    def next(self) -> Float[Tensor, "n O"]:
        """The observations that followed."""
        return self._next[: len(self)]

    def add(self, inputs: Float[Tensor, "n I"], following: Float[Tensor, "n O"]) -> None:
        """Store transitions, the oldest first."""
        inputs, following = inputs[-self.capacity :], following[-self.capacity :]
        rows = self._rows(self.seen, len(inputs))
        self._inputs[rows], self._next[rows] = inputs, following
        self.seen += len(inputs)

    def last(self, n: int) -> tuple[Float[Tensor, "n I"], Float[Tensor, "n O"]]:
        """The newest n transitions, the oldest of them first."""
        rows = self._rows(self.seen - n, n)
        return self._inputs[rows], self._next[rows]

    def state_dict(self) -> dict[str, Tensor]:
        """Everything stored, the oldest first."""
        inputs, following = self.last(len(self))
        return {"inputs": inputs, "next": following, "seen": torch.tensor(self.seen)}

    def load_state_dict(self, saved: Mapping[str, Tensor]) -> None:
        """Continue from a `state_dict` of a replay of the same sizes."""
        self.seen = int(saved["seen"]) - len(saved["inputs"])
        self.add(saved["inputs"].to(self._inputs), saved["next"].to(self._next))

    def _rows(self, first: int, n: int) -> Int[Tensor, " n"]:
        return torch.arange(first, first + n, device=self._inputs.device) % self.capacity
