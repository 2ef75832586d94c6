"""Passes of a module, and one pass from several, for modules with parameters that are used by their own code."""

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from explore.core.errors import InputError
from explore.nets.protocols import Layer
from explore.nets.slots.base import tensors_of


class Use(NamedTuple):
    """One call of a layer in a pass, for all replicas and samples."""

    inputs: Tensor
    taps: list[Tensor]  # whose concatenation is the pre-activation
    lead: tuple[int, int, int]  # R, S or 1, and B of the inputs
    per: int  # rows per example, which B includes


class Pass(NamedTuple):
    """The results of a pass."""

    out: Float[Tensor, "R S B O"]
    calls: list[list[Use]]  # by layer
    statistics: tuple[Tensor, ...]  # mean and variance of each batch-norm layer's inputs
    returned: Any = None  # what the module returns


def joined(passes: Sequence[Pass], count: tuple[int, int, int]) -> Pass:
    """Return one pass from those of so many replicas, samples and examples, 1 where a pass has all of them."""
    replicas, members, examples = count
    calls = []
    for uses in zip(*(done.calls for done in passes), strict=True):  # of one layer
        each = []
        for same in zip(*uses, strict=True):
            first: Use = same[0]
            lead = (replicas, members if members > 1 else first.lead[1], first.lead[2] * examples)
            taps = [tap for use in same for tap in use.taps]
            each.append(Use(torch.cat([use.inputs for use in same]), taps, lead, first.per))
        calls.append(each)
    out, *statistics = (
        torch.cat(parts).unflatten(0, count).movedim(2, 3).flatten(1, 2).flatten(2, 3)
        for parts in zip(*((done.out, *done.statistics) for done in passes), strict=True)
    )
    return Pass(out, calls, tuple(statistics))


def part_of(layer: Layer, replica: int, sample: int | None) -> Layer:
    """Return a layer of one replica, and of one sample unless None; a callable layer has tensors [R, ...]."""
    if isinstance(layer, Tensor):
        one = layer[replica : replica + 1]
        return one if sample is None or one.shape[1] == 1 else one[:, sample : sample + 1]
    if sample is not None:
        shared = "a module's own parameters must be point estimates that all samples share"
        raise InputError(f"where weights differ between examples, {shared}")
    own = {name: t[replica : replica + 1] for name, t in tensors_of(layer).items()}
    if isinstance(layer, tuple):
        return layer._replace(**own)
    part = copy.copy(layer)
    vars(part).update(own)
    return part
