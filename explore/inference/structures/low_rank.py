"""Low-rank plus diagonal matrices U U^T + diag(d) over all weights, and products with implicit per-example gradients.

Mishkin, Kunstner, Nielsen, Schmidt, Khan: SLANG (2018), Algorithm 3 and Appendix. In one layer, the gradient of an
example is a g^T, summed over positions. Products of G = [g_1 ... g_n], n = S B, with a few vectors thus need only the
taps a and g: g_b . V = a_b^T V g_b, and G c = sum_b c_b a_b g_b^T.

The sampler printed in the paper has the wrong covariance. The correct sample is d^-1/2 (eps - V K V^T eps) with
V = d^-1/2 U, K = (C^-T + V^T V)^-1 and C = L^-T (B - I) L^-1, where L and B are the lower Cholesky factors of V^T V and
I + L^T L. `_Half` uses the symmetric root instead, which exists even if U is rank-deficient.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import reduce
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from explore.core.linalg import basis, chunks, eigh, held, identity, inverse_triangle
from explore.core.rng import Rng
from explore.core.shapes import Means, Taps, flatten, unflatten
from explore.execution import parallel
from explore.inference.structures.base import dot, example_gradients

Vectors = tuple[Float[Tensor, "R _L _I _O"], ...]
"""A set of L vectors over all weights, in the same layout as weight samples."""

DROPPED = 1e-6  # eigenvalues up to this value (or within rounding error) count as zero, as in the authors' code
CACHED = 2**20  # maximum number of values in an intermediate that is read repeatedly, to fit the CPU cache


def inner(u: Vectors, v: Vectors) -> Float[Tensor, "R _S _T"]:
    """Return all inner products of two sets of vectors."""
    return torch.stack([torch.bmm(x.flatten(2), y.flatten(2).mT) for x, y in zip(u, v, strict=True)]).sum(0)


def combine(c: Float[Tensor, "R _S _T"], v: Vectors) -> Vectors:
    """Return linear combinations of vectors, one per row of c."""
    return tuple(torch.bmm(c, x.flatten(2)).unflatten(2, x.shape[2:]) for x in v)


def gradients_inner(taps: tuple[Taps, ...], v: Vectors) -> Float[Tensor, "R n L"]:
    """Return G^T v, the inner products of all per-example gradients with all vectors."""
    layers = []
    for t, x in zip(taps, v, strict=True):
        parts = []
        for a, g in _parts(t, x.shape[1]):
            h = torch.bmm(a.flatten(1, 3), x.transpose(1, 2).flatten(2))  # [R, (S B T), (L O)]
            h = h.unflatten(2, (x.shape[1], -1)).unflatten(1, a.shape[1:4])
            parts.append(torch.einsum("rsbtlo,rsbto->rsbl", h, g))
        layers.append((torch.cat(parts, 2) if len(parts) > 1 else parts[0]).flatten(1, 2))
    return reduce(torch.add, layers)


def gradients_combine(taps: tuple[Taps, ...], c: Float[Tensor, "R n L"]) -> Vectors:
    """Return G c: for each column of c, the sum of the per-example gradients weighted by this column."""

    def products(t: Taps) -> Iterator[Tensor]:
        start = 0
        each = c.unflatten(1, t.grads.shape[1:3])  # [R, S, B, L]
        for a, g in _parts(t, c.shape[2]):
            part = each[:, :, start : (start := start + g.shape[2])]
            shared = a.shape[1] < g.shape[1]  # then the samples can be summed first
            weighted = torch.einsum("rsbl,rsbto->rbtlo" if shared else "rsbl,rsbto->rsbtlo", part, g)
            weighted = weighted.flatten(1, 2 if shared else 3).flatten(2)  # [R, (S B T), (L O)]
            yield torch.bmm(a.flatten(1, 3).mT, weighted)

    sums = (reduce(torch.add, products(t)) for t in taps)
    return tuple(total.unflatten(2, (c.shape[2], -1)).transpose(1, 2) for total in sums)


def gradients_gram(taps: tuple[Taps, ...]) -> Float[Tensor, "R n n"]:
    """Return G^T G, the Gram matrix of the per-example gradients."""
    return reduce(torch.add, (part for t in taps for part in _grams(t)))


def _grams(t: Taps) -> Iterator[Float[Tensor, "R n n"]]:
    """Yield matrices whose sum is the Gram matrix of the per-example gradients of one layer."""
    inputs, (r, s, b, positions, o) = t.inputs, t.grads.shape
    if positions == 1:
        a, g = inputs.flatten(1, 3), t.grads.flatten(1, 3)
        repeat = s // inputs.shape[1]
        yield torch.bmm(a, a.mT).repeat(1, repeat, repeat) * torch.bmm(g, g.mT)
        return
    for part in chunks(o, r * s * b * inputs.shape[4], held(inputs)):
        x = torch.einsum("rsbti,rsbto->rsbio", inputs, t.grads[..., part])
        x = x.flatten(1, 2).flatten(2)
        yield torch.bmm(x, x.mT)


def _cached_gradients(taps: tuple[Taps, ...], beside: int = 0) -> Iterator[tuple[Tensor, ...]]:
    """Yield `example_gradients` in chunks that fit the CPU cache or, on a GPU, `held`, also with `beside` vectors."""
    g = taps[0].grads
    return example_gradients(taps, CACHED if g.is_cpu else held(g) * g.shape[1] // max(g.shape[1], beside))


def _parts(t: Taps, vectors: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield inputs and gradients of b examples each; a tensor [R, S, b, T, vectors, O] must fit the limit `held`."""
    r, s, b, positions, o = t.grads.shape
    for examples in chunks(b, r * s * positions * o * vectors, held(t.grads)):
        part = t.part(examples)
        yield part.inputs, part.grads


class LowRankFactor(NamedTuple):
    """The factor P = U U^T + diag(d); P^-1 is computed by the Woodbury identity."""

    columns: Vectors  # U: [R, L, I, O] per layer
    diagonal: Means  # d

    def solve(self, v: Vectors) -> Vectors:
        half = self._half()
        return half.times(half.turned(v))

    def root(self, eps: Vectors) -> Vectors:
        return self._half().times(eps)

    def logdet(self) -> Float[Tensor, " R"]:
        total = torch.stack([d.log().sum((1, 2)) for d in self.diagonal]).sum(0)
        return total - 2 * torch.linalg.diagonal(self._core()).log().sum(1).to(total)

    def variance(self) -> Means:
        """Return diag(P^-1), clipped to at least 1 / P_ii. Use double precision, as a large U almost cancels 1 / d."""
        wide = LowRankFactor(*(tuple(t.double() for t in part) for part in self))
        parts = zip(self.columns, wide.diagonal, wide.columns, wide._correction(), strict=True)
        return tuple(
            torch.maximum(1 / d - z.square().sum(1), 1 / (d + u.square().sum(1))).to(like) for like, d, u, z in parts
        )

    def quad(self, taps: tuple[Taps, ...]) -> Float[Tensor, "R B"]:
        half, means = self._half(), (tuple(x.mean(1) for x in g) for g in _cached_gradients(taps))
        return torch.cat([dot(x, x) for x in map(half.turned, means)], 1)

    def curvature(self, taps: tuple[Taps, ...]) -> Float[Tensor, "R B"]:
        """Return tr[(P^-1 D')^2], where D' approximates D = E_s[g_b g_b^T] as low-rank plus diagonal.

        D' = Pi D + D Pi - Pi D Pi + diag((I - Pi) D (I - Pi)), with Pi the projector onto the span of U.
        """
        values, vectors, _ = eigh(inner(self.columns, self.columns))
        large = values > 1e-6 * values[:, -1:].clamp_min(1e-30)
        inverse = torch.where(large, values.clamp_min(1e-30).rsqrt(), 0)
        basis = flatten(combine((vectors * inverse.unsqueeze(1)).mT, self.columns))  # [R, L, W], orthonormal or zero
        z = flatten(self._correction())  # P^-1 = diag(1/d) - z^T z
        variance = 1 / flatten(self.diagonal)
        parts = []
        for g in _cached_gradients(taps, 2 * basis.shape[1]):
            x = flatten(g).transpose(1, 2)  # [R, b, S, W]
            coordinates = x @ basis.unsqueeze(1).mT  # [R, b, S, L]
            outside = (x - coordinates @ basis.unsqueeze(1)).square().mean(2)  # e, [R, b, W]
            # Pi D + D Pi - Pi D Pi = Q H^T + H Q^T, H = D Q - Q Q^T D Q / 2.
            h = coordinates.mT @ (x - 0.5 * coordinates @ basis.unsqueeze(1)) / x.shape[2]
            q = torch.cat([basis.unsqueeze(1).expand_as(h), h], 2)  # [R, b, 2 L, W]
            y = q * variance[:, None, None] - (q @ z.unsqueeze(1).mT) @ z.unsqueeze(1)  # P^-1 [Q, H]
            swapped = (y @ q.mT).roll(h.shape[2], 3)  # times [[0, 1], [1, 0]]
            low = (swapped * swapped.mT).sum((2, 3))
            cross = ((y * y.roll(h.shape[2], 2)).sum(2) * outside).sum(2)
            weighted = (z.unsqueeze(1) * outside.unsqueeze(2)) @ z.unsqueeze(1).mT
            shared = (z.square().sum(1) * variance).unsqueeze(1)
            diagonal = (outside.square() * (variance.square().unsqueeze(1) - 2 * shared)).sum(2)
            parts.append(low + 2 * cross + diagonal + weighted.square().sum((2, 3)))
        return torch.cat(parts, 1)

    def _core(self) -> Float[Tensor, "R L L"]:
        """Return C^-1, lower triangular, in double precision, with C C^T = I + V^T V and V = d^-1/2 U."""
        gram = _gram(self._low()[0])
        return inverse_triangle(torch.linalg.cholesky_ex(identity(gram.shape[1], gram) + gram)[0])

    def _half(self) -> _Half:
        low, scale = self._low()
        values, vectors, _ = eigh(_gram(low))
        t = (1 + values.clamp_min(0)).sqrt()
        return _Half(low, ((vectors / (t * t + t).unsqueeze(1)) @ vectors.mT).to(low[0]), scale)

    def _low(self) -> tuple[Vectors, Vectors]:
        """Return V = d^-1/2 U, and d^-1/2."""
        scale = tuple(d.rsqrt().unsqueeze(1) for d in self.diagonal)
        return tuple(u * s for u, s in zip(self.columns, scale, strict=True)), scale

    def _correction(self) -> Vectors:
        """Return the rows z in P^-1 = diag(1/d) - z^T z."""
        divided = tuple(x / d.unsqueeze(1) for x, d in zip(self.columns, self.diagonal, strict=True))
        return combine(self._core().to(self.diagonal[0]), divided)


def _gram(low: Vectors) -> Float[Tensor, "R L L"]:
    """Return V^T V for V = `low` in double precision, in which products of single-precision values are exact."""
    v = tuple(x.double() for x in low)
    return inner(v, v)


class _Half(NamedTuple):
    """The root H = d^-1/2 (I - V K V^T), with H H^T = (U U^T + diag(d))^-1.

    V = d^-1/2 U and K = f(V^T V), with the function f(l) = 1 / (1 + l + (1 + l)^1/2) of a matrix.
    """

    low: Vectors  # V
    k: Float[Tensor, "R L L"]  # K, symmetric
    scale: Vectors  # d^-1/2

    def times(self, v: Vectors) -> Vectors:
        """Multiply by H: return H v."""
        return tuple(x * s for x, s in zip(self._shrunk(v), self.scale, strict=True))

    def turned(self, v: Vectors) -> Vectors:
        """Multiply by the transpose of H: return H^T v."""
        return self._shrunk(tuple(x * s for x, s in zip(v, self.scale, strict=True)))

    def _shrunk(self, v: Vectors) -> Vectors:
        shift = combine(inner(v, self.low) @ self.k, self.low)
        return tuple(x - y for x, y in zip(v, shift, strict=True))


Leading = tuple[Vectors, Bool[Tensor, " R"]]
"""U+, and the replicas for which the decomposition succeeded."""


def leading(columns: Vectors, taps: tuple[Taps, ...], keep: float, weight: float, iterations: int, rng: Rng) -> Leading:
    """Return U+, where U+ U+^T has the leading eigenpairs of X = keep U U^T + weight E[g g^T], and U is `columns`."""
    weights = sum(x.shape[2] * x.shape[3] for x in columns)
    rank, n = columns[0].shape[1], taps[0].grads.shape[1] * taps[0].grads.shape[2] * parallel.world().processes
    sketch = min(2 * rank + 2, weights)
    if (rank + n) ** 2 <= sketch * weights:
        return leading_gram(columns, tuple(map(_of_all, taps)), keep, weight)
    if weights <= 4 * sketch:
        return leading_dense(columns, taps, keep, weight)
    return leading_randomised(columns, taps, keep, weight, sketch, iterations, rng)


def _of_all(taps: Taps) -> Taps:
    """Concatenate the taps of all processes along the sample axis."""
    if parallel.world().processes == 1:
        return taps
    inputs = taps.inputs.expand(-1, taps.grads.shape[1], -1, -1, -1)
    return Taps(parallel.gathered(inputs, 1), parallel.gathered(taps.grads, 1))


def leading_gram(columns: Vectors, taps: tuple[Taps, ...], keep: float, weight: float) -> Leading:
    """Return U+ = Y C (see `leading`), with the leading eigenvectors C of the small matrix Y^T Y.

    Y = [sqrt(keep) U, sqrt(weight / n) G], where G are the n per-example gradients, so that X = Y Y^T.
    """
    rank, n = columns[0].shape[1], taps[0].grads.shape[1] * taps[0].grads.shape[2]
    old, new = math.sqrt(keep), math.sqrt(weight / n)
    cross = old * new * gradients_inner(taps, columns)  # [R, n, L]
    top = torch.cat([keep * inner(columns, columns), cross.mT], 2)
    gram = torch.cat([top, torch.cat([cross, weight / n * gradients_gram(taps)], 2)], 1)
    values, vectors, ok = eigh(gram)
    c = vectors[:, :, -rank:] * _is_large(values)[:, None, -rank:]
    from_old = combine(old * c[:, :rank].mT, columns)
    from_new = gradients_combine(taps, new * c[:, rank:])
    return tuple(a + b for a, b in zip(from_old, from_new, strict=True)), ok


def leading_dense(columns: Vectors, taps: tuple[Taps, ...], keep: float, weight: float) -> Leading:
    """Return U+ (see `leading`) from the eigendecomposition of X as an explicit matrix."""
    shapes = tuple((x.shape[2], x.shape[3]) for x in columns)
    rank, n, u = columns[0].shape[1], taps[0].grads.shape[1] * taps[0].grads.shape[2], flatten(columns)
    x = keep * u.mT @ u
    for part in example_gradients(taps):
        g = flatten(part).flatten(1, 2)
        x = torch.baddbmm(x, g.mT, g, alpha=weight / n)
    x = parallel.mean(x)
    values, vectors, ok = eigh(x)
    c = vectors * torch.where(_is_large(values), values.clamp_min(0).sqrt(), 0).unsqueeze(1)
    return tuple(v.contiguous() for v in unflatten(c[:, :, -rank:].mT, shapes)), ok


def leading_randomised(
    columns: Vectors, taps: tuple[Taps, ...], keep: float, weight: float, sketch: int, iterations: int, rng: Rng
) -> Leading:
    """Return U+ from a Nystrom approximation of X, which never overestimates X, after randomised subspace iteration."""
    shapes = tuple((x.shape[2], x.shape[3]) for x in columns)
    rank, n = columns[0].shape[1], taps[0].grads.shape[1] * taps[0].grads.shape[2]

    def product(q: Vectors) -> Vectors:
        old = combine(keep * inner(q, columns), columns)
        new = parallel.mean(gradients_combine(taps, gradients_inner(taps, q)))
        return tuple(torch.add(a, b, alpha=weight / n) for a, b in zip(old, new, strict=True))

    y = unflatten(2 * rng.uniform(columns[0].shape[0], sketch, sum(i * o for i, o in shapes)) - 1, shapes)
    for _ in range(iterations + 1):
        q = unflatten(basis(flatten(y).mT).mT, shapes)
        y = product(q)
    # X ~ Y (Q^T Y)^-1 Y^T = F F^T with F = Y E e^-1/2; U+ is F times the leading eigenvectors of F^T F.
    small = inner(q, y)
    values, vectors, ok = eigh(0.5 * (small + small.mT))
    inverse = torch.where(_is_large(values), values.clamp_min(DROPPED).rsqrt(), 0)
    f = combine((vectors * inverse.unsqueeze(1)).mT, y)
    values, vectors, ok_f = eigh(inner(f, f))
    c = vectors[:, :, -rank:] * _is_large(values)[:, None, -rank:]
    return combine(c.mT, f), ok & ok_f


def _is_large(values: Float[Tensor, "R n"]) -> Bool[Tensor, "R n"]:
    return values > DROPPED + 10 * torch.finfo(values.dtype).eps * values[:, -1:]
