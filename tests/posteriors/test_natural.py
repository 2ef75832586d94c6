"""The steps of natural-gradient posteriors."""

import torch
from torch import nn

from explore.likelihoods import Gaussian
from explore.nets import Net, mlp
from explore.posteriors import natural
from explore.rng import Rng
from explore.shapes import Means
from tests import oracles

MODULE = mlp(2, [3], 2).double()
NET, LIKELIHOOD = Net(MODULE), Gaussian(noise_std=0.5)
RNG = Rng(0, dtype=torch.float64)
X, Y = RNG.normal(2, 6, 2), RNG.normal(2, 6, 2)
WEIGHTS = NET.glorot(2, RNG, 4)


def gradient(x, y, weights):
    noise = LIKELIHOOD.draw(LIKELIHOOD.init(2, RNG), weights[0].shape[1], RNG)
    out, pullback = NET.forward(weights, x)
    return oracles.flat(natural.mean_gradient(pullback(LIKELIHOOD.score(noise, out, y.unsqueeze(1)))))


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-8, atol=1e-10)


def test_mean_gradient_is_the_average_over_examples_and_samples():
    jacobian = oracles.jacobians(MODULE, WEIGHTS, X, NET.shapes)
    score = (Y.unsqueeze(1) - oracles.run(MODULE, WEIGHTS, X)) / 0.25
    close(gradient(X, Y, WEIGHTS), torch.einsum("rsbo,rsbow->rw", score, jacobian) / (4 * 6))


def test_mean_gradient_ignores_batch_size_and_number_of_samples():
    whole = gradient(X, Y, WEIGHTS)
    close((gradient(X[:, :3], Y[:, :3], WEIGHTS) + gradient(X[:, 3:], Y[:, 3:], WEIGHTS)) / 2, whole)
    close(gradient(X, Y, tuple(w.repeat(1, 2, 1, 1) for w in WEIGHTS)), whole)
    parts = [gradient(X, Y, tuple(w[:, p] for w in WEIGHTS)) for p in (slice(2), slice(2, 4))]
    close(sum(parts) / 2, whole)


def test_mean_gradient_sums_over_positions():
    net = Net(nn.Sequential(nn.Conv2d(1, 2, 2), nn.Flatten()))
    x, (w,) = RNG.normal(2, 3, 1, 3, 3), net.glorot(2, RNG, 2)
    w.requires_grad_()
    out = net.output((w,), x)
    (expected,) = torch.autograd.grad(out.sum() / (2 * 3), w)
    _, pullback = net.forward((w,), x)
    close(natural.mean_gradient(pullback(torch.ones_like(out)))[0], expected.sum(1))


def test_momentum_of_a_constant_gradient_is_that_gradient():
    gradient: Means = (torch.tensor([[[3.0, -2.0]]]),)
    average: Means = (torch.zeros(1, 1, 2),)
    for step in range(1, 5):
        average, corrected = natural.momentum(average, gradient, 0.9, step)
        torch.testing.assert_close(average[0], (1 - 0.9**step) * gradient[0])
        torch.testing.assert_close(corrected, gradient)


def test_decay_is_one_until_its_point():
    assert [natural.decay(p, 0.5, 0.1) for p in (0.0, 0.499, 0.5, 1.0)] == [1.0, 1.0, 0.1, 0.1]
