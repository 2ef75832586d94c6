"""The Fisher matrix F of all weights jointly, as one matrix or as low-rank plus diagonal; see `curvature`."""

import torch
from jaxtyping import Float
from torch import Tensor

from explore.core.errors import InputError
from explore.core.linalg import over
from explore.core.rng import Rng
from explore.inference.structures.base import Dampings, Factor, each_layer, gradient_moments
from explore.inference.structures.curvature import Passes, shares
from explore.inference.structures.dense import MAX_WEIGHTS, Dense
from explore.inference.structures.leading import leading
from explore.inference.structures.low_rank import LowRankFactor


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

    def measured(self, passes: Passes, rng: Rng) -> Float[Tensor, "R W W"]:
        fisher: Tensor | None = None
        for share, taps in shares(passes):
            start = self.nothing(len(taps[0].grads), rng) if fisher is None else fisher
            fisher = self.dense.observe(start, taps, share, 1)
        assert fisher is not None
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

    def measured(self, passes: Passes, rng: Rng) -> LowRankFactor:
        fisher: LowRankFactor | None = None
        for share, taps in shares(passes):
            columns, diagonal = self.nothing(len(taps[0].grads), rng) if fisher is None else fisher
            new, _ = leading(columns, taps, 1 - share, share, self.iterations, rng)
            rest = []
            for u, v, d, h in zip(columns, new, diagonal, gradient_moments(taps)[1], strict=True):
                exact = (1 - share) * (u.square().sum(1) + d) + share * h
                rest.append((exact - v.square().sum(1)).clamp_min(0))  # negative only through rounding
            fisher = LowRankFactor(new, tuple(rest))
        assert fisher is not None
        return fisher

    def factor(self, fisher: LowRankFactor, damping: Dampings) -> LowRankFactor:
        pairs = zip(fisher.diagonal, each_layer(damping, len(fisher.diagonal)), strict=True)
        return LowRankFactor(fisher.columns, tuple(d + over(c, d) for d, c in pairs))
