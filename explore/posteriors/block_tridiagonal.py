"""Noisy block-tridiagonal K-FAC: a Gaussian with block-tridiagonal covariance, so neighbouring layers are correlated.

Zhang et al. 2017 (NNG-BlkTri) with the approximation of Martens and Grosse: Optimizing Neural Networks with
Kronecker-factored Approximate Curvature (2015), Section 4.3 and Appendix B. For dense layers l = 1..L with inputs a_l
and output gradients g_l (of the same sample and the same drawn targets),

    A_lk = E[a_l a_k^T],  S_lk = E[g_l g_k^T] for k = l, l+1;  A_ll and S_ll are first damped as in noisy K-FAC
    Psi_l = Psi^A_l (x) Psi^S_l,   Psi^A_l = A_l,l+1 A_l+1,l+1^-1,   Psi^S_l = S_l,l+1 S_l+1,l+1^-1
    Sigma_l = A_ll (x) S_ll - (Psi^A A_l+1,l+1 Psi^A^T) (x) (Psi^S S_l+1,l+1 Psi^S^T),   Sigma_L = A_LL (x) S_LL
    F^-1 = Xi^T diag(Sigma_1^-1, ..., Sigma_L^-1) Xi,   Xi = I with -Psi_l at block (l, l+1)

so a sample is X_l = Sigma_l^-1/2 eps_l, W_1 = X_1, W_l+1 = X_l+1 - Psi_l^T X_l, with white noise eps_l. Layers are
correlated, so one `Factor` over all layers represents F + damping, instead of one block per layer as in noisy K-FAC.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from explore.core.context import Number
from explore.core.errors import InputError
from explore.core.linalg import eigh, inverse_root, over
from explore.core.rng import Rng
from explore.core.shapes import Means, Taps, Weights, flatten
from explore.execution import parallel
from explore.inference.structures import base
from explore.inference.structures.base import Dampings, Diagonal, PerLayer
from explore.inference.structures.kronecker import KroneckerMoments, KroneckerRule, damped
from explore.inference.updates import natural
from explore.inference.updates.natural import CLASSES, HUNDREDS, SMALL, TABLE, NaturalGradient

POSITIONS = (
    "block-tridiagonal supports dense layers at one position only, not convolutions or a Linear applied to tokens; "
    "use noisy-kfac"
)


class Conditional(NamedTuple):
    """The matrix Sigma_l of one layer, diagonal in a non-orthonormal basis K = K_A (x) K_S: K^T Sigma_l K = diag(d).

    The fields refer to Sigma_l = A (x) S - C (x) D, with C and D from the second product in the module docstring.
    """

    inputs: Float[Tensor, "R I I"]  # K_A: K_A^T A K_A = I and K_A^T C K_A diagonal
    outputs: Float[Tensor, "R O O"]  # K_S
    inputs_rotation: Float[Tensor, "R I I"]  # L^T K_A for A = L L^T, orthonormal
    outputs_rotation: Float[Tensor, "R O O"]
    diagonal: Float[Tensor, "R I O"]  # d = 1 - s_A s_S^T

    def solve(self, v: Tensor) -> Tensor:
        x = base.two_sided(self.inputs, v, self.outputs) / self.diagonal.unsqueeze(1)
        return base.two_sided(self.inputs.mT, x, self.outputs.mT)

    def root(self, eps: Tensor) -> Tensor:
        # Rotate first: eigenvectors of equal eigenvalues are arbitrary, and samples must not depend on their choice.
        x = base.two_sided(self.inputs_rotation, eps, self.outputs_rotation) * self.diagonal.rsqrt().unsqueeze(1)
        return base.two_sided(self.inputs.mT, x, self.outputs.mT)

    def logdet(self) -> Float[Tensor, " R"]:
        i, o = self.diagonal.shape[1:]
        basis = o * torch.linalg.slogdet(self.inputs)[1] + i * torch.linalg.slogdet(self.outputs)[1]
        return self.diagonal.log().sum((1, 2)) - 2 * basis


class BlockTridiagonalFactor(NamedTuple):
    """The matrix F + damping over all layers, approximated so that the inverse matrix is block tridiagonal."""

    conditionals: tuple[Conditional, ...]  # Sigma_l
    links: tuple[KroneckerMoments, ...]  # Psi^A_l, Psi^S_l, between layers l and l + 1

    def solve(self, v: Weights) -> Weights:
        ahead = [base.two_sided(a.mT, x, s.mT) for (a, s), x in zip(self.links, v[1:], strict=True)]  # Psi v
        u = [*(x - y for x, y in zip(v[:-1], ahead, strict=True)), v[-1]]
        return self._up(tuple(c.solve(x) for c, x in zip(self.conditionals, u, strict=True)))

    def root(self, eps: Weights) -> Weights:
        return self._up(tuple(c.root(e) for c, e in zip(self.conditionals, eps, strict=True)))

    def logdet(self) -> Float[Tensor, " R"]:
        return torch.stack([c.logdet() for c in self.conditionals]).sum(0)

    def variance(self) -> Means:
        spread = [Diagonal(c.diagonal, c.inputs, c.outputs).variance() for c in self.conditionals]
        for i, (link, c) in enumerate(zip(self.links, self.conditionals, strict=False)):
            ahead = Diagonal(c.diagonal, link.inputs.mT @ c.inputs, link.outputs.mT @ c.outputs)
            spread[i + 1] = spread[i + 1] + ahead.variance()  # of the diagonal of K diag(1/d) K^T
        return tuple(spread)

    def quad(self, taps: tuple[Taps, ...]) -> Float[Tensor, "R B"]:
        g = tuple(base.mean_gradients(t) for t in taps)
        return (flatten(g) * flatten(self.solve(g))).sum(2)

    def curvature(self, taps: tuple[Taps, ...]) -> Float[Tensor, "R B"]:
        """Return `Factor.curvature` with D = E_s[g_b g_b^T] not projected; a projection has no closed form here."""
        g = tuple(base.sample_gradients(t) for t in taps)  # [R, S, B, I, O]
        solved = self.solve(tuple(x.flatten(1, 2) for x in g))
        gram = torch.einsum("rsbw,rtbw->rbst", flatten(g), flatten(solved).unflatten(1, g[0].shape[1:3]))
        return gram.square().mean((2, 3))

    def _up(self, x: Weights) -> Weights:
        """Return Xi^T x, with Xi from the module docstring."""
        back = [base.two_sided(a, y, s) for (a, s), y in zip(self.links, x[:-1], strict=True)]  # Psi^T x
        return (x[0], *(y - z for y, z in zip(x[1:], back, strict=True)))


class Chain(NamedTuple):
    """Running second moments within each layer, and between each layer and the next."""

    within: tuple[KroneckerMoments, ...]  # A_ll, S_ll
    between: tuple[KroneckerMoments, ...]  # A_l,l+1, S_l,l+1


@dataclass(frozen=True)
class BlockTridiagonalKronecker:
    """The block-tridiagonal structure; the moments within a layer are those of K-FAC."""

    kronecker: KroneckerRule

    def init(self, shapes: tuple[tuple[int, int], ...], replicas: int, rng: Rng) -> Chain:
        within = tuple(self.kronecker.init(i, o, replicas, rng) for i, o in shapes)
        between = []
        for below, above in zip(within[:-1], within[1:], strict=True):
            zeros = (x.new_zeros(replicas, x.shape[1], y.shape[1]) for x, y in zip(below, above, strict=True))
            between.append(KroneckerMoments(*zeros))
        return Chain(within, tuple(between))

    def observe(self, q: Chain, taps: tuple[Taps, ...], schedule: Number, step: int) -> Chain:
        if any(t.grads.shape[3] != 1 for t in taps):
            raise InputError(POSITIONS)
        within = tuple(self.kronecker.observe(m, t, schedule, step) for m, t in zip(q.within, taps, strict=True))
        rate = self.kronecker.beta * schedule
        between = []
        for old, t, above in zip(q.between, taps[:-1], taps[1:], strict=True):
            new = _cross(t.inputs, above.inputs), _cross(t.grads, above.grads)
            moments = (torch.lerp(a, b, over(rate, a)) for a, b in zip(old, new, strict=True))
            between.append(KroneckerMoments(*moments))
        return Chain(within, parallel.mean(tuple(between)))

    def factor(self, q: Chain, damping: Dampings) -> tuple[BlockTridiagonalFactor, Bool[Tensor, " R"]]:
        diagonal = [damped(m, c) for m, c in zip(q.within, base.each_layer(damping, len(q.within)), strict=True)]
        roots = [[inverse_root(m) for m in pair] for pair in diagonal]
        oks = [ok for pair in roots for _, ok in pair]
        links, conditionals = [], []
        for i, pair in enumerate(diagonal):
            inner = [torch.zeros_like(m) for m in pair]  # C, D; the last layer has none
            if i < len(q.between):
                following = [root.mT @ root for root, _ in roots[i + 1]]  # A_l+1,l+1^-1, S_l+1,l+1^-1
                link = KroneckerMoments(*(x @ y for x, y in zip(q.between[i], following, strict=True)))
                inner = [p @ x.mT for p, x in zip(link, q.between[i], strict=True)]
                links.append(link)
            basis, rotation, spectrum = [], [], []
            for (root, _), c in zip(roots[i], inner, strict=True):
                values, vectors, ok = eigh(root @ c @ root.mT)
                basis.append(root.mT @ vectors)
                rotation.append(vectors)
                spectrum.append(values.clamp(0, 1))
                oks.append(ok)
            # Rounding can raise a product of eigenvalues to 1, where Sigma_l would be singular.
            d = (1 - spectrum[0].unsqueeze(2) * spectrum[1].unsqueeze(1)).clamp_min(1e-6)
            (k_a, k_s), (e_a, e_s) = basis, rotation
            conditionals.append(Conditional(k_a, k_s, e_a, e_s, d))
        return BlockTridiagonalFactor(tuple(conditionals), tuple(links)), torch.stack(oks).all(0)

    def start_share(self, q: Chain) -> Float[Tensor, " R"]:
        return PerLayer(self.kronecker).start_share(q.within)


@dataclass(frozen=True, kw_only=True)
class BlockTridiagonal(NaturalGradient):
    """Noisy block-tridiagonal K-FAC, with one `Factor` over all layers; the defaults are those of noisy K-FAC."""

    prior_error: ClassVar[str] = "split damping is part of its density"
    decomposes = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(self.net.convolutions):
            raise InputError(POSITIONS)

    @property
    def structure(self) -> BlockTridiagonalKronecker:
        return BlockTridiagonalKronecker(KroneckerRule(self.beta))


def _cross(x: Float[Tensor, "R _S B 1 _I"], y: Float[Tensor, "R S B 1 _J"]) -> Tensor:
    """Return E[x y^T] over samples and examples."""
    return torch.einsum("rsbti,rsbtj->rij", x, y) / (y.shape[1] * y.shape[2])


PRESETS: dict[str, dict[str, object]] = {
    "default": TABLE,
    "hundreds": HUNDREDS,
    "classes": CLASSES,
    # The paper gives no settings; these are those of noisy K-FAC.
    "paper": {"adaptive_damping": False},
    "small": SMALL | {"factor_interval": 10},
    "vime": {},
}  # fmt: skip

BY_ROWS = natural.TABLE_BY_ROWS
BY_COLUMNS = natural.BY_COLUMNS
