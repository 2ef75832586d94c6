"""Noisy Adam against the equations of its paper, written out in NumPy."""

import numpy as np
import pytest
import torch

from explore.core import tree
from explore.core.rng import Rng
from explore.core.shapes import Batch
from explore.nets.likelihoods import Gaussian
from explore.nets.net import Net, mlp
from explore.posteriors.noisy_adam import NoisyAdam
from explore.testing import oracles

NET = Net(mlp(2, [3], 2))
N = 6
TAU = 4.0
SAMPLES, ALPHA, BETA, LAMBDA, ETA, MOMENTUM = 4, 0.2, 0.3, 0.7, 0.6, 0.8
SETTINGS = dict(samples=SAMPLES, lr=ALPHA, beta=BETA, kl_weight=LAMBDA, prior_variance=ETA, momentum=MOMENTUM)


def build(**settings):
    return NoisyAdam(net=NET, likelihood=Gaussian(noise_std=TAU**-0.5), **SETTINGS | settings)


def rng(seed=0):
    return Rng(seed, dtype=torch.float64)


def data():
    r = rng(9)
    return Batch(r.normal(2, N, 2), r.normal(2, N, 2))


def steps(posterior, n=1, seed=1, progress=0.0):
    state, noise, states = posterior.init(N, 2, rng()), rng(seed), []
    for _ in range(n):
        state, _ = posterior.update(state, data(), noise, progress)
        states.append(state)
    return states


def paper(state, x, y, noise, step, extrinsic, fisher):
    """One step of Algorithm 1 on one replica; `state` is a list of (mu, m, f), a layer each."""
    gamma, (eps1, eps2, eps_y) = LAMBDA / (N * ETA), noise
    gradients, squares = ([np.zeros_like(mu) for mu, *_ in state] for _ in range(2))
    for i in range(SAMPLES):
        w1, w2 = (
            mu + np.sqrt(LAMBDA / N / (f + gamma)) * eps[i] for (mu, _, f), eps in zip(state, (eps1, eps2), strict=True)
        )
        for b in range(N):
            a1 = np.append(x[b], 1)
            h = a1 @ w1
            a2 = np.append(np.maximum(h, 0), 1)
            out = a2 @ w2
            sampled = out + eps_y[i, b] / np.sqrt(TAU) if fisher == "true" else y[b]
            for target, sums, power in ((y[b], gradients, 1), (sampled, squares, 2)):
                g2 = TAU * (target - out)
                g1 = (w2[:-1] @ g2) * (h > 0)
                for layer, (a, g) in enumerate(((a1, g1), (a2, g2))):
                    sums[layer] += np.outer(a, g) ** power / (SAMPLES * N)
        for layer, w in enumerate((w1, w2)):
            gradients[layer] -= gamma * w / SAMPLES

    new = []
    for (mu, m, f), gradient, square in zip(state, gradients, squares, strict=True):
        m, f = MOMENTUM * m + (1 - MOMENTUM) * gradient, (1 - BETA) * f + BETA * square
        mu = mu + ALPHA * m / (1 - MOMENTUM**step) / (np.sqrt(f) + gamma + extrinsic)
        new.append((mu, m, f))
    return new


@pytest.mark.parametrize("fisher", ["true", "empirical"])
def test_updates_follow_the_paper(fisher):
    posterior = build(fisher=fisher, extrinsic_damping=0.05)
    start, x, y = posterior.init(N, 2, rng()), *(t.numpy() for t in data())
    layers = list(zip(start.mean, start.momentum, start.squares, strict=True))
    theirs = [[tuple(t[r].numpy() for t in layer) for layer in layers] for r in range(2)]
    noise = rng(1)
    for step, state in enumerate(steps(posterior, 3), 1):
        drawn = [noise.normal(2, SAMPLES, *shape).numpy() for shape in NET.shapes]
        drawn.append((noise.normal(2, SAMPLES, N, 2) if fisher == "true" else torch.zeros(2, SAMPLES, N, 2)).numpy())
        for r in range(2):
            theirs[r] = paper(theirs[r], x[r], y[r], [e[r] for e in drawn], step, 0.05, fisher)
            for layer, expected in enumerate(theirs[r]):
                for ours, value in zip((state.mean, state.momentum, state.squares), expected, strict=True):
                    np.testing.assert_allclose(ours[layer][r], value, rtol=1e-8, atol=1e-10)


def test_the_root_of_the_squares_is_in_the_mean_step_only():
    posterior, gamma = build(), LAMBDA / (N * ETA)
    before, after = steps(posterior, 2)
    corrected = [m / (1 - MOMENTUM**2) for m in after.momentum]
    for old, new, m, f in zip(before.mean, after.mean, corrected, after.squares, strict=True):
        torch.testing.assert_close(new - old, ALPHA * m / (f.sqrt() + gamma), rtol=1e-8, atol=1e-10)
    _, covariance = oracles.implied_gaussian(posterior, after)
    precision = N / LAMBDA * oracles.flat(after.squares) + 1 / ETA
    torch.testing.assert_close(covariance, torch.diag_embed(1 / precision), rtol=1e-8, atol=1e-12)


def test_squares_are_those_of_the_examples_not_of_their_mean():
    # An example and its mirror image: the batch's gradient vanishes, theirs do not.
    net = Net(torch.nn.Linear(1, 1, bias=False))
    posterior = NoisyAdam(net=net, likelihood=Gaussian(noise_std=1.0), beta=1.0, fisher="empirical", samples=2)
    state = posterior.init(1e12, 1, rng())  # so many data that weights do not scatter
    w = state.mean[0].item()
    batch = Batch(torch.ones(1, 2, 1).double(), torch.tensor([[[w + 2], [w - 2]]], dtype=torch.float64))
    new, _ = posterior.update(state, batch, rng(1))
    torch.testing.assert_close(new.momentum[0], torch.zeros_like(new.momentum[0]), rtol=0, atol=1e-5)
    torch.testing.assert_close(new.squares[0], torch.full_like(new.squares[0], 4.0), rtol=1e-5, atol=0)


def test_starts_with_the_deviation_of_noisy_kfac():
    posterior = build()
    _, precision, scale = posterior.gaussian(posterior.init(1000, 2, rng()))
    for v in precision.variance():
        torch.testing.assert_close(scale * v, torch.full_like(v, LAMBDA / 1000), rtol=0.01, atol=0)


def test_extrinsic_damping_enters_the_mean_step_only():
    plain, damped = (steps(build(extrinsic_damping=e))[0] for e in (0.0, 10.0))
    for a, b in zip((*plain.squares, *plain.momentum), (*damped.squares, *damped.momentum), strict=True):
        assert torch.equal(a, b)
    assert build().gaussian(plain)[2] == build(extrinsic_damping=10.0).gaussian(plain)[2]
    for a, b in zip(*(p.gaussian(plain)[1].variance() for p in (build(), build(extrinsic_damping=10.0))), strict=True):
        assert torch.equal(a, b)
    start = build().init(N, 2, rng()).mean
    for before, free, held in zip(start, plain.mean, damped.mean, strict=True):
        assert 0 < (held - before).norm() < 0.5 * (free - before).norm()


def test_rates_decay_late_in_training():
    late, early = steps(build(), progress=0.5)[0], steps(build(lr=0.02, beta=0.03))[0]
    for (path, a), (_, b) in zip(tree.leaves(late), tree.leaves(early), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12, msg=path)
