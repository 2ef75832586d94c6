"""Networks, means, slopes and projections written out, which only the project's own tests compare with."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

from explore.core.shapes import flatten as flat, unflatten as unflat
from explore.inference.structures.base import Blocks, Diagonal
from explore.inference.structures.dense import DenseFactor
from explore.inference.structures.kronecker import KroneckerFactor
from explore.inference.structures.low_rank import LowRankFactor
from explore.inference.updates.reparam import Triangular
from explore.testing.oracles import implied_gaussian, kl, normal, ridge

__all__ = [
    "dense", "finite_difference", "flat", "implied_gaussian", "jacobians", "kl", "kronecker_directions", "mean_and_se",
    "normal", "parameters", "ridge", "run", "squared_projection", "unflat",
]  # fmt: skip


# Networks --------------------------------------------------------------------------------------------------


def parameters(module: nn.Module, weights: Sequence[Tensor]) -> dict[str, Tensor]:
    """Convert one [I, O] matrix per layer to the module's named parameters."""
    named, matrices = {}, iter(weights)
    for name, layer in module.named_modules():
        if hasattr(layer, "weight"):
            w, prefix = next(matrices), f"{name}." if name else ""
            inputs = w.shape[0] - (layer.bias is not None)
            named[f"{prefix}weight"] = w[:inputs].mT.reshape(layer.weight.shape)
            if layer.bias is not None:
                named[f"{prefix}bias"] = w[-1]
    return named


def run(module: nn.Module, weights: Sequence[Tensor], x: Tensor) -> Tensor:
    """The output [R, S, B, O] for weights [R, S, I, O] a layer and x [R, B, ...]."""

    def once(w: Any, x: Tensor) -> Tensor:
        return functional_call(module, parameters(module, w), (x,))

    return vmap(vmap(once, (0, None)))(weights, x)


def jacobians(module: nn.Module, weights: Sequence[Any], x: Tensor, shapes: Sequence[tuple[int, int]]) -> Tensor:
    """D out / d weights of every example, [R, S, B, O, W]."""

    def one(w: Tensor, x: Tensor) -> Tensor:
        return functional_call(module, parameters(module, unflat(w, shapes)), (x.unsqueeze(0),)).squeeze(0)

    every = vmap(vmap(vmap(jacrev(one), (None, 0)), (0, None)))
    return every(flat(weights), x)


# Numbers ---------------------------------------------------------------------------------------------------


def mean_and_se(values):
    """Of a NumPy array or a column of a table, with the names that results have."""
    return {"mean": values.mean(), "se": values.std(ddof=1) / len(values) ** 0.5}


def finite_difference(f, x, h=1e-6):
    """The gradient of a scalar function by central differences; its error is about h^2."""
    gradient = torch.zeros_like(x)
    for i in range(x.numel()):
        step = torch.zeros(x.numel(), dtype=x.dtype)
        step[i] = h
        step = step.view_as(x)
        gradient.view(-1)[i] = (f(x + step) - f(x - step)) / (2 * h)
    return gradient


def kron(a, s):
    return torch.einsum("rij,rop->riojp", a, s).flatten(1, 2).flatten(2, 3)


def dense(factor):
    """The matrix [R, W, W] of a factor, or of the block of a layer, written out."""
    if isinstance(factor, Blocks):
        return torch.stack([torch.block_diag(*rows) for rows in zip(*map(dense, factor.blocks), strict=True)])
    if isinstance(factor, Diagonal):
        diagonal = torch.diag_embed(factor.precision.flatten(1))
        basis = None if factor.inputs is None else kron(factor.inputs, factor.outputs)
        return diagonal if basis is None else basis @ diagonal @ basis.mT
    if isinstance(factor, KroneckerFactor):
        return kron(*(torch.linalg.inv(root.mT @ root) for root in factor))
    if isinstance(factor, DenseFactor):
        lower = torch.linalg.inv(flat(factor.rows))
        return lower @ lower.mT
    if isinstance(factor, LowRankFactor):
        return flat(factor.columns).mT @ flat(factor.columns) + torch.diag_embed(flat(factor.diagonal))
    if isinstance(factor, Triangular):
        return torch.cholesky_inverse(factor.root_)
    shapes = [c.diagonal.shape[1:] for c in factor.conditionals]
    units = torch.eye(sum(i * o for i, o in shapes)).expand(len(factor.logdet()), -1, -1).to(factor.logdet())
    return torch.linalg.inv(flat(factor.solve(unflat(units, shapes))))


def squared_projection(d, p, directions):
    """(|D'|^2, D' in the original coordinates): D projected on directions, both whitened by P, in Frobenius norm.

    Args:
        d: [W, W] what is projected.
        p: [W, W] positive definite.
        directions: [n, W, W] what spans the subspace (they may depend on each other).
    """
    root = torch.linalg.cholesky(p)

    def white(m):
        half = torch.linalg.solve_triangular(root, m, upper=False)
        return torch.linalg.solve_triangular(root, half.mT, upper=False).flatten(-2)

    fit = torch.linalg.lstsq(white(directions).T, white(d).unsqueeze(1), driver="gelsd").solution.squeeze(1)
    projected = torch.einsum("n,nij->ij", fit, directions)
    return white(projected).square().sum(), projected


def kronecker_directions(a, s):
    """The ways in which A (x) S can change: dA (x) S and A (x) dS for every symmetric dA, dS."""

    def symmetric(n):
        e = torch.eye(n, dtype=a.dtype)
        return [torch.outer(e[i], e[j]) + torch.outer(e[j], e[i]) for i in range(n) for j in range(i + 1)]

    a, s = a.contiguous(), s.contiguous()  # torch.kron refuses transposed strides
    return torch.stack([torch.kron(d, s) for d in symmetric(len(a))] + [torch.kron(a, d) for d in symmetric(len(s))])
