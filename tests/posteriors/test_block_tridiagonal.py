"""Block-tridiagonal K-FAC against the matrices of Martens and Grosse (2015), written out."""

import pytest
import torch
from torch import nn

from explore.core.errors import InputError
from explore.core.rng import Rng
from explore.core.shapes import Taps, flatten, unflatten
from explore.inference.structures.kronecker import KroneckerMoments, KroneckerRule, damped
from explore.nets.likelihoods import Gaussian
from explore.nets.net import Net, mlp
from explore.posteriors.block_tridiagonal import BlockTridiagonal, BlockTridiagonalKronecker, Chain
from tests import oracles

SHAPES = ((4, 3), (5, 4), (3, 5))
R, S, B, GAMMA = 2, 3, 6, 0.3
EDGES = [0, 12, 32, 47]


def rng(seed=0):
    return Rng(seed, dtype=torch.float64)


def taps(seed=1):
    """Neighbouring layers share a part, so that their moments are correlated; the first inputs have S = 1."""
    r = rng(seed)
    common = r.normal(R, S, B, 1, 1)
    inputs = [r.normal(R, 1 if i == 0 else S, B, 1, n) for i, (n, _) in enumerate(SHAPES)]
    return tuple(
        Taps(a if i == 0 else a + 1.5 * common, r.normal(R, S, B, 1, o) + 1.5 * common)
        for i, (a, (_, o)) in enumerate(zip(inputs, SHAPES, strict=True))
    )


def statistics():
    structure = BlockTridiagonalKronecker(KroneckerRule(0.5))
    q = structure.init(SHAPES, R, rng())
    for step in range(1, 4):
        q = structure.observe(q, taps(step), 1.0, step)
    return structure, q


def kron(a, s):
    return torch.stack([torch.kron(x.contiguous(), y.contiguous()) for x, y in zip(a, s, strict=True)])


def oracle(q):
    """F^-1 = Xi^T Lambda Xi, dense."""
    diagonal = [damped(m, GAMMA) for m in q.within]
    blocks, xi = [], torch.eye(47, dtype=torch.float64).repeat(R, 1, 1)
    for i, (a, s) in enumerate(diagonal):
        sigma = kron(a, s)
        if i < 2:
            (cross_a, cross_s), (next_a, next_s) = q.between[i], diagonal[i + 1]
            psi_a, psi_s = cross_a @ next_a.inverse(), cross_s @ next_s.inverse()
            sigma = sigma - kron(psi_a @ next_a @ psi_a.mT, psi_s @ next_s @ psi_s.mT)
            xi[:, EDGES[i] : EDGES[i + 1], EDGES[i + 1] : EDGES[i + 2]] = -kron(psi_a, psi_s)
        blocks.append(sigma.inverse())
    inverse = torch.stack([torch.block_diag(*rows) for rows in zip(*blocks, strict=True)])
    return xi.mT @ inverse @ xi


def close(actual, expected, rtol=1e-8, atol=1e-10):
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol)


def test_moments_between_layers():
    structure = BlockTridiagonalKronecker(KroneckerRule(0.5))
    t = taps()
    q = structure.observe(structure.init(SHAPES, R, rng()), t, 1.0, 1)
    a, b = t[0].inputs.expand(-1, S, -1, -1, -1).flatten(1, 3), t[1].inputs.flatten(1, 3)
    close(q.between[0].inputs, 0.5 * a.mT @ b / (S * B))
    close(q.between[1].outputs, 0.5 * t[1].grads.flatten(1, 3).mT @ t[2].grads.flatten(1, 3) / (S * B))


def test_the_factor_is_the_dense_matrix():
    structure, q = statistics()
    factor, ok = structure.factor(q, GAMMA)
    inverse = oracle(q)
    assert ok.all() and inverse[:, :12, 12:32].abs().max() > 1e-3  # the layers are coupled
    close(oracles.dense(factor), inverse.inverse())
    v = rng(5).normal(R, 2, 47)
    parts = unflatten(v, SHAPES)
    close(flatten(factor.solve(parts)), v @ inverse)
    close(factor.logdet(), -torch.logdet(inverse))
    close(flatten(factor.variance()), inverse.diagonal(dim1=1, dim2=2))
    root = flatten(factor.root(unflatten(torch.eye(47, dtype=v.dtype).expand(R, -1, -1), SHAPES)))
    close(root.mT @ root, inverse)


def test_only_what_rounding_takes_to_a_perfect_correlation_is_lifted():
    eyes = [torch.eye(n, dtype=torch.float64).unsqueeze(0) for n in (3, 4)]
    correlations = [
        torch.tensor(values, dtype=torch.float64) for values in ([1.0, 0.999, 0.5], [1.0, 0.9995, 0.2, 0.1])
    ]
    within = KroneckerMoments(*eyes)
    between = KroneckerMoments(*(c.diag().unsqueeze(0) for c in correlations))
    factor, ok = BlockTridiagonalKronecker(KroneckerRule(0.5)).factor(Chain((within, within), (between,)), 0.0)
    expected = 1 - correlations[0].square().unsqueeze(1) * correlations[1].square()
    expected[0, 0] = 1e-6
    assert ok.all()
    close(factor.conditionals[0].diagonal.flatten().sort().values, expected.flatten().sort().values)


def test_it_matches_the_kronecker_blocks_it_approximates():
    structure, q = statistics()
    dense = oracles.dense(structure.factor(q, GAMMA)[0])
    for i, m in enumerate(q.within):
        here = slice(EDGES[i], EDGES[i + 1])
        close(dense[:, here, here], kron(*damped(m, GAMMA)))
        if i < 2:
            close(dense[:, here, EDGES[i + 1] : EDGES[i + 2]], kron(*q.between[i]))


def test_quad_and_curvature():
    structure, q = statistics()
    factor, t = structure.factor(q, GAMMA)[0], taps(9)
    g = flatten(tuple(torch.einsum("rsbti,rsbto->rsbio", x.inputs.expand(-1, S, -1, -1, -1), x.grads) for x in t))
    inverse = oracle(q)
    mean = g.mean(1)
    close(factor.quad(t), torch.einsum("rbv,rvw,rbw->rb", mean, inverse, mean))
    gram = torch.einsum("rsbv,rvw,rtbw->rbst", g, inverse, g)
    close(factor.curvature(t), gram.square().mean((2, 3)))


def test_a_convolution_is_refused():
    net = Net(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 1)))
    with pytest.raises(InputError, match="dense layers"):
        BlockTridiagonal(net=net, likelihood=Gaussian())


def test_one_layer_is_noisy_kfac():
    posterior = BlockTridiagonal(net=Net(mlp(3, [], 2)), likelihood=Gaussian())
    state = posterior.init(6, R, rng())
    close(oracles.dense(state.sampling), kron(*damped(state.statistics.within[0], 1 / 6)))
