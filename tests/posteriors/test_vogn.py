"""VOGN against the equations of its paper, written out in NumPy."""

import numpy as np
import pytest
import torch
from torch import nn

from explore.core.errors import InputError
from explore.core.rng import Rng
from explore.core.shapes import Batch
from explore.inference.updates import natural
from explore.nets.likelihoods import Gaussian
from explore.nets.net import Net, mlp
from explore.posteriors.vogn import VOGN
from explore.testing.oracles import Matched
from tests import oracles

NET = Net(mlp(2, [3], 2))
N = 6
PRECISION = 4.0  # of the noise
K, ALPHA, BETA1, BETA2, GAMMA, ETA, TAU, RHO = 4, 0.02, 0.8, 0.3, 0.05, 0.6, 0.7, 2.5
SETTINGS = dict(
    damped_density=True,
    samples=K, lr=ALPHA, momentum=BETA1, beta2=BETA2, damping=GAMMA, prior_variance=ETA, kl_weight=TAU,
    augmentation=RHO, kl_start=0.2, kl_warmup=0.5,
)  # fmt: skip


def build(net=NET, **settings):
    return VOGN(net=net, likelihood=Gaussian(noise_std=PRECISION**-0.5), **SETTINGS | settings)


def rng(seed=0):
    return Rng(seed, dtype=torch.float64)


def data():
    r = rng(9)
    return Batch(r.normal(2, N, 2), r.normal(2, N, 2))


def paper(state, x, y, weights, tau, first):
    """One step of Algorithm 1 on one replica; `state` is a list of (mu, m, s), a layer each, `weights` of [K, I, O]."""
    delta = tau / (RHO * N * ETA)
    gradients, squares = ([np.zeros_like(mu) for mu, *_ in state] for _ in range(2))
    count = N * len(weights[0])
    for w1, w2 in zip(*weights, strict=True):
        for b in range(N):
            a1 = np.append(x[b], 1)
            h = a1 @ w1
            a2 = np.append(np.maximum(h, 0), 1)
            g2 = PRECISION * (a2 @ w2 - y[b])
            g1 = (w2[:-1] @ g2) * (h > 0)
            for layer, (a, g) in enumerate(((a1, g1), (a2, g2))):
                gradients[layer] += np.outer(a, g) / count
                squares[layer] += np.outer(a, g) ** 2 / count
    new = []
    for (mu, m, s), g, h in zip(state, gradients, squares, strict=True):
        m = BETA1 * m + g + delta * mu
        s = h if first else (1 - BETA2) * s + BETA2 * h
        new.append((mu - ALPHA * m / (s + delta + GAMMA), m, s))
    return new


@pytest.mark.parametrize(("weight_noise", "initial"), [(True, 0.0), (False, 0.0), (True, 0.7)])
def test_updates_follow_the_paper(weight_noise, initial):
    posterior = build(weight_noise=weight_noise, initial_squares=initial)
    state, x, y = posterior.init(N, 2, rng()), *(t.numpy() for t in data())
    layers = list(zip(state.mean, state.momentum, state.squares, strict=True))
    theirs = [[tuple(t[r].numpy() for t in layer) for layer in layers] for r in range(2)]
    noise, same_noise, drawn_with = rng(1), rng(1), 0.0
    for step, progress in enumerate((0.0, 0.25, 0.5, 1.0)):
        tau = TAU * (0.2, 0.6, 1.0, 1.0)[step]  # from 0.2 to 1 over half of the training
        state, _ = posterior.update(state, data(), noise, progress)
        if step and weight_noise:
            eps = [same_noise.normal(2, K, *shape).numpy() for shape in NET.shapes]
        else:  # without s, or without noise: at the mean
            eps = [np.zeros((2, 1, *shape)) for shape in NET.shapes]
        for r in range(2):
            # Weights are drawn from the posterior that the last step left.
            scale = drawn_with / (RHO * N)
            weights = [
                mu + np.sqrt(scale / (s + scale / ETA + GAMMA)) * e[r]
                for (mu, _, s), e in zip(theirs[r], eps, strict=True)
            ]
            theirs[r] = paper(theirs[r], x[r], y[r], weights, tau, step == 0 and not initial)
            for layer, expected in enumerate(theirs[r]):
                for ours, value in zip((state.mean, state.momentum, state.squares), expected, strict=True):
                    np.testing.assert_allclose(ours[layer][r], value, rtol=1e-8, atol=1e-10)
        drawn_with = tau
        assert state.tempering.tolist() == pytest.approx([tau, tau])


class Repeated(Rng):
    """The weights' noise for K samples, repeated for each part of the batch."""

    def normal(self, *shape):
        parts = shape[1] // K
        return super().normal(shape[0], K, *shape[2:]).repeat(1, parts, *[1] * (len(shape) - 2))


IMAGES = nn.Sequential(nn.Conv2d(1, 2, 2), nn.ReLU(), nn.Conv2d(2, 1, 2, bias=False), nn.Flatten(), nn.Linear(4, 2))


@pytest.mark.parametrize("net", [NET, Net(IMAGES)], ids=["mlp", "conv"])
@pytest.mark.parametrize("settings", [{}, {"weight_noise": False}, {"fisher": "exact"}], ids=str)
def test_sub_batches_with_the_same_samples_are_the_plain_step(net, settings):
    x = rng(7).normal(2, N + 1, *((2,) if net is NET else (1, 4, 4)))
    y, states = rng(8).normal(2, N + 1, 2), []
    for parts, count in ((1, N), (3, N + 1)):  # 7 examples in 3 parts: the last is left out
        posterior, noise = build(net, sub_batches=parts, **settings), Repeated(1, dtype=torch.float64)
        state = posterior.init(N, 2, rng())
        for _ in range(3):
            state, info = posterior.update(state, Batch(x[:, :count], y[:, :count]), noise)
        states.append((state, info))
    torch.testing.assert_close(states[0], states[1], rtol=1e-10, atol=1e-12)


def test_each_sub_batch_has_samples_of_its_own():
    state, _ = build().update(build().init(N, 2, rng()), data(), rng(1))
    weights = build().sample(state, 3 * K, rng(2))
    expected = [torch.zeros_like(m) for m in state.mean]
    for part in range(3):
        alone = build(kl_weight=1e-12)  # no pull of the prior: the momentum is the mean gradient
        own = tuple(w[:, part * K : (part + 1) * K] for w in weights)
        two = slice(2 * part, 2 * part + 2)
        out, pullback = alone.net.forward(own, data().x[:, two])
        taps = pullback(PRECISION * (data().y[:, two].unsqueeze(1) - out))
        expected = [e - g / 3 for e, g in zip(expected, natural.mean_gradient(taps), strict=True)]
    quiet = build(kl_weight=1e-12, momentum=0.0, sub_batches=3)
    new, _ = quiet.update(state, data(), rng(2))
    torch.testing.assert_close(new.momentum, tuple(expected), rtol=1e-8, atol=1e-10)


def test_a_batch_must_reach_for_all_sub_batches():
    posterior = build(sub_batches=N + 1)
    with pytest.raises(InputError, match=f"cannot split a batch of {N} examples into {N + 1} sub-batches"):
        posterior.update(posterior.init(N, 2, rng()), data(), rng())


def linear(n_steps=400, **settings):
    r = Matched(3, dtype=torch.float64)
    x = torch.linalg.qr(torch.cat([torch.ones(2, 24, 1), r.normal(2, 24, 3)], 2).double())[0][:, :, 1:] * 3
    y = x.sum(2, keepdim=True) + 0.5 * r.normal(2, 24, 1)
    posterior = build(Net(nn.Linear(3, 1)), augmentation=1.0, **{"lr": 0.05, "beta2": 0.1} | settings)
    state = posterior.init(24, 2, r)
    for i in range(n_steps):
        state, _ = posterior.update(state, Batch(x, y), r, i / n_steps)
    return posterior, state, x, y


def test_precision_at_the_fixed_point_is_that_of_the_tempered_bound():
    # Without weight noise h is a number: it depends on the mean alone, which converges.
    posterior, state, x, y = linear(weight_noise=False, damping=0.0)
    mean, covariance = oracles.implied_gaussian(posterior, state)
    a = torch.cat([x, torch.ones_like(y)], 2)
    h = (PRECISION * (a @ mean.unsqueeze(2) - y) * a).square().mean(1)
    precision = 24 / TAU * h + 1 / ETA
    torch.testing.assert_close(covariance, torch.diag_embed(1 / precision), rtol=1e-6, atol=1e-10)


@pytest.mark.parametrize("weight_noise", [True, False])
def test_tempered_mean_is_ridge_regression_with_more_noise(weight_noise):
    posterior, state, x, y = linear(weight_noise=weight_noise)
    mean, _ = oracles.implied_gaussian(posterior, state)
    expected, _ = oracles.ridge(x, y, (TAU / PRECISION) ** 0.5, ETA)
    torch.testing.assert_close(mean, expected, rtol=1e-6, atol=1e-8)


def test_squares_are_those_of_the_examples_not_of_their_mean():
    # An example and its mirror image: the batch's gradient vanishes, theirs do not.
    posterior = build(Net(nn.Linear(1, 1, bias=False)))
    state = posterior.init(N, 1, rng())
    w = state.mean[0].item()
    batch = Batch(torch.ones(1, 2, 1).double(), torch.tensor([[[w + 2], [w - 2]]], dtype=torch.float64))
    new, _ = posterior.update(state, batch, rng(1))
    decay = TAU * 0.2 / (RHO * N * ETA)
    torch.testing.assert_close(new.momentum[0], decay * state.mean[0], rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(new.squares[0], torch.full_like(new.squares[0], (2 * PRECISION) ** 2))


def test_in_a_convolution_a_square_is_that_of_the_sum_over_positions():
    module = nn.Sequential(nn.Conv2d(1, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2)).double()
    posterior, r = build(Net(module)), rng(9)
    state, x, y = posterior.init(N, 2, rng()), r.normal(2, N, 1, 3, 3), r.normal(2, N, 2)
    new, _ = posterior.update(state, Batch(x, y), rng(1))
    weights = tuple(m.unsqueeze(1) for m in state.mean)
    score = PRECISION * (oracles.run(module, weights, x) - y.unsqueeze(1))
    gradients = torch.einsum("rsbo,rsbow->rbw", score, oracles.jacobians(module, weights, x, posterior.net.shapes))
    torch.testing.assert_close(oracles.flat(new.squares), gradients.square().mean(1), rtol=1e-8, atol=1e-10)


def test_before_any_data_the_density_has_the_width_of_the_prior():
    posterior = build(damping=0.0)
    _, precision, scale = posterior.gaussian(posterior.init(N, 2, rng()))
    for v in precision.variance():
        torch.testing.assert_close(scale * v, torch.full_like(v, ETA), rtol=1e-8, atol=0)


def test_damping_narrows_the_posterior():
    state = build().init(N, 2, rng())
    state, _ = build().update(state, data(), rng(1))
    for gamma in (0.0, GAMMA):
        _, covariance = oracles.implied_gaussian(build(damping=gamma), state)
        tau = float(state.tempering[0])
        precision = RHO * N / tau * (oracles.flat(state.squares) + gamma) + 1 / ETA
        torch.testing.assert_close(covariance, torch.diag_embed(1 / precision), rtol=1e-8, atol=1e-12)


def test_tau_is_a_number_of_the_turn_whether_it_rises_or_not():
    for start, taus in ((1.0, [TAU, TAU, TAU]), (0.2, [0.2 * TAU, 0.6 * TAU, TAU])):
        posterior = build(kl_start=start, kl_warmup=0.5)
        turns = [posterior.turn(step, progress) for step, progress in ((2, 0.0), (3, 0.25), (4, 0.75))]
        assert [turn.numbers[2] for turn in turns] == pytest.approx(taus)
        assert {turn.kind for turn in turns} == {(True,)}


def test_no_warm_up_and_late_decay():
    assert build(kl_warmup=0.0).init(N, 2, rng()).tempering.tolist() == pytest.approx([TAU, TAU])
    start, moved = build().init(N, 2, rng()), []
    for progress in (0.59, 0.6):
        posterior = build(lr_decay=0.1, lr_decay_at=0.6)
        new, _ = posterior.update(start, data(), rng(1), progress)
        moved.append((new.mean[0] - start.mean[0]).norm())
    assert moved[1] == pytest.approx(0.1 * moved[0])
