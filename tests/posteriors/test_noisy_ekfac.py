"""Noisy EK-FAC: when basis and scale move, and that the scale is the per-example second moment."""

import torch
from torch import nn

from explore.likelihoods import Gaussian
from explore.nets import Net, mlp
from explore.posteriors.noisy_ekfac import EigenKronecker, NoisyEKFAC
from explore.posteriors.noisy_kfac import Kronecker
from explore.posteriors.structures import Blocks, mean_squares
from explore.rng import Rng
from explore.shapes import Batch, Taps

R, S, B, I, O = 2, 3, 4, 5, 2  # noqa: E741


def rng():
    return Rng(0, dtype=torch.float64)


def taps(positions, shared=False):
    r = rng()
    return Taps(r.normal(R, 1 if shared else S, B, positions, I), r.normal(R, S, B, positions, O))


def per_example(t):
    """[R, S, B, I, O] gradients, summed over positions."""
    return torch.einsum("rsbti,rsbto->rsbio", t.inputs.expand(-1, S, -1, -1, -1), t.grads)


def test_scale_is_the_mean_square_of_example_gradients_in_the_basis():
    for positions, shared in ((1, False), (1, True), (3, False), (3, True)):
        t = taps(positions, shared)
        rule = EigenKronecker(Kronecker(), omega=0.25, moments_interval=9, basis_interval=9, scale_interval=1)
        old = rule.init(I, O, R, rng())
        new = rule.observe(old, t, 0.5, step=1)
        rotated = torch.einsum("rij,rsbio,rop->rsbjp", old.inputs, per_example(t), old.outputs)
        expected = 0.875 * old.scale + 0.125 * rotated.square().mean((1, 2))
        torch.testing.assert_close(new.scale, expected, rtol=1e-10, atol=0)


def test_mean_squares_in_chunks():
    t = taps(3)
    expected = per_example(t).square().mean((1, 2))
    torch.testing.assert_close(mean_squares(t, budget=1), expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(mean_squares(t), expected, rtol=1e-12, atol=0)


def test_a_new_basis_starts_from_undamped_kfac_eigenvalues():
    rule = EigenKronecker(Kronecker(0.3), omega=0.2, moments_interval=2, basis_interval=4, scale_interval=8)
    q = rule.init(I, O, R, rng())
    for step in range(1, 5):
        q = rule.observe(q, taps(1), 1.0, step)
    a, s = q.moments  # two updates of the moments, then the basis
    eigenvalues = torch.linalg.eigvalsh(a).unsqueeze(2) * torch.linalg.eigvalsh(s).unsqueeze(1)
    torch.testing.assert_close(q.scale, eigenvalues, rtol=1e-10, atol=1e-12)
    block = rule.factor(q, 0.7)[0].dense()
    kfac = torch.einsum("rij,rop->riojp", a, s).flatten(1, 2).flatten(2, 3)
    torch.testing.assert_close(block, kfac + 0.7 * torch.eye(I * O, dtype=a.dtype), rtol=1e-10, atol=1e-12)


def test_damping_enters_once():
    posterior = NoisyEKFAC(net=Net(mlp(3, [2], 1)), likelihood=Gaussian(), extrinsic_damping=0.5)
    batch = Batch(rng().normal(R, 6, 3), rng().normal(R, 6, 1))
    state, _ = posterior.update(posterior.init(6, R, rng()), batch, rng())
    assert isinstance(state.sampling, Blocks) and isinstance(state.step_factor, Blocks)
    for layer, q in enumerate(state.statistics):
        precision = state.sampling.blocks[layer].precision
        torch.testing.assert_close(precision, q.scale + 1 / 6, rtol=1e-12, atol=0)  # lambda / (N eta)
        torch.testing.assert_close(state.step_factor.blocks[layer].precision, precision + 0.5, rtol=1e-12, atol=0)


def test_convolution_runs():
    net = Net(nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(32, 1)))
    posterior = NoisyEKFAC(net=net, likelihood=Gaussian(), samples=2, basis_interval=2)
    state = posterior.init(8, R, rng())
    for _ in range(4):
        state, info = posterior.update(state, Batch(rng().normal(R, 8, 1, 4, 4), rng().normal(R, 8, 1)), rng())
    assert state.common.alive.all() and info["nll"].isfinite().all()
