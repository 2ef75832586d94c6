"""The memory of transitions that a bonus learns from."""

from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor

from explore.core.rng import Rng

SCALED = 2**20  # numbers from which scales are computed


class Replay:
    """A buffer of the last `capacity` transitions: I inputs (observation and action), O outputs (next observation)."""

    def __init__(self, capacity: int, inputs: int, outputs: int, device: str | torch.device = "cpu"):
        self.capacity, self.total = capacity, 0
        # The operating system allocates only rows that are written, so unused rows cost no memory.
        self._inputs = torch.empty(capacity, inputs, device=device)
        self._next = torch.empty(capacity, outputs, device=device)

    def __len__(self) -> int:
        return min(self.total, self.capacity)

    @property
    def inputs(self) -> Float[Tensor, "n I"]:
        """Observations and actions of all transitions, in arbitrary order."""
        return self._inputs[: len(self)]

    @property
    def next(self) -> Float[Tensor, "n O"]:
        """The next observations of all transitions, in the order of `inputs`."""
        return self._next[: len(self)]

    def add(self, inputs: Float[Tensor, "n I"], following: Float[Tensor, "n O"]) -> None:
        """Store transitions, ordered from oldest to newest."""
        inputs, following = inputs[-self.capacity :], following[-self.capacity :]
        rows = self._rows(self.total, len(inputs))
        self._inputs[rows], self._next[rows] = inputs, following
        self.total += len(inputs)

    def last(self, n: int) -> tuple[Float[Tensor, "n I"], Float[Tensor, "n O"]]:
        """Return the newest n transitions (all if there are fewer), ordered from oldest to newest."""
        n = min(n, len(self))
        rows = self._rows(self.total - n, n)
        return self._inputs[rows], self._next[rows]

    def unlearned(self, learned: Tensor, scaled: Tensor) -> tuple[bool, tuple[Tensor, Tensor]]:
        """Return whether scales are due, and the transitions [n, I] and [n, O] to learn, from oldest to newest.

        `learned` is the total at the last training, `scaled` that when scales were last computed. Scales are due once
        the total has doubled; then all transitions are to be learned, otherwise the new ones.
        """
        due = self.total >= 2 * int(scaled)
        return due, self.last(len(self) if due else self.total - int(learned))

    def sample(self, rng: Rng, n: int | None = None) -> tuple[Float[Tensor, "n I"], Float[Tensor, "n O"]]:
        """Return n transitions drawn with replacement, or all if there are fewer. Default: enough to compute scales."""
        n = n or max(SCALED // self._inputs.shape[1], 1024)
        if len(self) <= n:
            return self.inputs, self.next
        rows = (rng.uniform(1, n)[0] * len(self)).long()
        return self.inputs[rows], self.next[rows]

    def state_dict(self) -> dict[str, Tensor]:
        """Return all stored transitions, ordered from oldest to newest."""
        inputs, following = self.last(len(self))
        return {"inputs": inputs, "next": following, "seen": torch.tensor(self.total)}

    def load_state_dict(self, saved: Mapping[str, Tensor]) -> None:
        """Resume from the `state_dict` of a replay with the same sizes."""
        self.total = int(saved["seen"]) - len(saved["inputs"])
        self.add(saved["inputs"].to(self._inputs), saved["next"].to(self._next))

    def _rows(self, first: int, n: int) -> Int[Tensor, " n"]:
        return torch.arange(first, first + n, device=self._inputs.device) % self.capacity
