"""Two posteriors of another package: SWAG has samples but no density, and VBLL a density over the last layer only."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import explore
from explore.core.errors import InputError
from explore.core.rng import Rng
from explore.core.shapes import Batch, flatten
from explore.inference.predict import linearised
from explore.nets.likelihoods import Gaussian, Heteroscedastic
from explore.testing import check_posterior
from explore.testing.subject import Subject
from tests.contracts.test_execution import EXECUTION
from tests.strangers import swag, vbll

R, B, K, TAU = 2, 8, 4, 4.0
KNOWN = Gaussian(noise_std=TAU**-0.5)

test_swag_keeps_the_contract = check_posterior(swag.SWAG)
test_vbll_keeps_the_contract = check_posterior(vbll.VBLL)
test_both_are_executed_in_every_way = EXECUTION.test([Subject("swag", swag.SWAG), Subject("vbll", vbll.VBLL)])


def module():
    return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 3))


def batches(count):
    rng = Rng(1, dtype=torch.float64)
    return [Batch(rng.normal(R, B, 2), rng.normal(R, B, 3)) for _ in range(count)]


def trained(name, count, likelihood=KNOWN, **settings):
    """Return a posterior, and its states before and after each of `count` updates."""
    posterior = explore.posterior(name, explore.Net(module()), likelihood, "default", **settings)
    states = [posterior.init(B, R, Rng(0, dtype=torch.float64))]
    for i, batch in enumerate(batches(count)):
        states.append(posterior.update(states[-1], batch, Rng(3, dtype=torch.float64), i / count)[0])
    return posterior, states


@pytest.fixture(scope="module")
def walk():
    return trained(
        "tests.strangers.swag:SWAG", 40, lr=0.02, weight_decay=0.1, collect_from=0.25, collect_every=3, rank=K
    )


def test_swag_walks_as_the_sgd_of_torch(walk):
    posterior, states = walk
    layers = posterior.layers(states[0], [w.unsqueeze(1) for w in states[0].weights])
    net = posterior.net.module(layers, into=module().double())
    optimizer = torch.optim.SGD(net.parameters(), 0.02, momentum=0.9, weight_decay=0.1)
    for batch in batches(40):
        optimizer.zero_grad()
        (0.5 * TAU * (net(batch.x[0]) - batch.y[0]).square().sum(1).mean()).backward()
        optimizer.step()
    ends = posterior.net.values(net)
    for weights, expected in zip(states[-1].weights, ends, strict=True):
        torch.testing.assert_close(weights[:1], expected.detach().reshape(weights[:1].shape), rtol=1e-9, atol=1e-12)


def test_swag_collects_the_moments_of_its_path(walk):
    posterior, states = walk
    path = [flatten(state.weights).numpy() for state in states]  # [R, W] after each step
    # Of 40 steps, those from the eleventh on collect, at multiples of 3: 12, 15, ... 39. Step 10 has the start.
    collected = [path[10], *(path[step] for step in range(12, 41, 3))]
    mean, squares = np.mean(collected, 0), np.mean(np.square(collected), 0)
    columns = [w - np.mean(collected[: i + 1], 0) for i, w in enumerate(collected)][-K:]
    state = states[-1]
    assert state.collected.tolist() == [10.0] * R
    for actual, expected in ((state.mean, mean), (state.squares, squares)):
        np.testing.assert_allclose(flatten(actual).numpy(), expected, rtol=1e-10, atol=1e-13)
    deviations = flatten(state.deviations).numpy()
    np.testing.assert_allclose(deviations, np.stack(columns, 1), rtol=1e-9, atol=1e-13)

    n = 40_000
    samples = flatten(posterior.sample(state, n, Rng(5, dtype=torch.float64))[:2]).numpy()
    for r in range(R):
        d = deviations[r].T
        covariance = (np.diag(squares[r] - mean[r] ** 2) + d @ d.T / (K - 1)) / 2
        variance = np.diag(covariance)
        error = np.sqrt((np.outer(variance, variance) + covariance**2) / n)
        assert (abs(np.cov(samples[r].T) - covariance) < 5.5 * error).all()
        assert (abs(samples[r].mean(0) - mean[r]) < 5 * np.sqrt(variance / n)).all()


def test_swag_is_one_network_until_it_collects(walk):
    posterior, states = walk
    for actual, expected in zip(posterior.sample(states[10], 3, Rng(0)), states[10].weights, strict=True):
        torch.testing.assert_close(actual, expected.unsqueeze(1).expand(-1, 3, -1, -1), rtol=0, atol=1e-8)


@pytest.fixture(scope="module")
def last_layer():
    posterior, states = trained("tests.strangers.vbll:VBLL", 30, lr=0.05, prior_variance=0.7)
    return posterior, states[-1]


def dense(state):
    """Return weights of the features, means [R, O, I] and covariances [R, O, I, I] of the last layer."""
    features, mean, root = (t.detach().requires_grad_() for t in (*state.weights, state.root))
    lower = root.tril(-1) + torch.diag_embed(root.diagonal(dim1=2, dim2=3).exp())
    return (features, mean, root), mean.mT, lower.mT @ lower


def phi(features, x):
    ones = torch.ones_like(x[..., :1])
    hidden = (torch.cat([x, ones], -1) @ features).tanh()
    return torch.cat([hidden, torch.ones_like(hidden[..., :1])], -1)


def test_vbll_follows_the_gradient_of_theorem_1(last_layer):
    posterior, state = last_layer
    batch = batches(31)[-1]
    leaves, mean, covariance = dense(state)
    a = phi(leaves[0], batch.x)
    out, spread = a @ mean.mT, torch.einsum("rbi,roij,rbj->rbo", a, covariance, a)
    fit = torch.distributions.Normal(out, TAU**-0.5).log_prob(batch.y) - TAU * spread / 2
    q = torch.distributions.MultivariateNormal(mean, covariance)
    prior = torch.distributions.MultivariateNormal(torch.zeros(5).double(), 0.7 * torch.eye(5).double())
    bound = B * fit.sum(2).mean(1) - torch.distributions.kl_divergence(q, prior).sum(1)
    loss = -bound / B + leaves[0].square().sum((1, 2)) / (2 * 0.7 * B)
    expected = torch.autograd.grad(loss.sum(), leaves)

    new, info = posterior.update(state, batch, Rng(3, dtype=torch.float64), 0.5)
    torch.testing.assert_close(info["nll"], -fit.sum(2).mean(1).detach())
    for before, after, gradient in zip(state.moving.first, new.moving.first, expected, strict=True):
        torch.testing.assert_close((after - 0.9 * before) / 0.1, gradient, rtol=1e-8, atol=1e-10)

    # The same bound, with the weights sampled.
    rng, n = Rng(4, dtype=torch.float64), 20_000
    sampled = posterior.net.output(posterior.sample(state, n, rng), batch.x)
    draws = KNOWN.log_prob(posterior.expected_noise(state), sampled, batch.y.unsqueeze(1)).sum(2)  # [R, n]
    draws = draws - posterior.kl_prior(state).unsqueeze(1)
    assert ((draws.mean(1) - bound).abs() < 5 * draws.std(1) / math.sqrt(n)).all()


def test_the_predictive_distribution_of_vbll_is_a_closed_form(last_layer):
    posterior, state = last_layer
    x = 3 * Rng(7, dtype=torch.float64).normal(R, 50, 2)
    leaves, mean, covariance = dense(state)
    a, *dense_moments = (t.detach().numpy() for t in (phi(leaves[0], x), mean, covariance))
    moments = linearised(posterior, state, x)
    np.testing.assert_allclose(moments.mean.numpy(), np.einsum("rpi,roi->rpo", a, dense_moments[0]), rtol=1e-10)
    variance = np.einsum("rpi,roij,rpj->rpo", a, dense_moments[1], a)
    np.testing.assert_allclose(moments.variance.numpy(), variance, rtol=1e-9)


def test_vbll_learns_the_noise_with_the_variance_of_its_outputs():
    posterior, states = trained("tests.strangers.vbll:VBLL", 1, Gaussian(rate=1.0))
    batch, (leaves, mean, covariance) = batches(1)[0], dense(states[0])
    a = phi(leaves[0], batch.x)
    residual = (batch.y - a @ mean.mT).square() + torch.einsum("rbi,roij,rbj->rbo", a, covariance, a)
    torch.testing.assert_close(states[1].common.noise.rate, (6 + B / 2 * residual.mean(1)).detach())


@pytest.mark.parametrize(
    ("network", "likelihood", "error"),
    [
        (module(), Heteroscedastic(), "likelihood Gaussian; got Heteroscedastic"),
        (nn.Sequential(nn.Conv2d(1, 2, 2), nn.Flatten()), KNOWN, "needs a Linear layer at the end"),
    ],
)
def test_vbll_refuses(network, likelihood, error):
    with pytest.raises(InputError, match=error):
        vbll.VBLL(net=explore.Net(network), likelihood=likelihood)


def test_vbll_refuses_a_last_layer_at_several_positions():
    posterior = vbll.VBLL(net=explore.Net(nn.Sequential(nn.Linear(2, 1), nn.Flatten())), likelihood=KNOWN)
    state, x = posterior.init(B, 1, Rng(0)), Rng(1).normal(1, B, 5, 2)
    with pytest.raises(InputError, match="not 5 times"):
        posterior.update(state, Batch(x, x[:, :, :, 0]), Rng(0))
