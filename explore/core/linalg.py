"""Batched linear algebra that flags failed matrices instead of raising an error."""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from explore.core import tree
from explore.core.context import Number
from explore.core.rng import Rng

JITTERS = (1e-6, 1e-4, 1e-2)  # relative to the mean diagonal; tried in turn before a matrix is flagged as failed
HELD, HELD_ON_DEVICE = 2**24, 2**28  # maximum numbers of an intermediate: 64 MiB and 1 GiB in single precision
WIDE, BLOCKS = 1024, 4  # triangular matrices with this many rows or more are multiplied in this many blocks of rows
# Sizes of symmetric matrices that a GPU decomposes more slowly than its host: too large for its batched solver, and
# too small to keep it busy.
HOSTED = range(33, 257)
GRID = 21  # points of `least_on_grid`
NARROW = 16  # columns; a batched product with fewer leaves most of the processor idle


def inverse_root(matrix: Float[Tensor, "*N n n"]) -> tuple[Float[Tensor, "*N n n"], Bool[Tensor, " *N"]]:
    """Return L^-1 for matrix = L L^T, and whether each factorisation succeeded; on failure, L^-1 is the identity.

    If a matrix is not positive definite, the factorisation is retried with increasing jitter: multiples of the mean
    diagonal entry, added to the diagonal.
    """
    if tree.unseen(matrix):  # all at once: finding out which matrices need it would synchronise with a device
        return _raised_root(matrix)
    root, failed = torch.linalg.cholesky_ex(matrix)
    inverse, ok = inverse_triangle(root), failed == 0
    if not tree.known_all_true(ok):
        # Only the failed ones: in a different layout, the others would differ in the last digits on some processors.
        inverse[~ok], ok[~ok] = _raised_root(matrix[~ok])
    return inverse, ok


def _raised_root(matrix: Float[Tensor, "*N n n"]) -> tuple[Float[Tensor, "*N n n"], Bool[Tensor, " *N"]]:
    eye = identity(matrix.shape[-1], matrix)
    shift = matrix.diagonal(dim1=-2, dim2=-1).mean(-1).abs()[..., None, None] * eye
    raised = (torch.add(matrix, shift, alpha=jitter) for jitter in JITTERS)
    roots, failed = torch.linalg.cholesky_ex(torch.stack([matrix, *raised]))
    worked = failed == 0
    first = worked.int().argmax(0)[None, ..., None, None].expand(1, *matrix.shape)
    ok = worked.any(0)
    root = torch.where(ok[..., None, None], roots.gather(0, first).squeeze(0), eye)
    return inverse_triangle(root), ok


def inverse_triangle(root: Float[Tensor, "*N n n"]) -> Float[Tensor, "*N n n"]:
    """Return L^-1 for lower triangular matrices L."""
    eye = identity(root.shape[-1], root).expand_as(root)
    # Solve X L = 1: for L X = 1, LAPACK would first transpose both sides, which doubles the time.
    return torch.linalg.solve_triangular(root, eye, upper=False, left=False)


def eigh(matrix: Float[Tensor, "*N n n"]) -> tuple[Float[Tensor, "*N n"], Float[Tensor, "*N n n"], Bool[Tensor, " *N"]]:
    """Return eigenvalues (ascending) and eigenvectors of symmetric matrices, and whether each decomposition succeeded.

    A matrix with NaN or infinite entries, or for which the solver does not converge, is replaced by the identity.
    `torch.linalg.eigh` would raise an error for the whole batch.
    """
    ok = matrix.isfinite().flatten(-2).all(-1)
    clean = torch.where(ok[..., None, None], matrix, identity(matrix.shape[-1], matrix))
    try:
        near = clean.cpu() if clean.is_cuda and clean.shape[-1] in HOSTED else clean
        values, vectors = (t.to(clean.device) for t in torch.linalg.eigh(near))
    except torch.linalg.LinAlgError:
        each = map(_eigh_of_one, clean.flatten(0, -3) if clean.dim() > 2 else clean.unsqueeze(0))
        values, vectors, converged = (
            torch.stack(t).view(*matrix.shape[:-2], *t[0].shape) for t in zip(*each, strict=True)
        )
        ok = ok & converged
    return values, vectors, ok


def basis(y: Float[Tensor, "N W L"]) -> Float[Tensor, "N W L"]:
    """Return an orthonormal basis of the columns of each matrix in y; batches on a GPU use CholeskyQR2, not QR."""
    if len(y) == 1 or not tree.unseen(y):
        return torch.linalg.qr(y)[0]
    y = y / y.abs().amax((1, 2), keepdim=True).clamp_min(torch.finfo(y.dtype).tiny)  # so that squares are finite
    for _ in range(2):
        root, _ = inverse_root(y.mT @ y)
        y = y @ root.mT
    return y


def _eigh_of_one(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    for precision in (matrix, matrix.double()):
        try:
            values, vectors = torch.linalg.eigh(precision)
        except torch.linalg.LinAlgError:
            continue
        return values.to(matrix), vectors.to(matrix), torch.ones((), dtype=torch.bool, device=matrix.device)
    eye = identity(len(matrix), matrix)
    return torch.ones_like(eye[0]), eye, torch.zeros((), dtype=torch.bool, device=matrix.device)


def held(like: Tensor) -> int:
    """Return the largest allowed number of elements of an intermediate result on the device of `like`."""
    return HELD if like.is_cpu else HELD_ON_DEVICE


def chunks(count: int, width: int, most: int) -> Iterator[slice]:
    """Yield slices of `count` items, of at least one and else at most `most` numbers, with `width` numbers per item."""
    size = max(1, most // width)
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


def added(parts: Sequence[Tensor]) -> Tensor:
    """Return the sum of the tensors; a single tensor is returned without a copy."""
    return torch.stack(list(parts)).sum(0) if len(parts) > 1 else parts[0]


def moved(x: Tensor, direction: Tensor, step: Number, per: Tensor | None = None) -> Tensor:
    """Return x + step * direction / per (None: no division). `step` is a number, a scalar tensor or a tensor [R]."""
    if isinstance(step, Tensor):
        steps = cast(Tensor, over(step, x))
        return torch.addcmul(x, direction, steps) if per is None else torch.addcdiv(x, steps * direction, per)
    if per is None:
        return torch.add(x, direction, alpha=step)
    return torch.addcdiv(x, direction, per, value=step)


def averaged(
    old: Float[Tensor, "N I O"], x: Float[Tensor, "N I n"], y: Float[Tensor, "N n O"], keep: Number, weight: Number
) -> Float[Tensor, "N I O"]:
    """Return keep * old + weight * (x @ y). `keep` and `weight` are numbers, scalar tensors or tensors [N]."""
    if isinstance(keep, Tensor) or isinstance(weight, Tensor):
        return torch.baddbmm(over(keep, old) * old, over(weight, x) * x, y)
    return torch.baddbmm(old, x, y, beta=keep, alpha=weight)


def identity(n: int, like: Tensor | Rng) -> Float[Tensor, "n n"]:
    """Return the identity matrix, with the dtype and on the device of `like`."""
    return torch.eye(n, dtype=like.dtype, device=like.device)


def over(values: Number, like: Tensor) -> Number:
    """Reshape values [R] to broadcast with `like` [R, ...] in the dtype of `like`; return a plain number unchanged."""
    if not isinstance(values, Tensor):
        return values
    return values.to(like) if values.dim() == like.dim() else values.to(like).view(-1, *[1] * (like.dim() - 1))


def least_on_grid(
    cost: Callable[[Float[Tensor, "*N"]], Tensor], like: Float[Tensor, "*N"], low: float, high: float, rounds: int
) -> Float[Tensor, "*N"]:
    """Return the values in [low, high] of least cost, by grids on a logarithmic scale that are refined in each round.

    `cost` maps values to one cost for each, or to costs that broadcast with the values: all then share one position.
    """
    start, end = torch.full_like(like, math.log(low)), torch.full_like(like, math.log(high))
    shares = torch.linspace(0, 1, GRID, dtype=like.dtype, device=like.device).view(-1, *[1] * like.dim())
    for _ in range(rounds):
        grid = torch.lerp(start, end, shares)
        costs = torch.stack([cost(values) for values in grid.exp()])
        best = grid.gather(0, costs.argmin(0, keepdim=True).expand(-1, *like.shape)).squeeze(0)
        step = (end - start) / (GRID - 1)
        start, end = torch.maximum(start, best - step), torch.minimum(end, best + step)
    return best.exp()


def product(
    a: Float[Tensor, "N I J"], b: Float[Tensor, "N J O"], plus: Float[Tensor, "N 1 O"] | None = None
) -> Float[Tensor, "N I O"]:
    """Return the batched product a b (+ plus); if b has few columns, compute (b^T a^T)^T, which is much faster."""
    turn = b.shape[2] < NARROW <= a.shape[1]
    if turn:
        a, b, plus = b.mT, a.mT, None if plus is None else plus.mT
    result = torch.bmm(a, b) if plus is None else torch.baddbmm(plus, a, b)
    return result.mT if turn else result


def triangle_times(triangle: Float[Tensor, "N I I"], x: Float[Tensor, "N I O"], upper: bool) -> Float[Tensor, "N I O"]:
    """Multiply x by lower or upper triangular matrices; large products are computed in blocks that skip most zeros."""
    n = x.shape[1]
    if n < WIDE:
        return product(triangle, x)
    edges = [n * i // BLOCKS for i in range(BLOCKS + 1)]
    parts = [(slice(a, b), slice(a, n) if upper else slice(b)) for a, b in pairwise(edges)]
    return torch.cat([product(triangle[:, rows, columns], x[:, columns]) for rows, columns in parts], 1)


def rows_times(rows: Float[Tensor, "R S B T I"], matrix: Float[Tensor, "R I O"]) -> Float[Tensor, "R S B T O"]:
    """Multiply each row by the matrix of its replica; einsum would need three times as many small operations."""
    return product(rows.flatten(1, 3), matrix).unflatten(1, rows.shape[1:4])
