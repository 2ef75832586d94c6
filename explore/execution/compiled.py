"""Updates compiled by torch.compile for a processor, which fuses their operations.

`Inductor` is the `Recorder` of `execution.graphs` for processors. An update is traced, with random numbers drawn before
it from the same stream, and compiled once for each kind of update and each shape of batch: in up to half a minute, or
some seconds where torch has compiled the same before. Compiled updates differ from plain ones in the last digits.

The conditions of an update's shortcuts (all matrices are positive definite, all replicas are healthy) are assumed.
Where one is wrong, nothing has changed yet, and the plain update runs. Once a replica has failed, no shortcut is taken.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from explore.core import tree
from explore.core.rng import Kind, Rng

Draw = tuple[Kind, tuple[int, ...]]
"""A function of torch that draws numbers, and their shape."""


class Drawn(Rng):
    """A stream that records its draws, or returns prepared numbers."""

    def __init__(self, rng: Rng):
        vars(self).update(vars(rng))
        self.noted: list[Draw] | None = None
        self.prepared: Iterator[Tensor] | None = None

    def draw(self, kind: Kind, shape: tuple[int, ...]) -> Tensor:
        if self.prepared is not None:
            return next(self.prepared)
        if self.noted is not None:
            self.noted.append((kind, shape))
        return super().draw(kind, shape)

    def redraw(self, wanted: Sequence[Draw]) -> list[Tensor]:
        """Draw numbers again in the order of a recording."""
        return [super(Drawn, self).draw(*each) for each in wanted]


class Inductor:
    """Compiled updates; a `Recorder`."""

    ahead = 0  # a fit that is resumed has compiled updates from its first one on

    def __init__(self, rng: Rng, backend: str | None = "inductor"):
        self.rng, self.backend = Drawn(rng), backend  # None: updates are traced and not compiled

    def warm(self, run: Callable[[], Any]) -> Any:
        return run()

    def record(
        self, run: Callable[[], tuple[Any, Any]], place: Any, memory: Sequence[Tensor], healthy: bool
    ) -> tuple[Any, Callable[[], bool]]:
        # Torch's compiler takes a second to import.
        from torch.fx.experimental.proxy_tensor import make_fx

        generator, inputs = self.rng.generator, [*(t for t in tree.tensors(place) if t.dim()), *memory]
        start = generator.get_state()
        wanted = self.rng.noted = list[Draw]()
        info = tree.map_tensors(torch.clone, run()[1])
        self.rng.noted = None
        drawn = self.rng.redraw(wanted)
        generator.set_state(start)  # a recording alone changes nothing

        def flat(*tensors: Tensor) -> list[Tensor]:
            self.rng.prepared = iter(tensors[len(inputs) :])
            try:
                with tree.assumed() if healthy else tree.unlooked() as flags:
                    new, info = run()
            finally:
                self.rng.prepared = None
            state = [t for t in tree.tensors(new) if t.dim()]
            right = torch.stack(flags).all() if flags else torch.ones((), dtype=torch.bool)
            return [right, *state, *tree.tensors(info)]

        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # of torch about itself
            compiled: Any = make_fx(flat)(*inputs, *drawn)
            compiled = torch.compile(compiled, dynamic=False, backend=self.backend) if self.backend else compiled
            compiled(*inputs, *drawn)
        results = [*inputs[: len(inputs) - len(memory)], *tree.tensors(info)]

        def replay() -> bool:
            before = generator.get_state()
            with torch.no_grad():
                right, *values = compiled(*inputs, *self.rng.redraw(wanted))
            if not right:
                generator.set_state(before)
                return False
            for result, new in zip(results, values, strict=True):
                result.copy_(new)
            return True

        return info, replay
