"""Noisy EK-FAC: when basis and scale move, and that the scale is the per-example second moment."""

import dataclasses
from collections import deque
from typing import Any

import pytest
import torch
from torch import nn

from explore.core.rng import Rng
from explore.core.shapes import Batch, Taps
from explore.inference.structures.base import FEW, Blocks, Diagonal, gradient_moments, mean_squares
from explore.inference.structures.kronecker import EigenRule, KroneckerRule
from explore.learning.fit import fit
from explore.nets.likelihoods import Gaussian
from explore.nets.net import Net, mlp
from explore.posteriors.noisy_ekfac import NoisyEKFAC
from tests import oracles

R, S, B, I, O = 2, 3, 4, 5, 3  # noqa: E741


def rng():
    return Rng(0, dtype=torch.float64)


def taps(positions, shared=False):
    r = rng()
    return Taps(r.normal(R, 1 if shared else S, B, positions, I), r.normal(R, S, B, positions, O))


def per_example(t):
    """[R, S, B, I, O] gradients, summed over positions."""
    return torch.einsum("rsbti,rsbto->rsbio", t.inputs.expand(-1, S, -1, -1, -1), t.grads)


def test_scale_is_the_mean_square_of_example_gradients_in_the_basis():
    for positions, shared in ((1, False), (1, True), (2, False), (3, False), (3, True)):
        t = taps(positions, shared)
        rule = EigenRule(KroneckerRule(), omega=0.25, moments_interval=9, basis_interval=9, scale_interval=1)
        old = rule.init(I, O, R, rng())
        new = rule.observe(old, t, 0.5, step=1)
        rotated = torch.einsum("rij,rsbio,rop->rsbjp", old.inputs, per_example(t), old.outputs)
        expected = 0.875 * old.scale + 0.125 * rotated.square().mean((1, 2))
        torch.testing.assert_close(new.scale, expected, rtol=1e-10, atol=0)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("positions", [1, 2, FEW, FEW + 1])
def test_mean_squares_and_gradients(positions, shared):
    """In chunks and at once; with few positions by pairs of them."""
    t = taps(positions, shared)
    each = per_example(t)
    expected = each.square().mean((1, 2))
    for budget in (1, None):
        torch.testing.assert_close(mean_squares(t, budget), expected, rtol=1e-12, atol=0)
    gradients, squares = gradient_moments((t,))
    torch.testing.assert_close(gradients[0], each.mean((1, 2)), rtol=1e-11, atol=1e-14)
    torch.testing.assert_close(squares[0], expected, rtol=1e-11, atol=1e-14)


def test_squares_of_gradients_that_cancel_are_not_negative():
    """Half of the positions take back what the others give."""
    t = taps(4)
    a, g = (torch.cat([x[..., :2, :], x[..., :2, :] * sign], 3) for x, sign in ((t.inputs, 1), (t.grads, -1)))
    squares = mean_squares(Taps(a, g))
    assert (squares >= 0).all() and squares.max() < 1e-14


def test_a_restart_takes_undamped_kfac_eigenvalues():
    rule = EigenRule(KroneckerRule(0.3), omega=0.2, moments_interval=2, basis_interval=4, scale_interval=8)
    q = rule.init(I, O, R, rng())
    for step in range(1, 5):
        q = rule.observe(q, taps(1), 1.0, step)
    q = rule.restart(q)
    a, s = q.moments  # two updates of the moments, then the basis
    eigenvalues = torch.linalg.eigvalsh(a).unsqueeze(2) * torch.linalg.eigvalsh(s).unsqueeze(1)
    torch.testing.assert_close(q.scale, eigenvalues, rtol=1e-10, atol=1e-12)
    block = oracles.dense(rule.factor(q, 0.7)[0])
    kfac = torch.einsum("rij,rop->riojp", a, s).flatten(1, 2).flatten(2, 3)
    torch.testing.assert_close(block, kfac + 0.7 * torch.eye(I * O, dtype=a.dtype), rtol=1e-10, atol=1e-12)


def test_a_damped_restart_is_kfac_with_split_damping():
    rule = EigenRule(KroneckerRule(0.3), omega=0.2, moments_interval=1, basis_interval=1, scale_interval=8)
    q = rule.observe(rule.init(I, O, R, rng()), taps(1), 1.0, 1)
    block = rule.factor(rule.restart(q, 0.7), 0.0)[0]
    split = rule.kronecker.factor(q.moments, 0.7)[0]
    torch.testing.assert_close(oracles.dense(block), oracles.dense(split), rtol=1e-10, atol=1e-12)
    assert not torch.allclose(block.precision, rule.restart(q).scale)


def test_in_a_new_basis_the_scale_is_the_diagonal_of_the_old_matrix():
    rule = EigenRule(KroneckerRule(0.3), omega=0.2, moments_interval=1, basis_interval=2, scale_interval=1)
    q = rule.observe(rule.init(I, O, R, rng()), taps(1), 1.0, 1)
    new = dataclasses.replace(rule, scale_interval=3).observe(q, taps(1), 1.0, 2)
    assert not torch.equal(new.inputs, q.inputs)
    basis = torch.einsum("rij,rop->riojp", new.inputs, new.outputs).flatten(1, 2).flatten(2, 3)
    expected = (basis.mT @ oracles.dense(rule.factor(q, 0.0)[0]) @ basis).diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(new.scale.flatten(1), expected, rtol=1e-10, atol=1e-12)


# Gradients at a mean that stays where it is, and the expectation over targets: every step has the same Fisher matrix.
STILL: dict[str, Any] = {"lr": 1e-12, "weight_noise": False, "fisher": "exact", "beta": 0.2}
MODULE = mlp(3, [5], 3).double()
X = Rng(3, dtype=torch.float64).normal(R, 20, 3)


def still(steps, **settings):
    """The first layer's r in the posterior after these steps: (r, the exact one, K-FAC's, damped K-FAC's) each time."""
    posterior = NoisyEKFAC(net=Net(MODULE), likelihood=Gaussian(noise_std=0.5), **STILL | settings)
    state, batch = posterior.init(20, R, rng()), Batch(X, X)
    jacobian = oracles.jacobians(MODULE, posterior.at_mean(state), X, posterior.net.shapes)[:, 0] / 0.5
    g = oracles.unflat(jacobian.flatten(1, 2), posterior.net.shapes)[0]  # [R, 20 * 3, I, O]
    found = []
    for step in range(1, max(steps) + 1):
        state, _ = posterior.update(state, batch, rng())
        if step in steps:
            assert isinstance(state.sampling, Blocks) and isinstance(block := state.sampling.blocks[0], Diagonal)
            (a, s), qa, qs = state.statistics[0][:3]
            exact = (qa.mT.unsqueeze(1) @ g @ qs.unsqueeze(1)).square().sum(1) / 20
            split = ((a.diagonal(dim1=1, dim2=2).mean(1) / s.diagonal(dim1=1, dim2=2).mean(1)) ** 0.5)[:, None, None]
            gamma = 1 / 20  # lambda / (N eta)
            pairs = [(a, s), (a + split * gamma**0.5 * torch.eye(4), s + gamma**0.5 / split * torch.eye(5))]
            kfac = [torch.einsum("rij,rik,rkj,rop,roq,rqp->rjp", qa, x, qa, qs, y, qs) for x, y in pairs]
            found.append((block.precision - gamma, exact, *kfac))
    return found


def error(r, exact):
    return float((r - exact).norm() / exact.norm())


@pytest.mark.parametrize("basis_interval", [10**9, 5])
def test_without_restarts_the_scale_becomes_the_exact_diagonal(basis_interval):
    ((r, exact, kfac, _),) = still([150], basis_interval=basis_interval, reset_interval=None, omega=0.05)
    assert error(r, exact) < 0.01 < 0.1 < error(kfac, exact)


def test_a_restart_comes_once_the_factors_are_made():
    found = still([150, 151, 200], reset_interval=50)
    for (r, exact, kfac, _), seen in zip(found, (50, 1, 50), strict=True):
        left = 0.99**seen
        torch.testing.assert_close(r, left * kfac + (1 - left) * exact, rtol=1e-9, atol=1e-10)


def test_with_damped_restarts_the_damping_enters_twice():
    ((r, exact, _, damped),) = still([150], reset_interval=1, reset_damped=True)  # gamma is taken from r once
    torch.testing.assert_close(r, 0.99 * damped + 0.01 * exact, rtol=1e-6, atol=0)  # the library's pi has 1e-8 inside


ENDS = [(9, []), (30, [10, 20]), (31, [10, 20]), (39, [10, 20]), (40, [10, 20, 30])]


@pytest.mark.parametrize(("epochs", "expected"), ENDS)
def test_training_does_not_end_right_after_a_restart(epochs, expected, monkeypatch):
    restarts = []
    posterior = NoisyEKFAC(net=Net(mlp(3, [2], 1)), likelihood=Gaussian(), reset_interval=10, epochs=epochs)
    once_factored = NoisyEKFAC.once_factored

    def watched(self, statistics, state, progress):
        new = once_factored(self, statistics, state, progress)
        if new is not statistics:
            restarts.append(int(state.common.step) + 1)
        return new

    monkeypatch.setattr(NoisyEKFAC, "once_factored", watched)
    deque(fit(posterior, X[:, :10], X[:, :10, :1], rng()), maxlen=0)
    assert restarts == expected


def test_damping_enters_once():
    posterior = NoisyEKFAC(net=Net(mlp(3, [2], 1)), likelihood=Gaussian(), extrinsic_damping=0.5)
    batch = Batch(rng().normal(R, 6, 3), rng().normal(R, 6, 1))
    state, _ = posterior.update(posterior.init(6, R, rng()), batch, rng())
    assert isinstance(state.sampling, Blocks) and isinstance(state.step_factor, Blocks)
    blocks = zip(state.sampling.blocks, state.step_factor.blocks, state.statistics, strict=True)
    for sampling, stepping, q in blocks:
        assert isinstance(sampling, Diagonal) and isinstance(stepping, Diagonal)
        torch.testing.assert_close(sampling.precision, q.scale + 1 / 6, rtol=1e-12, atol=0)  # lambda / (N eta)
        torch.testing.assert_close(stepping.precision, sampling.precision + 0.5, rtol=1e-12, atol=0)


def test_convolution_runs():
    net = Net(nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(32, 1)))
    posterior = NoisyEKFAC(net=net, likelihood=Gaussian(), samples=2, basis_interval=2)
    state = posterior.init(8, R, rng())
    for _ in range(4):
        state, info = posterior.update(state, Batch(rng().normal(R, 8, 1, 4, 4), rng().normal(R, 8, 1)), rng())
    assert state.common.alive.all() and info["nll"].isfinite().all()


def test_omega_is_the_rate_of_the_scale_and_beta_that_of_the_moments():
    net, batch = Net(mlp(3, [2], 1)), Batch(rng().normal(R, 6, 3), rng().normal(R, 6, 1))

    def statistics(steps=1, **settings):
        posterior = NoisyEKFAC(net=net, likelihood=Gaussian(noise_std=0.5), basis_interval=1000, **settings)
        state = posterior.init(6, R, rng())
        for _ in range(steps):
            state, _ = posterior.update(state, batch, rng())
        return state.statistics

    start, whole, found = statistics(0), statistics(omega=1.0, beta=1.0), statistics(omega=0.2, beta=0.05)
    for old, target, new in zip(start, whole, found, strict=True):
        torch.testing.assert_close(new.scale, 0.8 * old.scale + 0.2 * target.scale, rtol=1e-10, atol=0)
        for a, b, c in zip(old.moments, target.moments, new.moments, strict=True):
            torch.testing.assert_close(c, 0.95 * a + 0.05 * b, rtol=1e-10, atol=1e-12)
