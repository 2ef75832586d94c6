"""MC dropout: the masks of training and prediction, and the loss that is descended."""

from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from explore.core.rng import Rng
from explore.core.shapes import Batch
from explore.inference.updates import adam
from explore.nets.likelihoods import Gaussian
from explore.nets.net import Net, mlp
from explore.nets.slots.convolution import ConvSlot
from explore.posteriors.map import MAP
from explore.posteriors.mc_dropout import MCDropout

MODULE = mlp(2, [4], 2)
RATE, ETA, N = 0.3, 0.6, 20


def rng(seed=0):
    return Rng(seed, dtype=torch.float64)


def build(module=MODULE, rate=RATE, **settings):
    return MCDropout(
        net=Net(module), likelihood=Gaussian(noise_std=0.5), rate=rate, prior_variance=ETA, lr=0.05, **settings
    )


def data(shape=(2,)):
    r = rng(9)
    return Batch(r.normal(2, 5, *shape), r.normal(2, 5, 2))


def test_updates_descend_the_expected_loss_with_adam():
    posterior = build()
    state, batch, noise, same_noise = posterior.init(N, 2, rng()), data(), rng(1), rng(1)
    weights = [w.clone().requires_grad_() for w in state.weights]
    optimiser = torch.optim.Adam(weights, lr=0.05)
    for _ in range(3):
        state, info = posterior.update(state, batch, noise)
        h = batch.x
        for layer, w in enumerate(weights):
            z = (same_noise.uniform(2, 5, w.shape[2]) >= RATE).double() / (1 - RATE)  # one mask an example
            h = h.relu() if layer else h
            h = (h * z[..., :-1]) @ w[:, 0, :-1] + w[:, :, -1]  # the bias is never dropped
        nll = -torch.distributions.Normal(h, 0.5).log_prob(batch.y).sum(2).mean(1)
        # E|W|^2: a row is kept with probability 1 - p, and then 1 / (1 - p) times as large.
        expected = [
            w[..., :-1, :].square().sum((1, 2, 3)) / (1 - RATE) + w[..., -1, :].square().sum((1, 2)) for w in weights
        ]
        optimiser.zero_grad()
        (nll + sum(expected) / (2 * N * ETA)).sum().backward()
        optimiser.step()
        torch.testing.assert_close(info["nll"], nll.detach(), rtol=1e-8, atol=0)
        for ours, theirs in zip(state.weights, weights, strict=True):
            torch.testing.assert_close(ours, theirs.detach(), rtol=1e-8, atol=1e-10)


IMAGES = nn.Sequential(
    nn.Conv2d(2, 3, 3, stride=(2, 1), padding=1), nn.Tanh(), nn.Conv2d(3, 4, (1, 2), dilation=2, bias=False), nn.Tanh(),
    nn.Conv2d(4, 3, 1, stride=2), nn.Flatten(), nn.Linear(18, 2),
)  # fmt: skip


@pytest.mark.parametrize("by_examples", [True, False])
def test_convolutions_have_a_kernel_for_each_example(by_examples, monkeypatch):
    """By convolutions of many groups and by patches, against torch's convolutions of one image after the other."""
    monkeypatch.setattr(ConvSlot, "_by_examples", lambda *_: by_examples)
    posterior = build(IMAGES)
    state, batch = posterior.init(N, 2, rng()), data((2, 5, 8))
    weights = [w.clone().requires_grad_() for w in state.weights]
    masks = posterior._masks(2, 5, rng(1))
    layers = [layer for layer in IMAGES if isinstance(layer, nn.Conv2d)]
    loss, decay = torch.zeros(()).double(), 1 / (2 * N * ETA)
    for r, b in product(range(2), range(5)):
        h = batch.x[r, b : b + 1]
        for i, (layer, w, z) in enumerate(zip(layers, weights, masks, strict=False)):
            m = (z[r, b, :, None] * w[r, 0]).T
            bias = m[:, -1] if layer.bias is not None else None
            kernel = (m if bias is None else m[:, :-1]).reshape(layer.weight.shape)
            h, padding = h.tanh() if i else h, (1, 1) if i == 0 else (0, 0)
            h = F.conv2d(h, kernel, bias, layer.stride, padding, layer.dilation)
        h = (h.flatten(1) * masks[3][r, b, :-1]) @ weights[3][r, 0, :-1] + weights[3][r, 0, -1]
        loss = loss - torch.distributions.Normal(h, 0.5).log_prob(batch.y[r, b]).sum() / 5
    for w, has_bias in zip(weights, posterior.net.biases, strict=True):
        kept = w.square().sum((0, 1, 3)) / (1 - RATE)
        loss = loss + decay * (kept.sum() if not has_bias else kept[:-1].sum() + w[..., -1, :].square().sum())
    expected = torch.autograd.grad(loss, weights)
    new, _ = posterior.update(state, batch, rng(1))
    for average, gradient in zip(new.moving.first, expected, strict=True):
        torch.testing.assert_close(average / (1 - adam.BETA1), gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("bias", [True, False])
def test_samples_have_whole_rows_of_zeros(bias):
    posterior = build(nn.Linear(3, 2, bias=bias))
    state = posterior.init(N, 2, rng())
    n = 4000
    (sampled,), (m,) = posterior.sample(state, n, rng(2)), state.weights
    ratio = sampled / m  # [R, S, I, O]
    kept = ratio != 0
    assert torch.equal(kept.all(3), kept.any(3))
    droppable = ratio[:, :, :3]
    torch.testing.assert_close(droppable, kept[:, :, :3].double() / (1 - RATE), rtol=1e-12, atol=0)
    share = kept[:, :, :3].double().mean(1)
    assert (share - (1 - RATE)).abs().max() < 5 * (RATE * (1 - RATE) / n) ** 0.5
    if bias:
        assert torch.equal(sampled[:, :, 3], m[:, :, 3].expand(-1, n, -1))


def test_a_sample_is_one_net_for_all_inputs():
    posterior = build()
    state = posterior.init(N, 2, rng())
    layers = posterior.sample(state, 3, rng(2))
    x = torch.ones(2, 6, 2, dtype=torch.float64)
    out = posterior.net.output(layers, x)
    assert torch.equal(out, out[:, :, :1].expand_as(out))
    assert out[:, :, 0].std(1).min() > 0


@pytest.mark.parametrize("bias", [True, False])
def test_training_and_prediction_drop_alike(bias):
    # The same input many times in one batch: its masks vary as those of as many samples do.
    module = nn.Sequential(nn.Conv2d(1, 2, 2, bias=bias), nn.Flatten(), nn.Linear(8, 2, bias=bias))
    posterior, n = build(module), 20000
    state = posterior.init(N, 1, rng())
    x = rng(3).normal(1, 1, 1, 3, 3)
    sampled = posterior.net.output(posterior.sample(state, n, rng(4)), x)[:, :, 0]
    zero = torch.zeros(1, n, 2, dtype=torch.float64)
    _, info = posterior.update(state, Batch(x.expand(1, n, 1, 3, 3), zero), rng(5))
    nll = -torch.distributions.Normal(sampled, 0.5).log_prob(zero).sum(2)
    assert (info["nll"] - nll.mean()).abs() < 5 * nll.std() * (2 / n) ** 0.5


def test_without_dropout_it_is_the_mode():
    states = []
    for posterior in (
        build(rate=0.0),
        MAP(net=Net(MODULE), likelihood=Gaussian(noise_std=0.5), prior_variance=ETA, lr=0.05),
    ):
        state = posterior.init(N, 2, rng())
        for i in range(3):
            state, _ = posterior.update(state, data(), rng(1), i / 3)
        states.append(state)
    for one, other in zip(states[0].weights, states[1].weights, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
