"""Deep ensembles: every member is a maximum a posteriori net."""

import math

import torch
from torch import nn
from torch.distributions import Normal

from explore.core.rng import Rng
from explore.core.shapes import Batch
from explore.nets.likelihoods import Gaussian
from explore.nets.net import Net, mlp
from explore.posteriors.ensemble import Ensemble
from tests import oracles


def rng(seed=0):
    return Rng(seed, dtype=torch.float64)


def test_members_descend_the_posterior_with_adam():
    module, r = mlp(2, [3], 2).double(), rng(9)
    batch = Batch(r.normal(2, 5, 2), r.normal(2, 5, 2))
    posterior = Ensemble(net=Net(module), likelihood=Gaussian(noise_std=0.5), members=3, prior_variance=0.6, lr=0.05)
    state = posterior.init(20, 2, rng())
    weights = [w.clone().requires_grad_() for w in state.weights]
    optimiser = torch.optim.Adam(weights, lr=0.05)
    prior = Normal(0, math.sqrt(0.6))
    for _ in range(3):
        state, _ = posterior.update(state, batch, r)
        fit = Normal(oracles.run(module, weights, batch.x), 0.5).log_prob(batch.y.unsqueeze(1)).sum() / 5
        optimiser.zero_grad()
        (-fit - sum(prior.log_prob(w).sum() for w in weights) / 20).backward()
        optimiser.step()
        for ours, theirs in zip(state.weights, weights, strict=True):
            torch.testing.assert_close(ours, theirs.detach(), rtol=1e-8, atol=1e-10)


def test_members_of_a_linear_model_meet_at_ridge_regression():
    r = rng()
    x, noise = r.normal(2, 24, 3), r.normal(2, 24, 1)
    y = x.sum(2, keepdim=True) + 0.5 * noise
    posterior = Ensemble(net=Net(nn.Linear(3, 1)), likelihood=Gaussian(noise_std=0.5), prior_variance=0.8, lr=0.1)
    state = posterior.init(24, 2, r)
    assert state.weights[0].std(1).min() > 0.01
    for i in range(400):
        state, _ = posterior.update(state, Batch(x, y), r, i / 400)
    mean, _ = oracles.ridge(x, y, 0.5, 0.8)
    expected = mean.view(2, 1, 4, 1).expand_as(state.weights[0])
    torch.testing.assert_close(state.weights[0], expected, rtol=1e-6, atol=1e-8)


def test_samples_are_the_members():
    posterior = Ensemble(net=Net(mlp(2, [3], 1)), likelihood=Gaussian(), members=4)
    state = posterior.init(20, 2, rng())
    for n, expected in ((3, 3), (9, 4)):
        for drawn, kept in zip(posterior.sample(state, n, rng()), state.weights, strict=True):
            assert torch.equal(drawn, kept[:, :expected])
