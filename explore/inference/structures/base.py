"""Structures of the Fisher matrix, and their shared parts.

A `Structure` keeps running statistics of the Fisher matrix F. Given a damping, it returns a `Factor`, the positive
definite matrix F + damping over all weights of all layers. `PerLayer` applies a `Rule`, the structure of one layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from explore.core.context import Number
from explore.core.linalg import added, chunks, held, product, rows_times, triangle_times
from explore.core.rng import Rng
from explore.core.shapes import Means, Taps, Weights
from explore.execution import parallel

Statistics = Any
Vectors = tuple[Float[Tensor, "*N _I _O"], ...]
Damping = float | Float[Tensor, " R"]
"""A term added to the diagonal of the Fisher matrix of a layer: a number, one per replica, or one per weight row."""
Dampings = Damping | tuple[Damping, ...]
"""One damping for all layers, or one per layer."""
FEW = 9  # maximum number of positions for which squared gradients are computed from pairs of positions


@runtime_checkable
class Factor(Protocol):
    """The matrix P = F + damping, [R, W, W], in implicit form. Vectors are tuples of [R, S, I, O], one per layer."""

    def solve(self, v: Weights) -> Weights: ...  # P^-1 v
    def root(self, eps: Weights) -> Weights: ...  # X eps with X X^T = P^-1, to sample with covariance P^-1
    def logdet(self) -> Float[Tensor, " R"]: ...  # log |P|
    def variance(self) -> Means: ...  # the diagonal of P^-1
    def quad(self, taps: tuple[Taps, ...]) -> Float[Tensor, "R B"]: ...  # g_b^T P^-1 g_b, g_b averaged over S first
    # |P^-1/2 D P^-1/2|_F^2, with D = E_s[g_b g_b^T] projected onto the matrices that the structure can represent
    def curvature(self, taps: tuple[Taps, ...]) -> Float[Tensor, "R B"]: ...


@runtime_checkable
class Structure(Protocol):
    """A structure of the Fisher matrix F, with methods on its running statistics.

    `observe` updates the running statistics with a batch; `schedule` multiplies the averaging rates. Steps count from
    1; work with an interval is due at multiples of the interval. `factor` returns F + damping, and for which replicas
    this succeeded. `start_share` returns the largest ratio of initial to current mean diagonal of any layer.
    """

    def init(self, shapes: tuple[tuple[int, int], ...], replicas: int, rng: Rng) -> Statistics: ...
    def observe(self, statistics: Statistics, taps: tuple[Taps, ...], schedule: Number, step: int) -> Statistics: ...
    def factor(self, statistics: Statistics, damping: Dampings) -> tuple[Factor, Bool[Tensor, " R"]]: ...
    def start_share(self, statistics: Statistics) -> Float[Tensor, " R"]: ...


Block = Any
"""A `Factor` of one layer, with the same methods for the tensors [R, S, I, O] and taps of that layer."""
Rule = Any
"""A `Structure` of one layer; `init` takes the numbers of inputs and outputs."""


class Blocks(NamedTuple):
    """A block-diagonal factor with one block per layer."""

    blocks: tuple[Block, ...]

    def solve(self, v: Weights) -> Weights:
        return tuple(b.solve(x) for b, x in zip(self.blocks, v, strict=True))

    def root(self, eps: Weights) -> Weights:
        return tuple(b.root(e) for b, e in zip(self.blocks, eps, strict=True))

    def logdet(self) -> Float[Tensor, " R"]:
        return torch.stack([b.logdet() for b in self.blocks]).sum(0)

    def variance(self) -> Means:
        return tuple(b.variance() for b in self.blocks)

    def quad(self, taps: tuple[Taps, ...]) -> Float[Tensor, "R B"]:
        return torch.stack([b.quad(t) for b, t in zip(self.blocks, taps, strict=True)]).sum(0)

    def curvature(self, taps: tuple[Taps, ...]) -> Float[Tensor, "R B"]:
        return torch.stack([b.curvature(t) for b, t in zip(self.blocks, taps, strict=True)]).sum(0)


class PerLayer:
    """A block-diagonal structure that applies one rule to each layer."""

    def __init__(self, rule: Rule):
        self.rule = rule

    def init(self, shapes: tuple[tuple[int, int], ...], replicas: int, rng: Rng) -> Statistics:
        return tuple(self.rule.init(i, o, replicas, rng) for i, o in shapes)

    def observe(self, statistics: Statistics, taps: tuple[Taps, ...], schedule: Number, step: int) -> Statistics:
        return tuple(self.rule.observe(q, t, schedule, step) for q, t in zip(statistics, taps, strict=True))

    def factor(self, statistics: Statistics, damping: Dampings) -> tuple[Blocks, Bool[Tensor, " R"]]:
        return gathered(work() for work in self.each_factor(statistics, damping))

    def each_factor(self, statistics: Statistics, damping: Dampings) -> list[Callable[[], tuple[Block, Tensor]]]:
        """Return one function per layer, which returns (block, replicas for which the factorisation succeeded)."""
        pairs = zip(statistics, each_layer(damping, len(statistics)), strict=True)
        return [partial(self.rule.factor, q, c) for q, c in pairs]

    def start_share(self, statistics: Statistics) -> Float[Tensor, " R"]:
        return torch.stack([self.rule.start_share(q) for q in statistics]).amax(0)


def gathered(results: Iterable[tuple[Block, Tensor]]) -> tuple[Blocks, Bool[Tensor, " R"]]:
    """Combine the blocks of all layers into a factor; also return for which replicas all blocks succeeded."""
    blocks, oks = zip(*results, strict=True)
    return Blocks(blocks), torch.stack(oks).all(0)


def each_layer(damping: Dampings, layers: int) -> tuple[Damping, ...]:
    """Return the damping of each layer."""
    return damping if isinstance(damping, tuple) else (damping,) * layers


def two_sided(first: Tensor, x: Tensor, last: Tensor, upper: bool | None = None) -> Tensor:
    """Return first^T x last: [R, J, I], [R, S, J, P], [R, P, O] -> [R, S, I, O].

    `upper`: whether first^T is upper (True) or lower (False) triangular; None for a general matrix.
    """
    r, s, i, o = x.shape
    times = product if upper is None else partial(triangle_times, upper=upper)
    if s == 1:
        return times(first.mT, product(x.squeeze(1), last)).unsqueeze(1)
    # Both products have samples along their long axis, and the only copy, between them, moves contiguous rows.
    y = product(x.reshape(r, s * i, o), last).unflatten(1, (s, i)).transpose(1, 2)  # [R, J, S, O]
    return times(first.mT, y.reshape(r, i, -1)).unflatten(2, (s, -1)).transpose(1, 2)


def rotate(taps: Taps, inputs: Float[Tensor, "R I I"], outputs: Float[Tensor, "R O O"]) -> Taps:
    """Rotate taps to Q_A^T a and Q_S^T g, with orthonormal bases Q_A = `inputs` and Q_S = `outputs` in columns."""

    def rotated(examples: slice) -> Tensor:
        return rows_times(taps.part(examples).inputs, inputs)

    return Taps(rotated, rows_times(taps.grads, outputs))


class Diagonal(NamedTuple):
    """The block diag(precision) of one layer or, given orthonormal bases, Q diag(precision) Q^T.

    Here Q = Q_A (x) Q_S, with the bases Q_A = `inputs` and Q_S = `outputs`.
    """

    precision: Float[Tensor, "R I O"]
    inputs: Any = None  # Q_A [R, I, I], eigenvectors in columns
    outputs: Any = None  # Q_S [R, O, O]

    def solve(self, v: Tensor) -> Tensor:
        return self._from(self._to(v) / self.precision.unsqueeze(1))

    def root(self, eps: Tensor) -> Tensor:
        # The symmetric root. Without the first rotation the covariance would be the same. But the basis of the null
        # space of a rank-deficient factor is arbitrary, so rounding errors could change the whole sample.
        return self._from(self._to(eps) * self.precision.rsqrt().unsqueeze(1))

    def logdet(self) -> Float[Tensor, " R"]:
        return self.precision.log().sum((1, 2))

    def variance(self) -> Float[Tensor, "R I O"]:
        if self.inputs is None:
            return 1 / self.precision
        return torch.einsum("rij,rjp,rop->rio", self.inputs.square(), 1 / self.precision, self.outputs.square())

    def quad(self, taps: Taps) -> Float[Tensor, "R B"]:
        return torch.einsum("rbio,rio->rb", mean_gradients(self._rotated(taps)).square(), 1 / self.precision)

    def curvature(self, taps: Taps) -> Float[Tensor, "R B"]:
        """Return `Factor.curvature` with D = E_s[g_b g_b^T] projected onto diagonal matrices in the block's bases."""
        squares = mean_square_gradients(self._rotated(taps))
        return torch.einsum("rbio,rio->rb", squares.square(), self.precision**-2)

    def _to(self, v: Tensor) -> Tensor:
        return v if self.inputs is None else two_sided(self.inputs, v, self.outputs)

    def _from(self, v: Tensor) -> Tensor:
        return v if self.inputs is None else two_sided(self.inputs.mT, v, self.outputs.mT)

    def _rotated(self, taps: Taps) -> Taps:
        return taps if self.inputs is None else rotate(taps, self.inputs, self.outputs)


def dot(u: Vectors, v: Vectors) -> Float[Tensor, "*N"]:
    """Return the inner products of vectors over all weights."""
    return torch.stack([(a * b).sum((-2, -1)) for a, b in zip(u, v, strict=True)]).sum(0)


def mean_gradients(taps: Taps) -> Float[Tensor, "R B I O"]:
    """Return E_s[g_b], the weight gradient of each example, averaged over samples."""
    return torch.einsum("rsbti,rsbto->rbio", taps.inputs, taps.grads) / taps.grads.shape[1]


def sample_gradients(taps: Taps) -> Float[Tensor, "R S B I O"]:
    """Return the weight gradient of each example at each sample."""
    return torch.einsum("rsbti,rsbto->rsbio", taps.inputs, taps.grads)


def example_gradients(taps: tuple[Taps, ...], budget: int | None = None) -> Iterator[tuple[Tensor, ...]]:
    """Yield per-example gradients in chunks of b >= 1 examples, tuples of [R, S, b, I, O], within `budget` values."""
    r, s, n = taps[0].grads.shape[:3]
    for part in chunks(n, r * s * sum(math.prod(t.shape) for t in taps), budget or held(taps[0].grads)):
        yield tuple(sample_gradients(t.part(part)) for t in taps)


def mean_square_gradients(taps: Taps) -> Float[Tensor, "R B I O"]:
    """Return E_s[g_b^2] for the weight gradient g_b of each example, summed over positions before squaring."""
    g = taps.grads
    if g.shape[3] == 1:
        a = taps.inputs
        return torch.einsum("rsbi,rsbo->rbio", a.squeeze(3).square(), g.squeeze(3).square()) / g.shape[1]
    squares = sample_gradients(taps).square()
    return squares.squeeze(1) if squares.shape[1] == 1 else squares.mean(1)


def _squares_by_pairs(taps: Taps, budget: int) -> Float[Tensor, "R I O"]:
    """Return `mean_squares` by (sum_t a_t g_t)^2 = sum_tu (a_t a_u)(g_t g_u), without per-example gradients."""
    g, t = taps.grads, taps.grads.shape[3]
    sums = []
    for examples in chunks(g.shape[2], g.shape[0] * g.shape[1] * t * (t + 1) // 2 * max(taps.shape), budget):
        part = taps.part(examples)
        a, b = _pairs(part.inputs, 1), _pairs(part.grads, 2)  # t, u and u, t are the same
        b = b.sum(1, keepdim=True) if a.shape[1] == 1 else b
        sums.append(product(a.flatten(1, 3).mT, b.flatten(1, 3)))
    return (added(sums) / (g.shape[1] * g.shape[2])).clamp_min_(0)  # rounding can make it negative


def _pairs(x: Float[Tensor, "R S B T _"], apart: int) -> Float[Tensor, "R S B _ _"]:
    """Return the elementwise products x_t x_u for all pairs of positions t <= u, multiplied by `apart` if t < u."""
    t = x.shape[3]
    products = [x[:, :, :, : t - d] * x[:, :, :, d:] for d in range(t)]
    return torch.cat([p if d == 0 or apart == 1 else apart * p for d, p in enumerate(products)], 3)


def mean_outer(taps: Taps) -> Float[Tensor, "R I O"]:
    """Return E[g], the weight gradient averaged over samples and examples of this process."""
    return taps.gradient() / (taps.grads.shape[1] * taps.grads.shape[2])


def gradient_moments(taps: tuple[Taps, ...]) -> tuple[Means, Means]:
    """Return E[g] and E[g^2] of per-example weight gradients g, over samples and examples of all processes."""
    moments = []
    for t in taps:
        if t.grads.shape[3] <= FEW or t.known_gradient is not None:
            moments.append((parallel.mean(mean_outer(t)), mean_squares(t)))
            continue
        sums = [(x.sum((1, 2)), x.square_().sum((1, 2))) for (x,) in example_gradients((t,))]
        count = t.grads.shape[1] * t.grads.shape[2]
        first, second = (added(each) / count for each in zip(*sums, strict=True))
        moments.append(parallel.mean((first, second)))
    gradients, squares = zip(*moments, strict=True)
    return gradients, squares


def mean_squares(taps: Taps, budget: int | None = None) -> Float[Tensor, "R I O"]:
    """Return E[g^2] of per-example weight gradients g over all processes, with at most `budget` values in memory."""
    g = taps.grads
    if g.shape[3] == 1:
        a = taps.inputs
        g = g.square().mean(1, keepdim=True) if a.shape[1] == 1 else g.square()
        a, g = a.square().flatten(1, 3), g.flatten(1, 3)
        return parallel.mean(product(a.mT, g) / g.shape[1])
    if g.shape[3] <= FEW:
        return parallel.mean(_squares_by_pairs(taps, budget or held(g)))
    parts = chunks(g.shape[2], g.shape[0] * g.shape[1] * math.prod(taps.shape), budget or held(g))
    sums = [mean_square_gradients(taps.part(part)).sum(1) for part in parts]
    return parallel.mean(added(sums) / g.shape[2])
