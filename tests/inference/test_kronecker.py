"""The matrices that Kronecker blocks write out, and when K-FAC is the Fisher matrix itself."""

import pytest
import torch
from torch import nn

from explore.core.rng import Rng
from explore.core.shapes import Taps
from explore.inference.structures.base import Diagonal
from explore.inference.structures.kronecker import (
    KroneckerFactor,
    KroneckerLayers,
    KroneckerMoments,
    KroneckerRule,
    together,
)
from explore.nets.likelihoods import Gaussian
from explore.nets.net import Net, mlp
from explore.testing.oracles import Matched
from tests import oracles

generator = torch.Generator().manual_seed(1)


def randn(*shape):
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def positive(r, n):
    x = randn(r, n, n)
    return x @ x.mT + 0.1 * torch.eye(n)


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-8, atol=1e-10)


def kron(a, s):
    return torch.stack([torch.kron(*pair) for pair in zip(a, s, strict=True)])


def test_dense_is_the_kronecker_product():
    a, s = positive(2, 3), positive(2, 4)
    inverse_roots = (torch.linalg.inv(torch.linalg.cholesky(m)) for m in (a, s))
    close(oracles.dense(KroneckerFactor(*inverse_roots)), kron(a, s))


def test_dense_of_a_diagonal_in_an_eigenbasis():
    (a, qa), (s, qs) = (torch.linalg.eigh(positive(2, n)) for n in (3, 4))
    factor = Diagonal(a.unsqueeze(2) * s.unsqueeze(1) + 0.3, qa, qs)
    rebuilt = [q @ torch.diag_embed(e) @ q.mT for e, q in ((a, qa), (s, qs))]
    close(oracles.dense(factor), kron(*rebuilt) + 0.3 * torch.eye(12).double())


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("positions", [1, 2, 5])  # by inner products, and by each example's own gradient
def test_quad_with_few_positions_and_many(positions, shared):
    roots = (torch.linalg.inv(torch.linalg.cholesky(positive(2, n))) for n in (9, 8))
    factor, t = (
        KroneckerFactor(*roots),
        Taps(randn(2, 1 if shared else 2, 4, positions, 9), randn(2, 2, 4, positions, 8)),
    )
    g = torch.einsum("rsbti,rsbto->rbio", t.inputs.expand(-1, 2, -1, -1, -1), t.grads).flatten(2) / 2
    close(factor.quad(t), torch.einsum("rbv,rvw,rbw->rb", g, torch.linalg.inv(oracles.dense(factor)), g))


@pytest.mark.parametrize("samples", [1, 3])  # 1: inputs that all samples share
@pytest.mark.parametrize("positions", [1, 5])
def test_observe_averages_dense_moments(positions, samples):
    taps = Taps(randn(2, samples, 4, positions, 3), randn(2, 3, 4, positions, 2))
    old = KroneckerMoments(positive(2, 3), positive(2, 2))
    new = KroneckerRule(0.2, weight_sharing="expand").observe(old, taps, 1.0, 1)
    # The gradient of an example is the sum over positions of a g^T: A carries the sum, S the average.
    close(
        new.inputs, 0.8 * old.inputs + 0.2 * torch.einsum("rsbti,rsbtj->rij", taps.inputs, taps.inputs) / (4 * samples)
    )
    squares = torch.einsum("rsbto,rsbtp->rop", taps.grads, taps.grads) / (12 * positions)
    close(new.outputs, 0.8 * old.outputs + 0.2 * squares)


@pytest.mark.parametrize("sharing", ["expand", "reduce"])  # "auto" measures a correlation in each batch
def test_observe_ignores_how_examples_are_batched(sharing):
    taps, old = Taps(randn(2, 3, 4, 2, 3), randn(2, 3, 4, 2, 2)), KroneckerMoments(positive(2, 3), positive(2, 2))
    rule = KroneckerRule(0.2, weight_sharing=sharing)
    halves = [rule.observe(old, taps.part(p), 1.0, 1) for p in (slice(2), slice(2, 4))]
    whole = rule.observe(old, taps, 1.0, 1)
    close(tuple((a + b) / 2 for a, b in zip(*halves, strict=True)), tuple(whole))


def test_damping_exact():
    moments = KroneckerMoments(positive(2, 3), positive(2, 4))
    factor, ok = KroneckerRule(damping="exact").factor(moments, 0.05)
    assert ok.all()
    close(oracles.dense(factor), kron(*moments) + 0.05 * torch.eye(12))


def test_damping_split():
    a, s = KroneckerMoments(positive(2, 3), 9 * positive(2, 4))
    factor, ok = KroneckerRule(damping="split").factor(KroneckerMoments(a, s), 0.05)
    trace = [m.diagonal(dim1=1, dim2=2).mean(1) for m in (a, s)]
    pi = (trace[0] / trace[1]).sqrt()[:, None, None]
    damped = kron(a + pi * 0.05**0.5 * torch.eye(3), s + 0.05**0.5 / pi * torch.eye(4))
    assert ok.all()
    torch.testing.assert_close(oracles.dense(factor), damped, rtol=1e-6, atol=0)  # the library's pi has 1e-8 inside


@pytest.mark.parametrize("damping", ["split", "exact"])
def test_a_bad_matrix_is_reported_alone(damping):
    moments = KroneckerMoments(positive(3, 3), positive(3, 2))
    moments.outputs[1] = torch.nan
    _, ok = KroneckerRule(damping=damping).factor(moments, 0.1)
    assert ok.tolist() == [True, False, True]


def fisher_and_factors(module, x, samples, rng):
    """The dense Fisher matrix of `samples` targets an example, at one draw of the weights, and K-FAC's A (x) S."""
    net, likelihood = Net(module), Gaussian(noise_std=0.5)
    layers = tuple(w.expand(-1, samples, -1, -1) for w in net.glorot(x.shape[0], rng, 1))
    noise = likelihood.sample_noise(likelihood.init(net.outputs, x.shape[0], rng), samples, rng)
    out, pullback = net.forward(layers, x)
    score = likelihood.score(noise, out, likelihood.sample(noise, out, rng))
    jacobian = oracles.jacobians(module.double(), tuple(w[:, :1] for w in layers), x, net.shapes)[:, 0]
    g = torch.einsum("rsbo,rbow->rsbw", score, jacobian)
    fisher = torch.einsum("rsbv,rsbw->rvw", g, g) / (samples * x.shape[1])
    rule = KroneckerRule(1.0)
    start = [rule.init(i, o, x.shape[0], rng) for i, o in net.shapes]
    moments = [rule.observe(m, t, 1.0, 1) for m, t in zip(start, pullback(score), strict=True)]
    return fisher, [kron(*m) for m in moments], jacobian


def test_kfac_is_exact_for_a_linear_layer_with_one_output():
    rng = Matched(0, dtype=torch.float64)
    fisher, (factors,), jacobian = fisher_and_factors(nn.Linear(3, 1), rng.normal(2, 7, 3), 5, rng)
    close(factors, fisher)
    close(factors, 4 * torch.einsum("rbow,rbov->rwv", jacobian, jacobian) / 7)  # tau E[J^T J], without sampling


@pytest.mark.parametrize("samples", [1, 6])
def test_kfac_is_exact_for_a_single_example(samples):
    rng = Rng(0, dtype=torch.float64)
    fisher, factors, _ = fisher_and_factors(mlp(3, [5], 3), rng.normal(2, 1, 3), samples, rng)
    start = 0
    for block in factors:
        part = slice(start, start := start + block.shape[1])
        close(block, fisher[:, part, part])


def test_kfac_is_an_approximation_elsewhere():
    # Guards the two tests above: with several examples in a hidden layer the two matrices do differ.
    rng = Rng(0, dtype=torch.float64)
    fisher, factors, _ = fisher_and_factors(mlp(3, [5], 3), rng.normal(2, 5, 3), 6, rng)
    assert ((factors[0] - fisher[:, :20, :20]).abs().amax((1, 2)) > 0.1 * fisher.abs().amax((1, 2))).all()


def test_factors_of_all_layers_together_are_those_of_each():
    sizes = [(4, 3), (6, 1), (2, 5)]
    statistics = tuple(KroneckerMoments(positive(2, i), positive(2, o)) for i, o in sizes)
    damping = (0.1, torch.tensor([0.2, 0.3]), 0.4)
    expected, all_ok = KroneckerLayers(KroneckerRule()).factor(statistics, damping)
    found, ok = together(statistics, damping)
    assert ok.tolist() == all_ok.tolist() == [True, True]
    close(oracles.dense(found), oracles.dense(expected))
    statistics[1].inputs[0, 0, 0] = torch.nan
    assert together(statistics, damping)[1].tolist() == [False, True]
