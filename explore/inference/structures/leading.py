"""Leading eigenpairs of a low-rank matrix plus the second moment of per-example gradients, of all weights jointly."""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from explore.core.linalg import basis, eigh
from explore.core.rng import Rng
from explore.core.shapes import Taps, flatten, unflatten
from explore.execution import parallel
from explore.inference.structures import low_rank
from explore.inference.structures.base import example_gradients
from explore.inference.structures.low_rank import Vectors

DROPPED = 1e-6  # eigenvalues up to this value (or within rounding error) count as zero, as in the authors' code

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
    cross = old * new * low_rank.gradients_inner(taps, columns)  # [R, n, L]
    top = torch.cat([keep * low_rank.inner(columns, columns), cross.mT], 2)
    gram = torch.cat([top, torch.cat([cross, weight / n * low_rank.gradients_gram(taps)], 2)], 1)
    values, vectors, ok = eigh(gram)
    c = vectors[:, :, -rank:] * _is_large(values)[:, None, -rank:]
    from_old = low_rank.combine(old * c[:, :rank].mT, columns)
    from_new = low_rank.gradients_combine(taps, new * c[:, rank:])
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
        old = low_rank.combine(keep * low_rank.inner(q, columns), columns)
        new = parallel.mean(low_rank.gradients_combine(taps, low_rank.gradients_inner(taps, q)))
        return tuple(torch.add(a, b, alpha=weight / n) for a, b in zip(old, new, strict=True))

    y = unflatten(2 * rng.uniform(columns[0].shape[0], sketch, sum(i * o for i, o in shapes)) - 1, shapes)
    for _ in range(iterations + 1):
        q = unflatten(basis(flatten(y).mT).mT, shapes)
        y = product(q)
    # X ~ Y (Q^T Y)^-1 Y^T = F F^T with F = Y E e^-1/2; U+ is F times the leading eigenvectors of F^T F.
    small = low_rank.inner(q, y)
    values, vectors, ok = eigh(0.5 * (small + small.mT))
    inverse = torch.where(_is_large(values), values.clamp_min(DROPPED).rsqrt(), 0)
    f = low_rank.combine((vectors * inverse.unsqueeze(1)).mT, y)
    values, vectors, ok_f = eigh(low_rank.inner(f, f))
    c = vectors[:, :, -rank:] * _is_large(values)[:, None, -rank:]
    return low_rank.combine(c.mT, f), ok & ok_f


def _is_large(values: Float[Tensor, "R n"]) -> Bool[Tensor, "R n"]:
    return values > DROPPED + 10 * torch.finfo(values.dtype).eps * values[:, -1:]
