"""Bayes by Backprop against torch.optim.Adam on the bound written out."""

import math
from functools import partial

import pytest
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence

from explore import registry
from explore.core.rng import Rng
from explore.core.shapes import Batch
from explore.execution import parallel
from explore.execution.parallel import World
from explore.inference.updates.noisy_layers import Local
from explore.nets.likelihoods import Gaussian
from explore.nets.net import Net, mlp
from explore.posteriors.bbb import BBB
from explore.testing.oracles import Matched
from explore.testing.subject import train
from tests import oracles
from tests.pooled import Pooled

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
    _, covariance = oracles.implied_gaussian(posterior, posterior.init(20, 2, rng()))
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


@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_pre_activations_of_convolutions_are_those_of_their_patches(bias, apart):
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
        layers = [Local(mean, std, 3, own, apart) for mean, std in zip(free[::2], free[1::2], strict=True)]
        patches = [partial(layer, patches=shape) for layer, shape in zip(layers, ((2, 6), (3, 4)), strict=True)]
        out, _ = net.train_output(patches if by_patches else layers, x, samples=3)
        found.append((out, *torch.autograd.grad(out.cos().sum(), free)))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


class White(Matched):
    """Matched numbers, without correlations over the sample axis either, where there are samples enough.

    Signs are the same for all samples: with them the numbers stay white.
    """

    def uniform(self, *shape):
        return super().uniform(shape[0], 1, *shape[2:]).expand(shape)

    def normal(self, *shape):
        eps = super().normal(*shape)
        if math.prod(shape[2:]) >= shape[1]:
            return eps
        return torch.linalg.qr(eps.flatten(2))[0].view(shape) * math.sqrt(shape[1])


TOKENS = (Pooled(nn.Linear(2, 3)), (5, 2))
IMAGES = (Pooled(nn.Conv2d(2, 3, (2, 1), (1, 2), (1, 0))), (2, 4, 3))


@pytest.mark.parametrize(
    ("model", "replicas"), [(TOKENS, 2), (IMAGES, 1), (IMAGES, 2)], ids=["tokens", "images", "images of two replicas"]
)
def test_a_layer_whose_positions_are_averaged_is_regression_on_the_mean_input(model, replicas):
    module, shape = model
    net, given = Net(module), rng(4)
    batch = Batch(2 * given.normal(replicas, 12, *shape), given.normal(replicas, 12, 3))
    posterior = BBB(
        net=net, likelihood=Gaussian(noise_std=0.5), prior_variance=0.6, kl_weight=0.7, samples=20, lr=0.1,
        initial_std=0.3,
    )  # fmt: skip
    own = rng(3, White)
    state = train(posterior, posterior.init(12, replicas, own), batch, own, 300, ends=True)

    if batch.x.dim() == 5:
        patches = nn.functional.unfold(batch.x.flatten(0, 1), (2, 1), 1, (1, 0), (1, 2)).mean(2)
        means = patches.unflatten(0, (replicas, 12))
    else:
        means = batch.x.mean(2)
    std = 0.5 * math.sqrt(0.7)
    mean, covariance = oracles.ridge(means, batch.y, std, 0.6)
    expected = 1 / torch.linalg.inv(covariance).diagonal(dim1=1, dim2=2)  # the factorised optimum
    found = nn.functional.softplus(state.spread[0][0]).square()
    torch.testing.assert_close(state.mean[0][0], mean, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(found, expected.unsqueeze(2).expand_as(found), rtol=1e-5, atol=0)


def signed(net, x, samples=2):
    """M, sigma and the weights that each example has in training, [S, B, I, O]; of a net of one layer."""
    given = rng(7)
    (shape,) = net.shapes
    mean, std = given.normal(1, *shape), given.uniform(1, *shape) + 0.1
    layer = Local(mean, std, samples, given)
    out, _ = net.train_output((layer,), x)
    slot = net._slots[0]
    a = slot.examples(x.flatten(0, 1), (1, 1, x.shape[1]))
    positions = out.unflatten(3, (shape[1], -1)).mT if any(net.convolutions) else out.unflatten(3, (-1, shape[1]))
    return mean, std, torch.linalg.lstsq(a.expand(-1, samples, -1, -1, -1), positions).solution[0]


@pytest.mark.parametrize("layer", [nn.Linear(3, 4), nn.Conv2d(2, 3, 2)], ids=["linear", "convolution"])
def test_an_example_has_the_same_weights_at_all_positions_and_others_have_other_signs(layer):
    net = Net(nn.Sequential(layer, nn.Flatten()))
    x = rng(1).normal(1, 40, *((2, 5, 6) if any(net.convolutions) else (9, 3)))
    mean, std, weights = signed(net, x)
    noise = (weights - mean) / std
    size = noise.abs()[:, :1]
    torch.testing.assert_close(noise.abs(), size.expand_as(noise), rtol=1e-8, atol=1e-10)  # so h_bt = a_bt W_b
    assert not torch.equal(size[0], size[1])  # samples have noise apart
    turned = (noise / noise[:, :1]).round()  # r_b s_b^T
    assert (torch.linalg.matrix_rank(turned) == 1).all()
    assert len(turned[0].flatten(1).unique(dim=0)) > 15  # of 40 examples


@pytest.mark.parametrize("layer", [nn.Linear(3, 4), nn.Conv2d(2, 3, 2)], ids=["linear", "convolution"])
def test_parts_of_a_batch_have_the_noise_of_as_many_processes(layer):
    net, given = Net(nn.Sequential(layer, nn.Flatten())), rng(1)
    x = given.normal(1, 6, *((2, 5, 6) if any(net.convolutions) else (9, 3)))
    mean, std = given.normal(1, *net.shapes[0]), given.uniform(1, *net.shapes[0])

    def output(world, own):
        with parallel.within(world):
            return net.train_output((Local(mean, std, 2, parallel.apart(rng(3), 1, 2)),), own)[0]

    halves = [output(World(2, rank), x[:, part]) for rank, part in enumerate((slice(3), slice(3, 6)))]
    torch.testing.assert_close(output(World(2, 0, 2), x), torch.cat(halves, 2), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["bbb", "mc-dropout", "tensor-factorised", "whvi"])
def test_equal_tokens_stay_equal_in_training(name):
    outs = []

    class Tokens(nn.Module):
        def __init__(self):
            super().__init__()
            self.into, self.out = nn.Linear(3, 5), nn.Linear(5, 2)

        def forward(self, x):
            h = self.out(torch.tanh(self.into(x)))
            outs.append(h.detach())
            return h.mean(1)

    posterior = registry.posterior(name, Net(Tokens()), Gaussian(noise_std=0.5), "plain")
    batch = Batch(rng(1).normal(1, 1, 1, 3).expand(1, 6, 4, 3), rng(2).normal(1, 6, 2))
    posterior.update(posterior.init(6, 1, rng()), batch, rng(3))
    tokens = outs[-1].unflatten(0, (-1, 6))  # [S, B, T, O]
    torch.testing.assert_close(tokens, tokens[:, :, :1].expand_as(tokens), rtol=1e-10, atol=1e-12)
    assert not torch.allclose(tokens[:, 0], tokens[:, 1])  # examples have noise apart
