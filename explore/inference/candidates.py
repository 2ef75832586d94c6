"""Candidates: posteriors that differ in a few numbers, fitted as the replicas of one.

Each posterior names in `by_replica` the settings of which every replica may have its own value: a tensor [R] in place
of the number. K candidates on R data sets each are then one posterior with K R replicas, candidate by candidate, whose
updates cost little more than those of one where nets are small. With a stream of K arms each gets the random numbers
that it gets alone, but for the noise's on a GPU.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from explore.core.rng import Rng
from explore.inference.base import Predictive
from explore.inference.members import Mixture


def by_replica(cls: type[Predictive]) -> frozenset[str]:
    """What the class itself says; a child may read as a number what its parent takes as a tensor."""
    return vars(cls).get("by_replica", frozenset())


def alike(cls: type[Predictive], settings: Sequence[Mapping[str, Any]]) -> bool:
    """Whether posteriors of a class with these settings can be `together`: they differ in such numbers alone."""
    first = settings[0]
    different = {name for own in settings for name in own if own[name] != first[name]}
    return different <= by_replica(cls) and all(
        isinstance(own[name], int | float) for own in settings for name in different
    )


def together(posteriors: Sequence[Predictive], replicas: int, rng: Rng) -> Predictive:
    """One posterior for that of each data set by each candidate, to be trained alone: its density is not asked for.

    Args:
        posteriors: the candidates, which are `alike`, on equal nets.
        replicas: data sets that each is fitted to.
        rng: for the place and the precision of the settings.
    """
    first = posteriors[0]
    if len(posteriors) == 1:
        return first
    if isinstance(first, Mixture):
        inner = [p.posterior for p in posteriors if isinstance(p, Mixture)]
        return replace(first, posterior=together(inner, replicas * first.members, rng))
    given = {f.name: [getattr(p, f.name) for p in posteriors] for f in fields(first) if f.name in first.by_replica}
    different = {name: [float(v) for v in values] for name, values in given.items() if len(set(values)) > 1}
    return _with(first, {name: rng.tensor(values).repeat_interleave(replicas) for name, values in different.items()})


def blocks(candidates: int, replicas: int) -> list[slice]:
    """The replicas of each candidate."""
    return [slice(k * replicas, (k + 1) * replicas) for k in range(candidates)]


def part(posterior: Predictive, rows: Tensor) -> Predictive:
    """The posterior of some of the replicas."""
    if isinstance(posterior, Mixture):
        members = torch.arange(posterior.members, device=rows.device)
        each = (rows.unsqueeze(1) * posterior.members + members).flatten()
        return replace(posterior, posterior=part(posterior.posterior, each))
    own = {f.name: getattr(posterior, f.name) for f in fields(posterior)}
    return _with(posterior, {n: v[rows] for n, v in own.items() if isinstance(v, Tensor)})


def _with(posterior: Predictive, settings: Mapping[str, Tensor]) -> Predictive:
    """A copy with tensors as settings, of which each number has been checked."""
    if not settings:
        return posterior
    made = copy.copy(posterior)
    for name, values in settings.items():
        object.__setattr__(made, name, values)
    return made
