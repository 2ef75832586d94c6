"""Factors that couple layers do the algebra of the matrix that `oracles.dense` writes out."""

import pytest
import torch

from explore.core.shapes import Taps
from explore.inference.structures import dense as dense_structure, low_rank
from explore.inference.structures.dense import DenseFactor
from explore.inference.structures.low_rank import LowRankFactor
from tests import oracles

R, S, B, W = 2, 3, 4, 14
SHAPES = ((3, 2), (2, 4))
generator = torch.Generator().manual_seed(0)


def randn(*shape):
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def dense():
    x = randn(R, W, W)
    root = torch.linalg.inv(torch.linalg.cholesky(x @ x.mT + 0.5 * torch.eye(W)))
    return DenseFactor(oracles.unflat(root, SHAPES))


@pytest.fixture(autouse=True)
def _same_numbers_whatever_ran_before():
    generator.manual_seed(0)


def low(rank):
    diagonal = tuple(randn(R, *shape).square() + 0.3 for shape in SHAPES)
    return LowRankFactor(oracles.unflat(randn(R, rank, W), SHAPES), diagonal)


def whole():
    """Columns in all directions; random ones may be next to linearly dependent, and then count as fewer."""
    _, d = low(1)
    basis = torch.linalg.qr(randn(R, W, W))[0] * (1 + randn(R, W, 1).square())
    return LowRankFactor(oracles.unflat(basis, SHAPES), d)


def deficient():
    """A column that is zero, and one that stands twice."""
    u, d = low(4)
    for x in u:
        x[:, 1], x[:, 3] = 0, x[:, 0]
    return LowRankFactor(u, d)


KINDS = {"dense": dense, "rank 1": lambda: low(1), "rank 3": lambda: low(3), "rank W": whole, "flat": deficient}


@pytest.fixture(params=KINDS)
def make(request):
    return KINDS[request.param]


def taps(positions=1, shared=False):
    """`shared`: the inputs are the same for all samples, as they are for a net's first layer."""
    samples = 1 if shared else S
    return tuple(Taps(randn(R, samples, B, positions, i), randn(R, S, B, positions, o)) for i, o in SHAPES)


def gradients(taps):
    """[R, S, B, W]."""
    return oracles.flat(tuple(torch.einsum("rsbti,rsbto->rsbio", t.inputs, t.grads) for t in taps))


def close(actual, expected, rtol=1e-8, atol=1e-10):
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol)


def test_products_with_the_inverse(make):
    factor, v = make(), oracles.unflat(randn(R, S, W), SHAPES)
    close(oracles.flat(factor.solve(v)), torch.linalg.solve(oracles.dense(factor), oracles.flat(v).mT).mT)


def test_root_has_the_inverse_as_covariance(make):
    factor = make()
    # All unit vectors at once give the linear map itself: no sampling error.
    columns = oracles.unflat(torch.eye(W, dtype=torch.float64).expand(R, W, W), SHAPES)
    root = oracles.flat(factor.root(columns)).mT
    close(root @ root.mT, torch.linalg.inv(oracles.dense(factor)))
    if isinstance(factor, LowRankFactor):  # d^1/2 X is symmetric, so that no basis of U's choosing enters
        scaled = oracles.flat(factor.diagonal).sqrt().unsqueeze(2) * root
        close(scaled, scaled.mT)


def test_draws_have_the_inverse_as_covariance(make):
    factor, n = make(), 100_000
    draws = oracles.flat(factor.root(oracles.unflat(randn(R, n, W), SHAPES)))
    white = torch.linalg.cholesky(oracles.dense(factor)).mT @ draws.mT
    assert (white @ white.mT / n - torch.eye(W)).abs().max() < 5 * (2 / n) ** 0.5


def test_numbers(make):
    factor = make()
    close(factor.logdet(), torch.logdet(oracles.dense(factor)))
    close(oracles.flat(factor.variance()), torch.linalg.inv(oracles.dense(factor)).diagonal(dim1=1, dim2=2))


@pytest.fixture(params=[2**24, 1], ids=["whole", "one by one"])
def budget(request, monkeypatch):
    """Examples at once: all of them, or one."""
    monkeypatch.setattr(low_rank, "held", lambda _: request.param)
    monkeypatch.setattr(dense_structure.example_gradients, "__defaults__", (request.param,))


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("positions", [1, 3])
def test_quad_averages_the_gradient_over_samples_first(make, positions, shared, budget):
    factor, t = make(), taps(positions, shared)
    g = gradients(t).mean(1)
    close(factor.quad(t), torch.einsum("rbv,rvw,rbw->rb", g, torch.linalg.inv(oracles.dense(factor)), g))


def squared_norm(p, change):
    """|P^-1/2 D P^-1/2|_F^2."""
    x = torch.linalg.solve(p, change)
    return (x * x.mT).sum()


@pytest.mark.parametrize("kind", ["dense", "rank W"])
@pytest.mark.parametrize("positions", [1, 3])
def test_curvature_of_what_can_take_every_direction(kind, positions, budget):
    factor, t = KINDS[kind](), taps(positions)
    g = gradients(t)
    d = torch.einsum("rsbv,rsbw->rbvw", g, g) / S
    expected = [[squared_norm(oracles.dense(factor)[r], d[r, b]) for b in range(B)] for r in range(R)]
    close(factor.curvature(t), torch.tensor(expected, dtype=torch.float64), rtol=1e-6)


@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.parametrize("shared", [False, True])
def test_curvature_is_that_of_a_small_update(rank, shared, budget):
    factor, t, rho = low(rank), taps(1, shared), 1e-6
    g = gradients(t)
    d = torch.einsum("rsbv,rsbw->rbvw", g, g) / S
    expected = torch.zeros(R, B, dtype=torch.float64)
    for r in range(R):
        u, p = oracles.flat(factor.columns)[r], oracles.dense(factor)[r]
        for b in range(B):
            x = u.T @ u + rho * d[r, b]
            values, vectors = torch.linalg.eigh(x)
            leading = (vectors[:, -rank:] * values[-rank:]) @ vectors[:, -rank:].T
            new = leading + (x - leading + oracles.flat(factor.diagonal)[r].diag()).diag().diag()
            expected[r, b] = squared_norm(p, (new - p) / rho)
    close(factor.curvature(t), expected, rtol=1e-4)


def test_curvature_without_columns_is_that_of_the_diagonal():
    factor, t = low(2), taps()
    for u in factor.columns:
        u.zero_()
    squares = gradients(t).square().mean(1) / oracles.flat(factor.diagonal).unsqueeze(1)
    close(factor.curvature(t), squares.square().sum(2))


def test_a_column_that_stands_twice_counts_once():
    factor, t = deficient(), taps()
    scale = torch.tensor([2**0.5, 1], dtype=torch.float64)[:, None, None]
    once = LowRankFactor(tuple(u[:, [0, 2]] * scale for u in factor.columns), factor.diagonal)
    close(oracles.dense(factor), oracles.dense(once))
    close(factor.curvature(t), once.curvature(t))


# Products with gradients that are never formed --------------------------------------------------------------


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("positions", [1, 3])
def test_products_with_gradients(positions, shared, budget):
    t, v, c = taps(positions, shared), oracles.unflat(randn(R, 5, W), SHAPES), randn(R, S * B, 5)
    g = gradients(t).flatten(1, 2)  # [R, n, W]
    close(low_rank.gradients_inner(t, v), g @ oracles.flat(v).mT)
    close(oracles.flat(low_rank.gradients_combine(t, c)), c.mT @ g)
    close(low_rank.gradients_gram(t), g @ g.mT)
