"""The net at the mode of the posterior, against torch's own optimisers."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributions import Normal

from explore.core.rng import Rng
from explore.core.shapes import Batch
from explore.nets.likelihoods import Gaussian
from explore.nets.net import Net, mlp
from explore.posteriors.ensemble import Ensemble
from explore.posteriors.map import MAP
from tests import oracles


def rng(seed=0):
    return Rng(seed, dtype=torch.float64)


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_descends_the_posterior_as_torch_does(optimiser):
    module, r = mlp(2, [3], 2).double(), rng(9)
    batch = Batch(r.normal(2, 5, 2), r.normal(2, 5, 2))
    settings = dict(optimiser=optimiser, momentum=0.8, prior_variance=0.6, lr=0.05)
    posterior = MAP(net=Net(module), likelihood=Gaussian(noise_std=0.5), **settings)
    state = posterior.init(20, 2, rng())
    weights = [w.clone().requires_grad_() for w in state.weights]
    theirs = torch.optim.Adam(weights, lr=0.05) if optimiser == "adam" else torch.optim.SGD(weights, 0.05, 0.8)
    prior = Normal(0, torch.tensor(0.6, dtype=torch.float64).sqrt())
    for _ in range(3):
        state, _ = posterior.update(state, batch, r)
        fit = Normal(oracles.run(module, weights, batch.x), 0.5).log_prob(batch.y.unsqueeze(1)).sum() / 5
        theirs.zero_grad()
        (-fit - sum(prior.log_prob(w).sum() for w in weights) / 20).backward()
        theirs.step()
        for ours, expected in zip(state.weights, weights, strict=True):
            torch.testing.assert_close(ours, expected.detach(), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_a_linear_model_becomes_ridge_regression(optimiser):
    r = rng()
    x, noise = r.normal(2, 24, 3), r.normal(2, 24, 1)
    y = x.sum(2, keepdim=True) + 0.5 * noise
    net, likelihood, lr = Net(nn.Linear(3, 1)), Gaussian(noise_std=0.5), 0.1 if optimiser == "adam" else 0.02
    posterior = MAP(net=net, likelihood=likelihood, optimiser=optimiser, prior_variance=0.8, lr=lr)
    state = posterior.init(24, 2, r)
    for i in range(500):
        state, _ = posterior.update(state, Batch(x, y), r, i / 500)
    mean, _ = oracles.ridge(x, y, 0.5, 0.8)
    torch.testing.assert_close(state.weights[0][:, 0, :, 0], mean, rtol=1e-6, atol=1e-6)


def test_is_an_ensemble_of_one():
    net, r = Net(mlp(2, [3], 2)), rng(9)
    batch = Batch(r.normal(2, 5, 2), r.normal(2, 5, 2))
    states: list[Any] = []
    for posterior in (MAP(net=net, likelihood=Gaussian()), Ensemble(net=net, likelihood=Gaussian(), members=1)):
        state: Any = posterior.init(20, 2, rng())
        for i in range(3):
            state, _ = posterior.update(state, batch, rng(1), i / 3)
        states.append(state)
    for one, other in zip(states[0].weights, states[1].weights, strict=True):
        assert torch.equal(one, other)


def test_gives_its_one_net_however_many_are_asked_for():
    posterior = MAP(net=Net(mlp(2, [3], 2)), likelihood=Gaussian())
    state = posterior.init(20, 2, rng())
    assert [w.shape for w in posterior.sample(state, 7, rng())] == [(2, 1, 3, 3), (2, 1, 4, 2)]
