"""The Fisher matrix F at one point, in each structure: an average over the data, without initial values."""

from collections.abc import Callable, Iterable, Iterator
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from explore.core.errors import InputError
from explore.core.linalg import identity, over
from explore.core.rng import Rng
from explore.core.shapes import Means, Taps
from explore.inference.structures import kronecker
from explore.inference.structures.base import Blocks, Dampings, Diagonal, Factor, each_layer, gradient_moments
from explore.inference.structures.dense import MAX_WEIGHTS, Dense
from explore.inference.structures.kronecker import KroneckerMoments, KroneckerRule, WeightSharing
from explore.inference.structures.low_rank import LowRankFactor, leading

StructureName = Literal["kfac", "ekfac", "diagonal", "full", "low-rank"]
Passes = Callable[[], Iterable[tuple[int, tuple[Taps, ...]]]]
"""Starts a pass over the data, of pairs (number of examples, taps of which F is the mean outer product)."""


def shares(passes: Passes) -> Iterator[tuple[float, tuple[Taps, ...]]]:
    """Yield the taps of each batch, and the weight with which they enter a running mean over examples."""
    examples = 0
    for count, taps in passes():
        examples += count
        yield count / examples, taps


def mean_of(each: Callable[[tuple[Taps, ...]], Means], passes: Passes) -> Means:
    """Return the mean over examples of what `each` returns for the taps of a batch, from one pass."""
    mean: Means = ()
    for share, taps in shares(passes):
        new = each(taps)
        mean = tuple(torch.lerp(a, b, share) for a, b in zip(mean, new, strict=True)) if mean else new
    return mean


def kronecker_moments(rule: KroneckerRule, passes: Passes, rng: Rng) -> tuple[KroneckerMoments, ...]:
    """Return the moments A and S of each layer from one pass; the rule must have beta = 1."""
    moments: tuple[KroneckerMoments, ...] = ()
    for share, taps in shares(passes):  # the share 1 of the first batch overwrites the initial values
        start = moments or tuple(rule.init(*t.shape, len(t.grads), rng) for t in taps)
        moments = tuple(rule.observe(m, t, share, 1) for m, t in zip(start, taps, strict=True))
    return moments


class EachLayer:
    """Layers are independent: F is diagonal or, in the eigenbases of K-FAC, diagonal with or without correction."""

    def __init__(self, shapes: tuple[tuple[int, int], ...], rotated: bool, corrected: bool, sharing: WeightSharing):
        self.shapes, self.rotated, self.corrected = shapes, rotated, corrected
        self.rule, self.passes = KroneckerRule(1.0, "exact", sharing), 2 if rotated and corrected else 1

    def nothing(self, replicas: int, rng: Rng) -> tuple[Diagonal, ...]:
        def eye(n: int) -> Tensor | None:
            return identity(n, rng).repeat(replicas, 1, 1) if self.rotated else None

        zero = torch.zeros(replicas, 1, 1, dtype=rng.dtype, device=rng.device)
        return tuple(Diagonal(zero.repeat(1, i, o), eye(i), eye(o)) for i, o in self.shapes)

    def measured(self, passes: Passes, replicas: int, rng: Rng) -> tuple[Diagonal, ...]:
        if not self.rotated:
            return tuple(map(Diagonal, mean_of(lambda taps: gradient_moments(taps)[1], passes)))
        bases = [kronecker.eigenbasis(moments) for moments in kronecker_moments(self.rule, passes, rng)]

        def squares(taps: tuple[Taps, ...]) -> Means:
            return tuple(kronecker.rotated_squares(t, b.inputs, b.outputs) for t, b in zip(taps, bases, strict=True))

        values = mean_of(squares, passes) if self.corrected else tuple(b.values for b in bases)
        return tuple(Diagonal(v, b.inputs, b.outputs) for v, b in zip(values, bases, strict=True))

    def factor(self, fisher: tuple[Diagonal, ...], damping: Dampings) -> Blocks:
        pairs = zip(fisher, each_layer(damping, len(fisher)), strict=True)
        return Blocks(tuple(f._replace(precision=f.precision + over(c, f.precision)) for f, c in pairs))


class Whole:
    """All weights jointly: F as one matrix, for small networks."""

    passes = 1

    def __init__(self, shapes: tuple[tuple[int, int], ...]):
        if (weights := sum(i * o for i, o in shapes)) > MAX_WEIGHTS:
            many = f"structure full supports at most {MAX_WEIGHTS:,} weights, but there are {weights:,}"
            raise InputError(f'{many}; use "kfac", or subset="last"')
        self.dense = Dense(shapes, 1.0)

    def nothing(self, replicas: int, rng: Rng) -> Float[Tensor, "R W W"]:
        return torch.zeros_like(self.dense.init(self.dense.shapes, replicas, rng))

    def measured(self, passes: Passes, replicas: int, rng: Rng) -> Float[Tensor, "R W W"]:
        fisher = self.nothing(replicas, rng)
        for share, taps in shares(passes):
            fisher = self.dense.observe(fisher, taps, share, 1)
        return fisher

    def factor(self, fisher: Float[Tensor, "R W W"], damping: Dampings) -> Factor:
        return self.dense.factor(fisher, damping)[0]


class LowRank:
    """All weights jointly: the leading eigenvectors of F, plus a diagonal for the rest (as in SLANG)."""

    passes, iterations = 1, 4

    def __init__(self, shapes: tuple[tuple[int, int], ...], rank: int):
        self.shapes, self.rank = shapes, min(rank, sum(i * o for i, o in shapes))

    def nothing(self, replicas: int, rng: Rng) -> LowRankFactor:
        zeros = tuple(torch.zeros(replicas, i, o, dtype=rng.dtype, device=rng.device) for i, o in self.shapes)
        return LowRankFactor(tuple(z.unsqueeze(1).repeat(1, self.rank, 1, 1) for z in zeros), zeros)

    def measured(self, passes: Passes, replicas: int, rng: Rng) -> LowRankFactor:
        columns, diagonal = self.nothing(replicas, rng)
        for share, taps in shares(passes):
            new, _ = leading(columns, taps, 1 - share, share, self.iterations, rng)
            rest = []
            for u, v, d, h in zip(columns, new, diagonal, gradient_moments(taps)[1], strict=True):
                exact = (1 - share) * (u.square().sum(1) + d) + share * h
                rest.append((exact - v.square().sum(1)).clamp_min(0))  # negative only through rounding
            columns, diagonal = new, tuple(rest)
        return LowRankFactor(columns, diagonal)

    def factor(self, fisher: LowRankFactor, damping: Dampings) -> LowRankFactor:
        pairs = zip(fisher.diagonal, each_layer(damping, len(fisher.diagonal)), strict=True)
        return LowRankFactor(fisher.columns, tuple(d + over(c, d) for d, c in pairs))


Curvature = EachLayer | Whole | LowRank
"""A structure of F, for layers of the shapes that it was created with.

It has the methods `nothing`, F = 0; `measured`, F from the data in so many `passes`; and `factor`, F + damping.
"""


def structure(name: StructureName, shapes: tuple[tuple[int, int], ...], rank: int, sharing: WeightSharing) -> Curvature:
    """Return the structure of this name, for layers of these shapes."""
    if name == "full":
        return Whole(shapes)
    if name == "low-rank":
        return LowRank(shapes, rank)
    return EachLayer(shapes, name != "diagonal", name == "ekfac", sharing)
