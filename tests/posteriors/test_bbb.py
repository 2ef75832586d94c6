"""Bayes by Backprop against torch.optim.Adam on the bound written out."""

import math

import pytest
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence

from explore.inference.reparam import Local
from explore.likelihoods import Gaussian
from explore.nets import Net, mlp
from explore.posteriors.bbb import BBB
from explore.rng import Rng
from explore.shapes import Batch
from explore.testing import oracles
from explore.testing.oracles import Matched

MODULE = mlp(2, [3], 2).double()
NET = Net(MODULE)
RNG = Rng(9, dtype=torch.float64)
BATCH = Batch(RNG.normal(2, 5, 2), RNG.normal(2, 5, 2))


def build(**settings):
    return BBB(net=NET, likelihood=Gaussian(noise_std=0.5), prior_variance=0.6, kl_weight=0.7, **settings)


def rng(seed=0, kind=Rng):
    return kind(seed, dtype=torch.float64)


def test_starts_at_the_given_deviation():
    posterior = build(initial_std=0.07)
    _, covariance = oracles.implied_gaussian(posterior, posterior.init(20, 2, rng()), 2)
    expected = 0.07**2 * torch.eye(NET.weights, dtype=torch.float64).expand(2, -1, -1)
    torch.testing.assert_close(covariance, expected, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("reparameterisation", ["local", "weights"])
def test_updates_descend_the_bound_with_adam(reparameterisation):
    posterior = build(reparameterisation=reparameterisation, samples=3, lr=0.05)
    state = posterior.init(20, 2, rng())
    means, rhos = ([t.clone().requires_grad_() for t in sum(ts, ())] for ts in (state.mean, state.spread))
    optimiser = torch.optim.Adam([*means, *rhos], lr=0.05)
    noise, same_noise = rng(1), rng(1)

    for _ in range(3):
        state, info = posterior.update(state, BATCH, noise)

        stds = [torch.log1p(r.exp()) for r in rhos]
        if reparameterisation == "weights":
            eps = [same_noise.normal(2, 3, *m.shape[1:]) for m in means]
            drawn = [m.unsqueeze(1) + s.unsqueeze(1) * e for m, s, e in zip(means, stds, eps, strict=True)]
            out = oracles.run(MODULE, drawn, BATCH.x)
        else:
            out = BATCH.x.unsqueeze(1).expand(-1, 3, -1, -1)
            for layer, (m, s) in enumerate(zip(means, stds, strict=True)):
                a = torch.cat([out.relu() if layer else out, torch.ones_like(out[..., :1])], -1)
                mean, std = a @ m.unsqueeze(1), (a**2 @ s.unsqueeze(1) ** 2).sqrt()
                out = mean + std * same_noise.normal(2, 3, 5, 1, mean.shape[-1]).squeeze(3)
        nll = -Normal(out, 0.5).log_prob(BATCH.y.unsqueeze(1)).sum(-1).mean((1, 2))
        prior = Normal(0, math.sqrt(0.6))
        divergence = sum(kl_divergence(Normal(m, s), prior).sum((1, 2)) for m, s in zip(means, stds, strict=True))
        optimiser.zero_grad()
        (nll + 0.7 / 20 * divergence).sum().backward()
        optimiser.step()

        torch.testing.assert_close(info["nll"], nll.detach(), rtol=1e-8, atol=0)
        for ours, theirs in zip(sum((*state.mean, *state.spread), ()), (*means, *rhos), strict=True):
            torch.testing.assert_close(ours, theirs.detach(), rtol=1e-8, atol=1e-10)


def test_local_noise_has_the_moments_of_the_weights():
    # One layer, so that the expected nll is known; matched noise leaves no sampling error in it.
    net = Net(torch.nn.Linear(2, 2))
    posterior = BBB(net=net, likelihood=Gaussian(noise_std=0.5), samples=6, initial_std=0.3)
    state = posterior.init(20, 2, rng())
    _, info = posterior.update(state, BATCH, rng(1, Matched))
    a = torch.cat([BATCH.x, torch.ones(2, 5, 1, dtype=torch.float64)], -1)
    squares = (BATCH.y - a @ state.mean[0][0]).square().sum(-1) + 2 * 0.09 * a.square().sum(-1)
    expected = 0.5 * (squares / 0.25 + 2 * math.log(2 * math.pi * 0.25)).mean(1)
    torch.testing.assert_close(info["nll"], expected, rtol=1e-8, atol=0)


def test_a_layer_without_bias_survives_inputs_of_zero():
    net = Net(torch.nn.Linear(2, 2, bias=False))
    posterior = BBB(net=net, likelihood=Gaussian())
    batch = Batch(torch.zeros(2, 5, 2, dtype=torch.float64), BATCH.y)
    state, _ = posterior.update(posterior.init(20, 2, rng()), batch, rng(1))
    assert state.common.alive.all()


def test_steps_shrink_along_a_cosine():
    posterior = build()
    state = posterior.init(20, 2, rng())
    after = [posterior.update(state, BATCH, rng(1), p)[0] for p in (0.0, 0.5, 1.0)]
    moved = [(new.mean[0][0] - state.mean[0][0]).norm().item() for new in after]
    assert moved == pytest.approx([moved[0], moved[0] / 2, 0], abs=1e-12)


@pytest.mark.parametrize("bias", [True, False])
def test_pre_activations_of_convolutions_are_those_of_their_patches(bias):
    net = Net(
        nn.Sequential(
            nn.Conv2d(2, 3, (3, 2), (2, 1), (1, 2), bias=bias), nn.ReLU(), nn.Conv2d(3, 2, 2, bias=bias), nn.Flatten()
        )
    )
    given = rng(1)
    free = [draw(1, *shape).requires_grad_() for shape in net.shapes for draw in (given.normal, given.uniform)]
    x, found = given.normal(1, 4, 2, 6, 5), []
    for by_patches in (False, True):
        own = rng(5)
        layers = [Local(mean, std, 3, own) for mean, std in zip(free[::2], free[1::2], strict=True)]
        out, _ = net.train_output(tuple(layer.__call__ for layer in layers) if by_patches else layers, x, samples=3)
        found.append((out, *torch.autograd.grad(out.cos().sum(), free)))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
