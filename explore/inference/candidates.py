"""Candidates: posteriors that differ only in their `by_replica` settings, fitted together as replicas of one posterior.

K candidates on R data sets become one posterior with K R replicas, ordered by candidate. With an `Rng` of K arms each
candidate gets the same random numbers as in a separate fit, except for noise samples on a GPU.
"""

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
    """Return the class's own `by_replica`, ignoring base classes: a subclass may not support tensors as settings."""
    return vars(cls).get("by_replica", frozenset())


def alike(cls: type[Predictive], settings: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether candidates with these settings differ in numeric `by_replica` settings only (see `together`)."""
    first = settings[0]
    different = {name for each in settings for name in each if each[name] != first[name]}
    numbers = all(isinstance(each[name], int | float) for each in settings for name in different)
    return different <= by_replica(cls) and numbers


def together(posteriors: Sequence[Predictive], replicas: int, rng: Rng) -> Predictive:
    """Combine `alike` candidates with equal networks into one posterior for training, with `replicas` per candidate."""
    first = posteriors[0]
    if len(posteriors) == 1:
        return first
    if isinstance(first, Mixture):
        inner = [p.posterior for p in posteriors if isinstance(p, Mixture)]
        return replace(first, posterior=together(inner, replicas * first.members, rng))
    settings = {f.name: [getattr(p, f.name) for p in posteriors] for f in fields(first) if f.name in first.by_replica}
    different = {name: [float(v) for v in values] for name, values in settings.items() if len(set(values)) > 1}
    return _with(first, {name: rng.tensor(values).repeat_interleave(replicas) for name, values in different.items()})


def blocks(candidates: int, replicas: int) -> list[slice]:
    """Return, for each candidate, the slice of its replicas in the combined posterior."""
    return [slice(k * replicas, (k + 1) * replicas) for k in range(candidates)]


def part(posterior: Predictive, rows: Tensor) -> Predictive:
    """Return the posterior for a subset of the replicas, given by their indices `rows`."""
    if isinstance(posterior, Mixture):
        members = torch.arange(posterior.members, device=rows.device)
        each = (rows.unsqueeze(1) * posterior.members + members).flatten()
        return replace(posterior, posterior=part(posterior.posterior, each))
    settings = {f.name: getattr(posterior, f.name) for f in fields(posterior)}
    return _with(posterior, {n: v[rows] for n, v in settings.items() if isinstance(v, Tensor)})


def _with(posterior: Predictive, settings: Mapping[str, Tensor]) -> Predictive:
    """Return a copy with these tensors as settings, without validation."""
    changed = copy.copy(posterior)
    for name, values in settings.items():
        object.__setattr__(changed, name, values)
    return changed
