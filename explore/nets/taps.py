"""The taps of all layers of a network, from the gradients of their pre-activations."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, cast
from weakref import ref

import torch
from torch import Tensor

from explore.core.shapes import LayerTaps, Taps
from explore.nets.slots import base
from explore.nets.slots.base import Use, WeightSlot, by_row


class Calls:
    """The calls of layers in a pass."""

    def __init__(self, slots: Sequence[WeightSlot], calls: Sequence[list[Use]]):
        self._slots, self._calls = slots, calls
        self.shapes = [(slot.inputs, slot.outputs) for slot in slots]
        self.taps = [tap for uses in calls for use in uses for tap in use.taps]  # the pre-activations
        self._makers: list[list[Callable[[Tensor], Taps]]] = []

    def pulled(self, grads: Iterator[Tensor], dout: Tensor, each: Tensor | None = None) -> LayerTaps:
        """Return the taps of the layers, given the gradients of `taps` in their order.

        `dout` has the shape of the output's gradient, [R, S, B, O], and its type; `each` multiplies the gradients of
        examples, [R, S, B, 1, 1].
        """
        if not self._makers:
            self._makers = [
                [slot.taps_of(use.inputs.detach().to(dout), use.lead) for use in uses]
                for slot, uses in zip(self._slots, self._calls, strict=True)
            ]
        found = []
        for slot, uses, makes in zip(self._slots, self._calls, self._makers, strict=True):
            parts = []
            for use, make in zip(uses, makes, strict=True):
                g = torch.cat([next(grads) for _ in use.taps]) if len(use.taps) > 1 else next(grads)
                g = slot.positions(g.to(dout), (*dout.shape[:2], use.lead[2]))
                parts.append((make(g if each is None else g * by_row(each, use.per)), use.per))
            found.append(parts[0][0] if len(parts) == 1 and parts[0][1] == 1 else base.joined(parts))
        return LayerTaps(found)


def _beside(parts: Sequence[Taps], axis: int) -> Taps:
    """Return the taps of one layer in several passes as those of one, for other samples (axis 1) or examples (2)."""
    if len(parts) == 1:
        return parts[0]
    sizes = [taps.grads.shape[2] for taps in parts]
    starts = [sum(sizes[:i]) for i in range(len(parts))]

    def inputs(examples: slice) -> Tensor:
        if axis == 1:
            return torch.cat([taps.part(examples).inputs for taps in parts], 1)
        first, last, _ = examples.indices(sum(sizes))
        within = [
            slice(min(max(first - s, 0), n), min(max(last - s, 0), n)) for s, n in zip(starts, sizes, strict=True)
        ]
        each = [taps.part(w).inputs for taps, w in zip(parts, within, strict=True) if w.stop > w.start]
        return torch.cat(each, 2)

    return Taps(inputs, torch.cat([taps.grads for taps in parts], axis))


def joined(passes: Sequence[LayerTaps], samples: int) -> LayerTaps:
    """Return the taps of passes, of all samples for the first examples, then for others, as those of one pass."""
    parts = [passes[i : i + samples] for i in range(0, len(passes), samples)]
    layers = range(len(passes[0]))
    return LayerTaps([_beside([_beside([taps[j] for taps in part], 1) for part in parts], 2) for j in layers])


class Record:
    """One forward pass at a weight sample, and what the backward pass tells of it."""

    def __init__(self, net: Any, layers: tuple[Tensor, ...], x: Tensor, sample: int, seed: int):
        done, self.calls = net.traced(layers, x, seed)
        self.returned, self.out = done.returned, done.out.detach()
        self.statistics = tuple(s.detach() for s in done.statistics)
        self.sample, self.y = sample, cast(Tensor | None, None)
        self.heard, self._kept = False, True  # whether a backward pass came, and whether to keep its gradients
        self.grads: list[Tensor | None] = [None] * len(self.calls.taps)
        self.fisher: list[LayerTaps] = []  # of the gradients of drawn targets
        self._graph: Tensor | None = done.out

    def listen(self, factor: Callable[[], float] | None = None, keep: bool = True) -> None:
        """Notice the backward pass to come, and `keep` its gradients, times `factor()`."""
        self._graph, self._kept, record = None, keep, ref(self)  # a hook that holds the record would never be freed

        def heard(i: int, grad: Tensor) -> None:
            if taps := record():
                taps.heard = True
                if taps._kept:
                    grad, before = grad.detach() if factor is None else grad.detach() * factor(), taps.grads[i]
                    taps.grads[i] = grad if before is None else before + grad

        for i, tap in enumerate(self.calls.taps):
            tap.register_hook(partial(heard, i))

    def pullback(self, dout: Tensor) -> LayerTaps:
        """Return the taps of other gradients of the output, and keep them."""
        assert self._graph is not None
        grads = torch.autograd.grad(self._graph, self.calls.taps, dout, retain_graph=True, allow_unused=True)
        self.fisher.append(self._taps(grads, dout))
        return self.fisher[-1]

    def taps(self, factor: float) -> LayerTaps:
        """Return the taps of the backward pass, whose gradients are multiplied by `factor`; empty if not kept."""
        if not self._kept:
            shape, none = (1, 1, self.out.shape[2], 1), self.out.new_zeros(())
            return LayerTaps(Taps(none.expand(*shape, i), none.expand(*shape, o)) for i, o in self.calls.shapes)
        return self._taps([g if g is None else factor * g for g in self.grads], self.out)

    def _taps(self, grads: Iterable[Tensor | None], dout: Tensor) -> LayerTaps:
        every = zip(grads, self.calls.taps, strict=True)
        return self.calls.pulled(iter([torch.zeros_like(tap) if g is None else g for g, tap in every]), dout)
