"""Factorised tensors against torch.kron."""

import pytest
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence

from explore.core import tree
from explore.core.rng import Rng
from explore.core.shapes import Batch
from explore.nets.likelihoods import Gaussian
from explore.nets.net import Net, mlp
from explore.posteriors.tensor_factorised import TensorFactorised, TensorForm
from explore.posteriors.whvi import WHVI

MODULE = mlp(5, [9], 2)
RNG = Rng(9, dtype=torch.float64)
BATCH = Batch(RNG.normal(2, 5, 5), RNG.normal(2, 5, 2))


def rng(seed=0):
    return Rng(seed, dtype=torch.float64)


def build(module=MODULE, **settings):
    return TensorFactorised(
        net=Net(module), likelihood=Gaussian(noise_std=0.5), prior_variance=0.6, kl_weight=0.7, **settings
    )


def matrix(form, z):
    """W [R, S, I, O] of joint samples."""
    w, _ = form.build(z, (), (2, 3), rng())
    assert isinstance(w, torch.Tensor)
    return w


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("inputs", "outputs", "halves"), [(5, 9, (2, 4, 4, 4)), (16, 16, (4, 4, 4, 4)), (1, 6, (1, 1, 2, 4))]
)
def test_weights_are_a_sum_of_kronecker_products(inputs, outputs, halves, bias):
    form = TensorForm(inputs, outputs, bias)
    a, b, c, d = halves
    z = tuple(rng(i).normal(2, 3, *shape) for i, shape in enumerate(form.coordinates))
    w, x = matrix(form, z), rng(7).normal(2, 3, 5, 2, inputs)
    assert form.coordinates[0] == (form.terms * a, c) and form.coordinates[1] == (form.terms * b, d)
    for r in range(2):
        for s in range(3):
            factors = zip(z[0][r, s].split(a), z[1][r, s].split(b), strict=True)
            expected = sum(torch.kron(p.contiguous(), q.contiguous()) for p, q in factors) / form.terms**0.5
            torch.testing.assert_close(w[r, s, :inputs], expected[:inputs, :outputs])
    if bias:
        assert torch.equal(w[:, :, inputs:], z[2])
        x = torch.cat([x, torch.ones(2, 3, 5, 2, 1)], 4)
    # With factors of its own for every example, here the same ones.
    own, _ = form.build(tuple(t.unsqueeze(2).expand(-1, -1, 5, -1, -1) for t in z), (), (2, 3, 5), rng())
    assert callable(own)
    torch.testing.assert_close(own(x), torch.einsum("rsbti,rsio->rsbto", x, w))


@pytest.mark.parametrize("width", [64, 100, 256])
def test_as_many_parameters_as_whvi(width):
    counts = []
    for cls in (TensorFactorised, WHVI):
        posterior = cls(net=Net(mlp(13, [width, width], 1)), likelihood=Gaussian())
        state = posterior.init(20, 1, rng())
        counts.append(sum(t.numel() for _, t in tree.leaves((state.mean, state.spread, state.points))))
    assert counts[0] == pytest.approx(counts[1], rel=0.25)
    square = TensorForm(256, 256, False)
    assert square.terms == 1 and 2 * sum(i * o for i, o in square.coordinates) == 4 * 256
    # WHVI has 16 blocks here: 64 numbers in S1, 64 in S2 and 8 of g; a term has 2 (2 x 8 + 2 x 8).
    wide = TensorForm(4, 64, False)
    assert wide.terms == round(136 / 64) == 2 and wide.coordinates == ((4, 8), (4, 8))


def test_starts_at_glorots_variance():
    posterior = build(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1)), initial_std=1e-6)
    (w, _) = posterior.sample(posterior.init(20, 40, rng()), 1, rng(1))
    assert w.std() == pytest.approx((2 / (64 + 256 + 1)) ** 0.5, rel=0.1)


def test_updates_descend_the_bound_with_adam():
    posterior = build(reparameterisation="weights", samples=3, lr=0.05)
    form, state = posterior.forms[0], posterior.init(20, 2, rng())
    means = [t.clone().requires_grad_() for ts in state.mean for t in ts]
    rhos = [t.clone().requires_grad_() for ts in state.spread for t in ts]
    optimiser = torch.optim.Adam([*means, *rhos], lr=0.05)
    noise, same_noise = rng(1), rng(1)
    for _ in range(3):
        state, _ = posterior.update(state, BATCH, noise)
        stds = [torch.log1p(r.exp()) for r in rhos]
        z = [m[:, None] + s[:, None] * same_noise.normal(2, 3, *m.shape[1:]) for m, s in zip(means, stds, strict=True)]
        w = matrix(form, tuple(z[:3]))
        x = torch.cat([BATCH.x, torch.ones(2, 5, 1)], 2).unsqueeze(1)
        out = torch.cat([(x @ w).relu(), torch.ones(2, 3, 5, 1)], 3) @ z[3]
        nll = -Normal(out, 0.5).log_prob(BATCH.y.unsqueeze(1)).sum(-1).mean((1, 2))
        prior = Normal(0, 0.6**0.5)
        divergence = sum(kl_divergence(Normal(m, s), prior).sum((1, 2)) for m, s in zip(means, stds, strict=True))
        optimiser.zero_grad()
        (nll + 0.7 / 20 * divergence).sum().backward()
        optimiser.step()
    for ours, theirs in zip((t for ts in (*state.mean, *state.spread) for t in ts), [*means, *rhos], strict=True):
        torch.testing.assert_close(ours, theirs.detach(), rtol=1e-6, atol=1e-9)
