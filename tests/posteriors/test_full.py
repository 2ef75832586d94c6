"""NNG-full against the equations of its paper, written out in NumPy."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from explore.core.errors import InputError
from explore.core.rng import Rng
from explore.core.shapes import Batch, Taps
from explore.inference.structures.dense import Dense
from explore.nets.likelihoods import Gaussian
from explore.nets.net import Net, mlp
from explore.posteriors.full import Full
from tests import oracles

MODULE = mlp(2, [3], 2).double()
NET = Net(MODULE)
N, W, TAU = 6, NET.weights, 4.0
SAMPLES, ALPHA, BETA, LAMBDA, ETA, MOMENTUM = 4, 0.2, 0.3, 0.7, 0.6, 0.8
SETTINGS: dict[str, Any] = dict(
    samples=SAMPLES,
    lr=ALPHA,
    beta=BETA,
    kl_weight=LAMBDA,
    prior_variance=ETA,
    adaptive_damping=False,
    momentum=MOMENTUM,
)


def rng(seed=0):
    return Rng(seed, dtype=torch.float64)


def gradients(w, x, score_of):
    """d log p / dw [S, B, W] of one replica, by the chain rule with dense Jacobians."""
    layers = oracles.unflat(torch.as_tensor(w)[None], NET.shapes)
    out = oracles.run(MODULE, layers, x[None])
    jacobian = oracles.jacobians(MODULE, layers, x[None], NET.shapes)
    return torch.einsum("rsbo,rsbow->rsbw", score_of(out), jacobian)[0].numpy()


@pytest.mark.parametrize("fisher", ["true", "empirical"])
@pytest.mark.parametrize("extrinsic", [0.0, 0.05])
def test_updates_follow_the_paper(fisher, extrinsic):
    posterior = Full(
        net=NET, likelihood=Gaussian(noise_std=TAU**-0.5), fisher=fisher, extrinsic_damping=extrinsic, **SETTINGS
    )
    data = rng(9)
    batch = Batch(data.normal(2, N, 2), data.normal(2, N, 2))
    state, ours, noise = posterior.init(N, 2, rng()), rng(1), rng(1)
    gamma, eye = LAMBDA / (N * ETA), np.eye(W)
    theirs = [(oracles.flat(state.mean)[r].numpy(), np.zeros(W), eye) for r in range(2)]
    for step in (1, 2):
        state, _ = posterior.update(state, batch, ours)
        eps = oracles.flat(tuple(noise.normal(2, SAMPLES, *shape) for shape in NET.shapes)).numpy()
        eps_y = noise.normal(2, SAMPLES, N, 2) if fisher == "true" else None
        for r, (mu, v, f) in enumerate(theirs):
            x, y = batch.x[r], batch.y[r]
            # L^-T eps for F + gamma = L L^T.
            w = mu + np.sqrt(LAMBDA / N) * eps[r] @ np.linalg.inv(np.linalg.cholesky(f + gamma * eye))
            g = gradients(w, x, lambda out, y=y: TAU * (y - out))
            drawn = g
            if eps_y is not None:
                drawn = gradients(w, x, lambda out, e=eps_y[r]: (TAU**0.5 * e).expand_as(out))
            f = (1 - BETA) * f + BETA * np.einsum("sbv,sbw->vw", drawn, drawn) / (SAMPLES * N)
            v = MOMENTUM * v + (1 - MOMENTUM) * (g.mean((0, 1)) - gamma * w.mean(0))
            step_matrix = f + (gamma + extrinsic) * eye
            mu = mu + ALPHA * np.linalg.solve(step_matrix, v / (1 - MOMENTUM**step))
            theirs[r] = mu, v, f
            np.testing.assert_allclose(state.statistics[r], f, rtol=1e-8, atol=1e-10)
            np.testing.assert_allclose(oracles.flat(state.momentum)[r], v, rtol=1e-8, atol=1e-10)
            np.testing.assert_allclose(oracles.flat(state.mean)[r], mu, rtol=1e-8, atol=1e-10)
            _, precision, scale = posterior.gaussian(state)
            np.testing.assert_allclose(oracles.dense(precision)[r], f + gamma * eye, rtol=1e-8, atol=1e-10)
            assert scale == pytest.approx(LAMBDA / N)


def test_the_average_holds_across_layers_and_ignores_how_examples_are_batched():
    noise, shapes = rng(3), ((2, 3), (4, 1))
    taps = tuple(Taps(noise.normal(2, 3, 4, 2, i), noise.normal(2, 3, 4, 2, o)) for i, o in shapes)
    g = oracles.flat(tuple(torch.einsum("rsbti,rsbto->rsbio", t.inputs, t.grads) for t in taps))
    rule, old = Dense(shapes, 0.2), torch.eye(10, dtype=torch.float64).repeat(2, 1, 1)
    whole = rule.observe(old, taps, 0.5, 1)
    torch.testing.assert_close(whole, 0.9 * old + 0.1 * torch.einsum("rsbv,rsbw->rvw", g, g) / 12)
    halves = [rule.observe(old, tuple(t.part(part) for t in taps), 0.5, 1) for part in (slice(2), slice(2, 4))]
    torch.testing.assert_close((halves[0] + halves[1]) / 2, whole)


def test_a_bad_matrix_is_reported_alone():
    fisher = torch.eye(NET.weights).repeat(3, 1, 1)
    fisher[1] = torch.nan
    factor, ok = Dense(NET.shapes).factor(fisher, 0.1)
    assert ok.tolist() == [True, False, True]
    assert all(x[[0, 2]].isfinite().all() for x in factor.rows)


def test_a_large_network_is_refused_with_its_numbers():
    with pytest.raises(InputError, match=r"4,160 weights; full supports at most 4,096"):
        Full(net=Net(nn.Linear(64, 64)), likelihood=Gaussian())
    Full(net=Net(nn.Linear(64, 64, bias=False)), likelihood=Gaussian())  # 4096
