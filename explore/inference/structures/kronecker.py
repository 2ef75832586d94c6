"""Kronecker-factored blocks (K-FAC): exact or approximate Kronecker products of an input factor and an output factor.

For a layer with W [I, O], the block of the Fisher matrix is A (x) S: A [I, I] is the second moment of the inputs, and S
[O, O] of the output gradients (Martens and Grosse 2015). (A (x) S)^-1 maps a gradient G to A^-1 G S^-1.

If an example has T positions (tokens, pixels), its weight gradient is the sum of a_t g_t^T. Let a be the mean of
the inputs a_t, and g the sum of the output gradients g_t. The options of `WeightSharing` are

    expand   A = E sum_t a_t a_t^T,   S = E mean_t g_t g_t^T            Grosse, Martens (2016), "KFC"
    reduce   A = E a a^T,             S = E g g^T                       Eschenhagen et al. (2023), "K-FAC-reduce"
    auto     A = E [(1 - c) sum_t a_t a_t^T + c T^2 a a^T],   S = E mean_t g_t g_t^T
             c = (E |g|^2 / E sum_t |g_t|^2 - 1) / (T - 1)              of a batch

All assume that inputs and gradients are independent. "expand" is exact if the gradients at different positions are
uncorrelated, "reduce" if they are equal, "auto" if all pairs are equally correlated. For approximation errors see
experiments/benchmarks/results/positions.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from explore.core.context import Number
from explore.core.linalg import added, averaged, eigh, identity, inverse_root, over
from explore.core.rng import Rng
from explore.core.shapes import Taps
from explore.execution import parallel
from explore.inference.structures import base
from explore.inference.structures.base import Block, Blocks, Damping, Dampings, Diagonal, PerLayer, Statistics

WeightSharing = Literal["auto", "expand", "reduce"]
TOGETHER = 64  # maximum number of rows of factors that are padded and factorised in one call


class KroneckerFactor(NamedTuple):
    """The block A (x) S, stored as inverse Cholesky factors: A = L L^T, `inputs` = L^-1; likewise `outputs` for S."""

    inputs: Float[Tensor, "R I I"]
    outputs: Float[Tensor, "R O O"]

    def solve(self, v: Tensor) -> Tensor:
        if v.shape[1] > 1:
            return base.two_sided(_gram(self.inputs), v, _gram(self.outputs))
        # For one vector, multiplying by each root is faster than multiplying the roots with each other.
        return self.root(base.two_sided(self.inputs.mT, v, self.outputs.mT, upper=False))

    def root(self, eps: Tensor) -> Tensor:
        return base.two_sided(self.inputs, eps, self.outputs, upper=True)

    def logdet(self) -> Float[Tensor, " R"]:
        i, o = self.inputs.shape[-1], self.outputs.shape[-1]
        a, s = (torch.linalg.diagonal(root).log().sum(-1) for root in self)
        return -2 * (o * a + i * s)

    def variance(self) -> Float[Tensor, "R I O"]:
        return self.inputs.square().sum(1).unsqueeze(2) * self.outputs.square().sum(1).unsqueeze(1)

    def quad(self, taps: Taps) -> Float[Tensor, "R B"]:
        a, g = self._whiten(taps)  # [R, B, (S T), I], [R, B, (S T), O]
        if taps.grads.shape[3] > 1 and g.shape[2] ** 2 > a.shape[3] * g.shape[3]:
            each = (a.mT @ g).square()  # smaller than the inner products
        else:
            each = (a @ a.mT) * (g @ g.mT)
        return each.sum((2, 3)) / taps.grads.shape[1] ** 2

    def curvature(self, taps: Taps) -> Float[Tensor, "R B"]:
        """Return `Factor.curvature`: the squared norm of each example's whitened D, projected onto Kronecker sums.

        With D = E_s[g_b g_b^T], whitened by this factor, and the partial traces D_A [I, I] and D_S [O, O] of D, this is
        |D_A|^2 / O + |D_S|^2 / I - tr(D)^2 / (I O).
        """
        i, o = self.inputs.shape[-1], self.outputs.shape[-1]
        a, g = self._whiten(taps)
        if taps.grads.shape[3] == 1:  # each sample has rank one, so S x S inner products suffice
            kg = g @ g.mT
            ka = (a @ a.mT).expand_as(kg)
            norm_a, norm_g = torch.linalg.diagonal(ka), torch.linalg.diagonal(kg)
            inputs = torch.einsum("rbs,rbst,rbt->rb", norm_g, ka.square(), norm_g)
            outputs = torch.einsum("rbs,rbst,rbt->rb", norm_a, kg.square(), norm_a)
            total = (norm_a * norm_g).sum(-1)
        else:
            split = (taps.grads.shape[1], taps.grads.shape[3])
            x = torch.einsum("rbsti,rbsto->rbsio", a.unflatten(2, split), g.unflatten(2, split))
            inputs = torch.einsum("rbsio,rbsjo->rbij", x, x).square().sum((2, 3))
            outputs = torch.einsum("rbsio,rbsip->rbop", x, x).square().sum((2, 3))
            total = x.square().sum((2, 3, 4))
        return (inputs / o + outputs / i - total.square() / (i * o)) / taps.grads.shape[1] ** 2

    def _whiten(self, taps: Taps) -> tuple[Tensor, Tensor]:
        a = torch.einsum("rsbti,rji->rbstj", taps.inputs, self.inputs)
        g = torch.einsum("rsbto,rpo->rbstp", taps.grads, self.outputs)
        if taps.grads.shape[3] > 1:  # with one position, inputs shared by all samples need no copies
            a = a.expand(-1, -1, g.shape[2], -1, -1)
        return a.flatten(2, 3), g.flatten(2, 3)


def rotated_squares(taps: Taps, inputs: Float[Tensor, "R I I"], outputs: Float[Tensor, "R O O"]) -> Tensor:
    """Return `mean_squares` in the bases `inputs` and `outputs`.

    The taps are rotated or, if there are more positions than outputs, the weight gradient of each example.
    """
    if taps.grads.shape[3] <= taps.grads.shape[4]:
        return base.mean_squares(base.rotate(taps, inputs, outputs))
    each = (base.two_sided(inputs, x.flatten(1, 2), outputs) for (x,) in base.example_gradients((taps,)))
    return parallel.mean(added([x.square_().sum(1) for x in each]) / (taps.grads.shape[1] * taps.grads.shape[2]))


class KroneckerMoments(NamedTuple):
    """Running second moments of the inputs and output gradients of one layer."""

    inputs: Float[Tensor, "R I I"]  # A
    outputs: Float[Tensor, "R O O"]  # S


@dataclass(frozen=True)
class KroneckerRule:
    """The K-FAC rule for one layer: F = A (x) S.

    damping="split" adds pi sqrt(gamma) to A and sqrt(gamma)/pi to S, as in the papers; "exact" uses A (x) S + gamma I.
    """

    beta: Number = 0.001  # averaging rate
    damping: Literal["split", "exact"] = "split"
    weight_sharing: WeightSharing = "auto"

    def init(self, inputs: int, outputs: int, replicas: int, rng: Rng) -> KroneckerMoments:
        """Return identities plus small random Gram matrices; estimates from few batches alone would diverge."""

        def start(n: int) -> Tensor:
            g = 0.1 * rng.normal(replicas, n, n)
            return identity(n, g) + g @ g.mT

        return KroneckerMoments(start(inputs), start(outputs))

    def observe(self, moments: KroneckerMoments, taps: Taps, schedule: Number, step: int) -> KroneckerMoments:
        shared, rate = taps.grads.shape[3] > 1, self.beta * schedule
        if shared and self.weight_sharing == "reduce":
            taps = Taps(taps.mean_inputs().unsqueeze(3), taps.grads.sum(3, keepdim=True))
        if shared and self.weight_sharing == "auto":
            each, mean = taps.average_inputs(moments.inputs, 1.0), taps.mean_inputs().flatten(1, 2)
            pooled = taps.grads.shape[3] ** 2 / mean.shape[1] * (mean.mT @ mean)
            new = torch.lerp(each, pooled, over(correlation(taps.grads), pooled))
            inputs = torch.lerp(moments.inputs, new, over(rate, new))
        else:
            inputs = taps.average_inputs(moments.inputs, rate)
        g = taps.grads.flatten(1, 3)
        outputs = averaged(moments.outputs, g.mT, g, 1 - rate, rate / g.shape[1])
        return parallel.mean(KroneckerMoments(inputs, outputs))

    def factor(self, moments: KroneckerMoments, damping: Damping) -> tuple[Block, Bool[Tensor, " R"]]:
        if self.damping == "exact":
            basis = eigenbasis(moments)
            return Diagonal(basis.values + over(damping, basis.values), basis.inputs, basis.outputs), basis.ok
        a, s = damped(moments, damping)
        (a, ok_a), (s, ok_s) = inverse_root(a), inverse_root(s)
        return KroneckerFactor(a, s), ok_a & ok_s

    def start_share(self, moments: KroneckerMoments) -> Float[Tensor, " R"]:
        """Return the larger ratio, for A or S [n, n], of the initial mean diagonal 1 + 0.01 n to the current one."""
        return torch.stack([(1 + 0.01 * m.shape[1]) / torch.linalg.diagonal(m).mean(1) for m in moments]).amax(0)


def correlation(grads: Float[Tensor, "R S B T O"]) -> Float[Tensor, " R"]:
    """Return the correlation c between gradients at T > 1 positions (see the module docstring), over all processes."""
    one, pooled = parallel.mean((grads.square().sum((1, 2, 3, 4)), grads.sum(3).square().sum((1, 2, 3))))
    return (pooled - one) / ((grads.shape[3] - 1) * one).clamp_min(torch.finfo(one.dtype).tiny)


class KroneckerLayers(PerLayer):
    """K-FAC for all layers; on a GPU, small factors are factorised in one call, and large ones in parallel."""

    rule: KroneckerRule

    def factor(self, statistics: Statistics, damping: Dampings) -> tuple[Blocks, Bool[Tensor, " R"]]:
        largest, device = max(len(m[0]) for moments in statistics for m in moments), statistics[0].inputs.device
        if device.type == "cpu" or self.rule.damping == "exact":
            return super().factor(statistics, damping)
        if largest <= TOGETHER:
            return together(statistics, damping)
        return base.gathered(parallel.side_by_side(self.each_factor(statistics, damping), device))


def together(statistics: Sequence[KroneckerMoments], damping: Dampings) -> tuple[Blocks, Bool[Tensor, " R"]]:
    """Factorise all layers with split damping in one batched call, with each factor padded to the largest size."""
    pairs = list(zip(statistics, base.each_layer(damping, len(statistics)), strict=True))
    matrices = [m for moments in statistics for m in moments]
    shares = [share for moments, c in pairs for share in split_damping(moments, c)]
    eye = identity(max(len(m[0]) for m in matrices), matrices[0])
    whole = eye.repeat(len(matrices), len(matrices[0]), 1, 1)  # padded with the identity
    sides = [slice(m.shape[1]) for m in matrices]
    for padded, side, m, share in zip(whole, sides, matrices, shares, strict=True):
        padded[:, side, side] = m
        torch.linalg.diagonal(padded[:, side, side]).add_(share.unsqueeze(1))
    roots, ok = inverse_root(whole)
    parts = [root[:, side, side] for root, side in zip(roots, sides, strict=True)]
    return Blocks(tuple(map(KroneckerFactor, parts[::2], parts[1::2]))), ok.all(0)


class Basis(NamedTuple):
    """The eigenvectors and eigenvalues of A and S, and for which replicas the decomposition succeeded."""

    inputs: Float[Tensor, "R I I"]  # Q_A
    outputs: Float[Tensor, "R O O"]  # Q_S
    input_values: Float[Tensor, "R I"]
    output_values: Float[Tensor, "R O"]
    ok: Bool[Tensor, " R"]

    @property
    def values(self) -> Float[Tensor, "R I O"]:
        """The eigenvalues of A (x) S."""
        return self.input_values.unsqueeze(2) * self.output_values.unsqueeze(1)

    def raised(self, a: Float[Tensor, " R"], s: Float[Tensor, " R"]) -> Basis:
        """Return the basis with a added to the eigenvalues of A, and s to those of S."""
        a, s = self.input_values + a.unsqueeze(1), self.output_values + s.unsqueeze(1)
        return self._replace(input_values=a, output_values=s)


def eigenbasis(moments: KroneckerMoments) -> Basis:
    """Return the eigenbasis of A (x) S."""
    (values_a, vectors_a, ok_a), (values_s, vectors_s, ok_s) = map(eigh, moments)
    return Basis(vectors_a, vectors_s, values_a.clamp_min(0), values_s.clamp_min(0), ok_a & ok_s)


def damped(moments: KroneckerMoments, damping: Damping) -> KroneckerMoments:
    """Return A^gamma and S^gamma, the moments with split damping."""
    raised = KroneckerMoments(*(m.clone() for m in moments))
    for m, share in zip(raised, split_damping(moments, damping), strict=True):
        torch.linalg.diagonal(m).add_(share.unsqueeze(1))
    return raised


def split_damping(moments: KroneckerMoments, damping: Damping) -> tuple[Float[Tensor, " R"], Float[Tensor, " R"]]:
    """Return the terms that split damping adds to the diagonals of A and S: pi sqrt(gamma) and sqrt(gamma) / pi."""
    mean_a, mean_s = (torch.linalg.diagonal(m).mean(1) for m in moments)
    ratio = (mean_a + 1e-8) / (mean_s + 1e-8)  # pi^2
    split = over(damping, ratio) ** 0.5
    return split * ratio.sqrt(), split * ratio.rsqrt()


class Eigen(NamedTuple):
    """EK-FAC statistics of one layer."""

    moments: KroneckerMoments  # A, S
    inputs: Float[Tensor, "R I I"]  # Q_A
    outputs: Float[Tensor, "R O O"]  # Q_S
    scale: Float[Tensor, "R I O"]  # r
    ok: Bool[Tensor, " R"]  # whether the last eigendecomposition succeeded

    def turned(self, basis: Basis) -> Eigen:
        """Return the statistics in another basis, with r the diagonal of the Fisher matrix there."""
        inputs, outputs = (basis.inputs.mT @ self.inputs).square(), (self.outputs.mT @ basis.outputs).square()
        return Eigen(self.moments, basis.inputs, basis.outputs, inputs @ self.scale @ outputs, basis.ok)


@dataclass(frozen=True)
class EigenRule:
    """The rule of EK-FAC (George et al. 2018) for one layer: F = Q diag(r) Q^T.

    Q = Q_A (x) Q_S, with eigenvectors Q_A of A and Q_S of S.
    """

    kronecker: KroneckerRule
    omega: float
    moments_interval: int
    basis_interval: int = 1
    scale_interval: int = 1

    def init(self, inputs: int, outputs: int, replicas: int, rng: Rng) -> Eigen:
        moments = self.kronecker.init(inputs, outputs, replicas, rng)
        basis = eigenbasis(moments)
        return Eigen(moments, basis.inputs, basis.outputs, basis.values, basis.ok)

    def observe(self, q: Eigen, taps: Taps, schedule: Number, step: int) -> Eigen:
        if step % self.moments_interval == 0:
            q = q._replace(moments=self.kronecker.observe(q.moments, taps, schedule, step))
        if step % self.basis_interval == 0:
            q = q.turned(eigenbasis(q.moments))
        if step % self.scale_interval == 0:
            squares = rotated_squares(taps, q.inputs, q.outputs)
            q = q._replace(scale=torch.lerp(q.scale, squares, over(self.omega * schedule, squares)))
        return q

    def factor(self, q: Eigen, damping: Damping) -> tuple[Diagonal, Bool[Tensor, " R"]]:
        return Diagonal(q.scale + over(damping, q.scale), q.inputs, q.outputs), q.ok

    def start_share(self, q: Eigen) -> Float[Tensor, " R"]:
        return self.kronecker.start_share(q.moments)

    def restart(self, q: Eigen, damping: Damping | None = None) -> Eigen:
        """Reset r to the diagonal of A (x) S, or with `damping` of A^gamma (x) S^gamma, in the current eigenbasis."""
        moments = q.moments if damping is None else damped(q.moments, damping)
        a, s = (((m @ b) * b).sum(1).clamp_min(0) for m, b in zip(moments, (q.inputs, q.outputs), strict=True))
        return q._replace(scale=a.unsqueeze(2) * s.unsqueeze(1))


def _gram(root: Tensor) -> Tensor:
    return torch.bmm(root.mT, root)  # faster than `@`, which first inspects the number of axes
