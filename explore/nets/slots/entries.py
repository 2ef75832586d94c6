"""The slots for parameters that are no weights of a layer: scales, shifts, and those that a module's own code uses.

n entries are a weight matrix [1, n], as of a layer whose only input is the constant 1. Its pre-activation is the
parameter itself, once for each example.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from explore.nets.slots.base import Lead, WeightSlot


class Entries(WeightSlot):
    """A slot for parameters of any shape."""

    inputs = fan_in = 1
    sizes: dict[str, torch.Size]  # of the parameters, by name
    centre: Mapping[str, float] = {}  # what is added to entries, as their prior has mean 0

    def _measure(self, parameters: Mapping[str, Tensor | None]) -> None:
        self.sizes = {key: t.shape for key, t in parameters.items() if t is not None}
        self.outputs, self.has_bias = sum(map(math.prod, self.sizes.values())), True

    def values(self, tensors: Mapping[str, Tensor]) -> Tensor:
        return torch.cat([tensors[key].flatten() - self.centre.get(key, 0.0) for key in self.sizes]).unsqueeze(0)

    def tensors(self, values: Tensor) -> dict[str, Tensor]:
        return self.split(values.squeeze(0))

    def split(self, entries: Tensor) -> dict[str, Tensor]:
        """Return the parameters, from entries [..., n]."""
        parts = entries.split([math.prod(size) for size in self.sizes.values()], -1)
        named = zip(self.sizes.items(), parts, strict=True)
        return {key: t.reshape(*t.shape[:-1], *size) + self.centre.get(key, 0.0) for (key, size), t in named}

    def misfit(self, shape: torch.Size) -> str:
        return ""

    def apply_matrix(self, a: Tensor) -> Tensor:
        """Repeat the entries for every example: [(R S B), n]."""
        r, s, b = self.lead
        return self._values.expand(r, s, b, self.outputs).flatten(0, 2)

    def examples(self, a: Tensor, lead: Lead) -> Tensor:
        return a.new_ones(*lead, 1, 1)

    def positions(self, g: Tensor, lead: Lead) -> Tensor:
        return g.reshape(*lead, 1, -1)

    def fold(self, h: Tensor, a: Tensor) -> Tensor:
        return h.reshape(-1, self.outputs)


class AffineEntries(Entries):
    """A slot for a normalisation of each example, with a distribution over its scale and shift."""

    centre = {"weight": 1.0}

    def __init__(self, layer: nn.Module, name: str):
        super().__init__(layer, name)
        self._measure(layer._parameters)

    def _computed(self, a: Tensor, per: int) -> Tensor:
        entries = super()._computed(a.new_ones(len(a), 1), per).unflatten(0, self.lead)
        return self.applied(a, self.split(entries))


class OwnEntries(Entries):
    """A slot for a parameter that the module's own code uses; the module runs one example at a time for its taps."""

    def __init__(self, key: str, parameter: Tensor):
        nn.Module.__init__(self)
        self.name, _, self._key = key.rpartition(".")
        self.called, self.layouts = f"parameter {key!r}", ()
        self._measure({self._key: parameter})
        self.end()

    def parameter(self) -> Tensor:
        """Return the parameter in the current pass."""
        mode, values = self._mode, self._values
        if not mode.probe:
            self._mode = mode._replace(lead=(1, 1, 1))
        entries: Tensor = self(values.new_ones(math.prod(self._mode.lead), 1))
        return self.split(entries[0])[self._key]
