"""Every factor does the algebra of the matrix that `oracles.dense` writes out."""

import pytest
import torch

from explore.core.rng import Rng
from explore.core.shapes import Taps
from explore.inference.structures.base import Blocks, Diagonal, PerLayer
from explore.inference.structures.kronecker import KroneckerFactor
from tests import oracles
from tests.oracles import kronecker_directions, squared_projection

R, S, B = 2, 3, 4
SHAPES = ((3, 2), (2, 4))
generator = torch.Generator().manual_seed(0)


def randn(*shape):
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def positive(n):
    x = randn(R, n, n)
    return x @ x.mT + 0.5 * torch.eye(n)


def kronecker(i, o):
    # Factors far from symmetric roots, so that a transposed one would show.
    return KroneckerFactor(*(torch.linalg.inv(torch.linalg.cholesky(positive(n))) for n in (i, o)))


def eigen(i, o):
    inputs, outputs = (torch.linalg.qr(randn(R, n, n))[0] for n in (i, o))
    return Diagonal(randn(R, i, o).square() + 0.1, inputs, outputs)


def diagonal(i, o):
    return Diagonal(randn(R, i, o).square() + 0.1)


KINDS = {"kronecker": [kronecker] * 2, "eigen": [eigen] * 2, "diagonal": [diagonal] * 2, "mixed": [kronecker, eigen]}


@pytest.fixture(params=KINDS)
def make(request):
    return lambda: Blocks(tuple(kind(*shape) for kind, shape in zip(KINDS[request.param], SHAPES, strict=True)))


def taps(positions, shared=False):
    """`shared`: the inputs are the same for all samples, as they are for a net's first layer."""
    samples = 1 if shared else S
    return tuple(Taps(randn(R, samples, B, positions, i), randn(R, S, B, positions, o)) for i, o in SHAPES)


def gradients(taps):
    """[R, S, B, W]."""
    return oracles.flat(tuple(torch.einsum("rsbti,rsbto->rsbio", t.inputs, t.grads) for t in taps))


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-8, atol=1e-10)


def test_products_with_the_inverse(make):
    factor = make()
    v = tuple(randn(R, S, *shape) for shape in SHAPES)
    close(oracles.flat(factor.solve(v)), torch.linalg.solve(oracles.dense(factor), oracles.flat(v).mT).mT)


def test_root_has_the_inverse_as_covariance(make):
    factor = make()
    w = sum(i * o for i, o in SHAPES)
    # All unit vectors at once give the linear map itself: no sampling error.
    columns = oracles.unflat(torch.eye(w, dtype=torch.float64).expand(R, w, w), SHAPES)
    root = oracles.flat(factor.root(columns)).mT
    close(root @ root.mT, torch.linalg.inv(oracles.dense(factor)))


def test_numbers(make):
    factor = make()
    close(factor.logdet(), torch.logdet(oracles.dense(factor)))
    close(oracles.flat(factor.variance()), torch.linalg.inv(oracles.dense(factor)).diagonal(dim1=1, dim2=2))


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("positions", [1, 3])
def test_quad_averages_the_gradient_over_samples_first(make, positions, shared):
    factor, t = make(), taps(positions, shared)
    g = gradients(t).mean(1)
    close(factor.quad(t), torch.einsum("rbv,rvw,rbw->rb", g, torch.linalg.inv(oracles.dense(factor)), g))


def directions(block, r):
    """What the matrix of a block can change by."""
    if isinstance(block, KroneckerFactor):
        a, s = (torch.linalg.inv(root[r].mT @ root[r]) for root in block)
        return kronecker_directions(a, s)
    if block.inputs is not None:
        basis = torch.kron(block.inputs[r], block.outputs[r])
        return torch.einsum("iv,jv->vij", basis, basis)
    n = block.precision[r].numel()
    return torch.diag_embed(torch.eye(n, dtype=torch.float64))


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("positions", [1, 3])
def test_curvature_is_the_projection_on_what_can_change(make, positions, shared):
    factor, t = make(), taps(positions, shared)
    expected = torch.zeros(R, B, dtype=torch.float64)
    for block, own in zip(factor.blocks, t, strict=True):
        g = gradients((own,))
        d = torch.einsum("rsbv,rsbw->rbvw", g, g) / S
        p = oracles.dense(block)
        for r in range(R):
            for b in range(B):
                expected[r, b] += squared_projection(d[r, b], p[r], directions(block, r))[0]
    close(factor.curvature(t), expected)


class Toy:
    """A rule whose statistics are the precision itself."""

    def init(self, inputs, outputs, replicas, rng):
        return torch.ones(replicas, inputs, outputs, dtype=torch.float64)

    def observe(self, statistics, taps, rate, step):
        return statistics - rate * taps.grads.sum((1, 2, 3)).unsqueeze(1)

    def factor(self, statistics, damping):
        return Diagonal(statistics + damping), (statistics > 0).flatten(1).all(1)

    def start_share(self, statistics):
        return statistics[:, 0, 0]


def test_per_layer_lifts_a_rule_and_fails_where_one_layer_does():
    structure, t = PerLayer(Toy()), taps(1)
    t[1].grads[0], t[1].grads[1] = -1.0, 1.0  # sums over S and B: -12 and 12
    t[0].grads[:] = 0.0
    statistics = structure.observe(structure.init(SHAPES, R, Rng(0)), t, 0.5, 1)
    factor, ok = structure.factor(statistics, 7.0)
    assert ok.tolist() == [True, False]
    expected = [torch.tensor([8.0] * 6 + [1 + 6 + 7.0] * 8), torch.tensor([8.0] * 6 + [1 - 6 + 7.0] * 8)]
    close(oracles.dense(factor), torch.diag_embed(torch.stack(expected).double()))
    close(structure.start_share(statistics), torch.tensor([7.0, 1.0]).double())  # the largest of the layers'
