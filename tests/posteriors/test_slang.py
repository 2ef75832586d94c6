"""SLANG against the corrected equations of its paper, written out in NumPy."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from explore.core.rng import Rng
from explore.core.shapes import Batch, Taps
from explore.inference.structures.dense import Dense
from explore.inference.structures.low_rank import (
    LowRankFactor,
    leading,
    leading_dense,
    leading_gram,
    leading_randomised,
)
from explore.nets.likelihoods import Gaussian
from explore.nets.net import Net, mlp
from explore.posteriors.slang import SLANG
from tests import oracles
from tests.memory import peak_of_updates

MODULE = mlp(2, [3], 2).double()
NET = Net(MODULE)
N, W, TAU = 40, NET.weights, 4.0
ALPHA, BETA, LAMBDA, ETA, MOMENTUM, START = 0.2, 0.3, 0.7, 0.6, 0.8, 5.0
SETTINGS = dict(
    lr=ALPHA, beta=BETA, kl_weight=LAMBDA, prior_variance=ETA, momentum=MOMENTUM, initial_precision=START,
    power_iterations=100,
)  # fmt: skip


def build(net=NET, **settings):
    return SLANG(net=net, likelihood=Gaussian(noise_std=TAU**-0.5), **SETTINGS | settings)


def rng(seed=0):
    return Rng(seed, dtype=torch.float64)


def close(actual, expected, rtol=1e-8, atol=1e-10):
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol)


def gradients(w, x, y):
    """d log p / dw [n, W] of one replica, by the chain rule with dense Jacobians."""
    layers = oracles.unflat(torch.as_tensor(w)[None], NET.shapes)
    score = TAU * (y - oracles.run(MODULE, layers, x[None]))
    jacobian = oracles.jacobians(MODULE, layers, x[None], NET.shapes)
    return torch.einsum("rsbo,rsbow->rsbw", score, jacobian)[0].flatten(0, 1).numpy()


def top(x, rank):
    values, vectors = np.linalg.eigh(x)
    return (vectors[:, -rank:] * values[-rank:]) @ vectors[:, -rank:].T


def biases():
    return oracles.flat(tuple(torch.arange(i).eq(i - 1)[:, None].expand(i, o) for i, o in NET.shapes)).numpy()


# (samples, examples): with (1, 2) the eigenpairs come from a Gram matrix, with (4, 6) and rank 1 from the randomised
# method, otherwise from the dense matrix.
@pytest.mark.parametrize(("samples", "examples"), [(1, 2), (4, 6)])
@pytest.mark.parametrize("rank", [1, 2, W])
@pytest.mark.parametrize("extra", [{}, {"decay": 0.6}, {"bias_prior_variance": 100.0}], ids=str)
def test_updates_follow_the_paper(samples, examples, rank, extra):
    posterior = build(rank=rank, samples=samples, **extra)
    data = rng(9)
    batch = Batch(data.normal(2, examples, 2), data.normal(2, examples, 2))
    state, ours, noise = posterior.init(N, 2, rng()), rng(1), rng(1)
    prior = np.where(biases(), 1 / extra.get("bias_prior_variance", ETA), 1 / ETA)
    theirs = [(oracles.flat(state.mean)[r].numpy(), np.zeros(W), np.zeros((W, W)), np.full(W, START)) for r in range(2)]
    units = oracles.unflat(torch.eye(W, dtype=torch.float64).repeat(2, 1, 1), NET.shapes)
    for step in (1, 2, 3):
        roots = oracles.flat(state.precision.root(units)).numpy()
        state, _ = posterior.update(state, batch, ours)
        eps = oracles.flat(tuple(noise.normal(2, samples, *shape) for shape in NET.shapes)).numpy()
        sketch = min(2 * rank + 2, W)
        if (rank + samples * examples) ** 2 > sketch * W > 4 * sketch**2:  # the start of the randomised method
            noise.uniform(2, sketch, W)
        schedule = 1 / (1 + step**0.6) if "decay" in extra else 1
        alpha, beta = ALPHA * schedule, BETA * schedule
        for r, (mu, m, low, d) in enumerate(theirs):
            # Any root R of the covariance will do: eps @ R has the covariance R^T R.
            np.testing.assert_allclose(roots[r].T @ roots[r] @ (low + np.diag(d)), np.eye(W), rtol=1e-8, atol=1e-8)
            g = gradients(mu + eps[r] @ roots[r], batch.x[r], batch.y[r])
            fisher = N / LAMBDA * g.T @ g / len(g)
            x = (1 - beta) * low + beta * fisher
            unprojected = (1 - beta) * (low + np.diag(d)) + beta * (fisher + np.diag(prior))
            low = top(x, rank)
            d = (1 - beta) * d + beta * prior + np.diag(x - low)
            if rank == W:
                np.testing.assert_allclose(low + np.diag(d), unprojected, rtol=1e-8, atol=1e-10)
            m = MOMENTUM * m + (1 - MOMENTUM) * g.mean(0)
            ascent = N / LAMBDA * m / (1 - MOMENTUM**step) - prior * mu
            mu = mu + alpha * np.linalg.solve(low + np.diag(d), ascent)
            theirs[r] = mu, m, low, d
            np.testing.assert_allclose(oracles.flat(state.mean)[r], mu, rtol=1e-7, atol=1e-9)
            np.testing.assert_allclose(oracles.flat(state.momentum)[r], m, rtol=1e-7, atol=1e-9)
            ours_dense = oracles.dense(state.precision)[r].numpy()
            np.testing.assert_allclose(ours_dense, low + np.diag(d), rtol=1e-7, atol=1e-7)
            np.testing.assert_allclose(np.diag(ours_dense), np.diag(unprojected), rtol=1e-8)


# Eigenpairs ------------------------------------------------------------------------------------------------

SHAPES, TOTAL, S, B = ((3, 4), (5, 2)), 22, 2, 4


def problem(rank, positions=1, seed=0, replicas=2):
    """U, taps with gradients of falling size, and X = 0.7 U U^T + 3 E[g g^T]."""
    noise = rng(seed)
    u = noise.normal(replicas, rank, TOTAL)
    falling = 2.0 ** -torch.arange(B, dtype=torch.float64)[:, None, None]
    taps = tuple(
        Taps(noise.normal(replicas, S, B, positions, i), falling * noise.normal(replicas, S, B, positions, o))
        for i, o in SHAPES
    )
    g = oracles.flat(tuple(torch.einsum("rsbti,rsbto->rsbio", t.inputs, t.grads) for t in taps)).flatten(1, 2)
    return oracles.unflat(u, SHAPES), taps, 0.7 * u.mT @ u + 3 * g.mT @ g / (S * B)


def square(columns):
    u = oracles.flat(columns)
    return u.mT @ u


@pytest.mark.parametrize("positions", [1, 3])
@pytest.mark.parametrize("rank", [1, 3, TOTAL])
@pytest.mark.parametrize("method", [leading_gram, leading_dense])
def test_exact_eigenpairs(method, rank, positions):
    u, taps, x = problem(rank, positions)
    found, ok = method(u, taps, 0.7, 3.0)
    assert ok.all() and [f.shape for f in found] == [v.shape for v in u]
    close(square(found), torch.stack([torch.as_tensor(top(m.numpy(), rank)) for m in x]))


@pytest.mark.parametrize("rank", [1, 3])
def test_randomised_eigenpairs_are_close_and_never_too_large(rank):
    u, taps, x = problem(rank)
    exact, _ = leading_gram(u, taps, 0.7, 3.0)
    error = []
    for iterations in (1, 4, 40):
        found, ok = leading_randomised(u, taps, 0.7, 3.0, 2 * rank + 2, iterations, rng(4))
        assert ok.all()
        assert torch.linalg.eigvalsh(x - square(found)).min() > -1e-10  # so the diagonal loses nothing
        error.append(float((square(found) - square(exact)).norm() / square(exact).norm()))
    assert error[0] < 0.1 and error[1] < 1e-2 and error[2] < 1e-8


@pytest.mark.parametrize("positions", [1, 3])
def test_a_sketch_of_all_weights_is_exact(positions):
    u, taps, _ = problem(5, positions)
    exact, _ = leading_gram(u, taps, 0.7, 3.0)
    found, _ = leading_randomised(u, taps, 0.7, 3.0, TOTAL, 1, rng(4))
    close(square(found), square(exact))


@pytest.mark.parametrize("method", [leading_gram, leading_dense, leading_randomised])
def test_a_failed_replica_is_reported_and_touches_no_other(method):
    u, taps, _ = problem(2, replicas=3)
    broken = tuple(Taps(t.inputs, t.grads.clone()) for t in taps)
    broken[1].grads[1, 0, 2] = torch.nan

    def run(taps):
        return method(u, taps, 0.7, 3.0, *([6, 4, rng(4)] if method is leading_randomised else []))

    (hurt, ok), (healthy, _) = run(broken), run(taps)
    assert ok.tolist() == [True, False, True]
    for a, b in zip(hurt, healthy, strict=True):
        assert torch.equal(a[[0, 2]], b[[0, 2]])


def test_directions_without_weight_leave_no_column():
    u, taps, _ = problem(TOTAL)
    nothing = tuple(torch.zeros_like(x) for x in u)
    for found, _ in (
        leading_gram(nothing, taps, 0.7, 3.0),
        leading_dense(nothing, taps, 0.7, 3.0),
        leading_randomised(nothing, taps, 0.7, 3.0, TOTAL, 4, rng(4)),
    ):
        assert (oracles.flat(found).norm(dim=2) > 0).sum(1).tolist() == [S * B, S * B]
        assert torch.isfinite(oracles.flat(found)).all()


# Few examples: a Gram matrix; many, and few weights beside the rank: the dense one; else the randomised method.
@pytest.mark.parametrize(("repeats", "rank", "random"), [(1, 1, False), (3, 1, True), (3, 2, False)])
def test_the_cheaper_method_is_taken(repeats, rank, random):
    u, taps, _ = problem(rank)
    noise = rng(1)
    leading(
        u,
        tuple(Taps(t.inputs.repeat(1, 1, repeats, 1, 1), t.grads.repeat(1, 1, repeats, 1, 1)) for t in taps),
        0.7,
        3.0,
        4,
        noise,
    )
    assert torch.equal(noise.normal(1), rng(1).normal(1)) != random  # whether a random start was drawn


# Against the dense matrix ----------------------------------------------------------------------------------


def test_with_as_many_columns_as_weights_it_is_the_dense_recursion():
    noise, count = rng(2), N / LAMBDA
    posterior = build(rank=W)
    d = torch.full((2, W), START, dtype=torch.float64)
    u = tuple(torch.zeros(2, W, *shape, dtype=torch.float64) for shape in NET.shapes)
    dense = (START - 1 / ETA) / count * torch.eye(W, dtype=torch.float64).repeat(2, 1, 1)
    for step in (1, 2, 3):
        taps = tuple(Taps(noise.normal(2, S, B, 1, i), noise.normal(2, S, B, 1, o)) for i, o in NET.shapes)
        dense = Dense(NET.shapes, BETA).observe(dense, taps, 1.0, step)
        u, _ = leading(u, taps, 1 - BETA, BETA * count, posterior.power_iterations, noise)
        d = (1 - BETA) * d + BETA / ETA
        own = oracles.dense(LowRankFactor(u, oracles.unflat(d, NET.shapes)))
        close(own, count * dense + torch.eye(W, dtype=torch.float64) / ETA)


@pytest.mark.parametrize("rank", [1, 5, W, W + 3])
@pytest.mark.parametrize("least", [1.0, 1e5])
def test_single_precision_keeps_directions_a_hundred_million_times_as_precise_as_others(rank, least):
    noise = rng(4)
    axes = torch.linalg.qr(noise.normal(2, W, W))[0][:, :, : min(rank, W)]
    sizes = torch.logspace(math.log10(least), 8, axes.shape[2], dtype=torch.float64)
    columns = torch.cat([torch.zeros(2, max(rank - W, 0), W), (axes * sizes.sqrt()).mT], 1)
    diagonal = 0.5 + noise.uniform(2, 1, W)
    single = LowRankFactor(
        tuple(t.float() for t in oracles.unflat(columns, NET.shapes)),
        tuple(t.squeeze(1).float() for t in oracles.unflat(diagonal, NET.shapes)),
    )
    precision = oracles.dense(LowRankFactor(*(tuple(t.double() for t in part) for part in single)))
    covariance = torch.linalg.inv(precision)
    variance = oracles.flat(tuple(t.unsqueeze(1) for t in single.variance()))[:, 0].double()
    torch.testing.assert_close(variance, covariance.diagonal(dim1=1, dim2=2), rtol=1e-4, atol=0)
    units = tuple(t.float() for t in oracles.unflat(torch.eye(W).repeat(2, 1, 1), NET.shapes))
    root, half = oracles.flat(single.root(units)).double(), torch.linalg.cholesky(precision)
    white, eye = half.mT @ root.mT @ root @ half, torch.eye(W, dtype=torch.float64).expand(2, -1, -1)
    torch.testing.assert_close(white, eye, rtol=0, atol=0.01)
    solved = oracles.flat(single.solve(units)).diagonal(dim1=1, dim2=2).double()
    torch.testing.assert_close(solved, covariance.diagonal(dim1=1, dim2=2), rtol=1e-3, atol=0)
    torch.testing.assert_close(single.logdet().double(), precision.logdet(), rtol=1e-5, atol=1e-3)


def test_more_columns_than_weights_are_not_kept():
    assert build(rank=1000).init(N, 1, rng()).precision.columns[0].shape[1] == W


def test_starts_as_a_factorised_gaussian():
    posterior = build(initial_precision=16.0)
    state = posterior.init(N, 2, rng())
    close(oracles.dense(state.precision), 16 * torch.eye(W, dtype=torch.float64).repeat(2, 1, 1))
    w = oracles.flat(posterior.sample(state, 20000, rng(3))) - oracles.flat(state.mean).unsqueeze(1)
    assert w.std(1).sub(0.25).abs().max() < 5 * 0.25 / 40000**0.5


@pytest.mark.parametrize("bias", [None, 30.0])
def test_kl_to_the_prior_of_weights_and_biases(bias):
    module = nn.Sequential(nn.Linear(2, 3, bias=False), nn.ReLU(), nn.Linear(3, 2))
    posterior, data = build(Net(module), rank=2, bias_prior_variance=bias), rng(9)
    state = posterior.init(N, 2, rng())
    state, _ = posterior.update(state, Batch(data.normal(2, 5, 2), data.normal(2, 5, 2)), rng(1))
    mean, covariance = oracles.implied_gaussian(posterior, state)
    variance = torch.full((14,), ETA, dtype=torch.float64)
    variance[12:] = bias or ETA  # the first layer has none
    close(
        posterior.kl_prior(state),
        oracles.kl(mean, covariance, torch.zeros_like(mean), variance.diag().expand(2, -1, -1)),
    )


@pytest.mark.slow
def test_memory_does_not_hold_every_examples_gradient():
    # 4 samples x 200 examples x 478410 weights would be 1.4 GiB.
    setup = """
        import torch
        from explore.nets.likelihoods import Categorical
        from explore.nets.net import Net, mlp
        from explore.posteriors.slang import SLANG
        from explore.core.rng import Rng
        from explore.core.shapes import Batch

        posterior = SLANG(net=Net(mlp(784, [400, 400], 10)), likelihood=Categorical(), rank=8, samples=4)
        rng = Rng(0)
        state = posterior.init(50000, 1, rng)
        batch = Batch(rng.uniform(1, 200, 784), torch.zeros(1, 200, dtype=torch.long))
    """
    assert 0 < peak_of_updates(setup) < 0.7


def test_the_effective_rank_knows_the_prior_of_the_biases():
    posterior = SLANG(net=Net(mlp(2, [3], 1)), likelihood=Gaussian(), bias_prior_variance=1e6, rank=2, beta=0.1)
    rng = Rng(0, dtype=torch.float64)
    x = rng.normal(2, 8, 2)
    state = posterior.init(8, 2, rng)
    for _ in range(5):
        state, _ = posterior.update(state, Batch(x, x[..., :1]), rng)
    _, covariance = oracles.implied_gaussian(posterior, state)
    prior = torch.tensor([1.0] * 6 + [1e-6] * 3 + [1.0] * 3 + [1e-6], dtype=torch.float64)  # the last row of a layer
    rank = 13 - (prior * covariance.diagonal(dim1=1, dim2=2)).sum(1)
    torch.testing.assert_close(posterior.effective_rank(state), rank, rtol=1e-9, atol=0)
