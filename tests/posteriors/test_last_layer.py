from typing import Any

import pytest
import torch
from torch import nn

from explore import registry
from explore.core.errors import InputError
from explore.core.rng import Rng
from explore.core.shapes import Batch
from explore.inference.predict import Predictor
from explore.nets.likelihoods import Gaussian
from explore.nets.net import Net, mlp
from tests import oracles

R, N, OUTPUTS = 2, 30, 3
RNG = Rng(1, dtype=torch.float64)
X, NEW = RNG.normal(R, N, 2), 2 * RNG.normal(R, 5, 2)
SLOPES = torch.tensor([[1.0, -1.0, 0.5], [0.3, 0.8, -0.2]])
Y = (X @ SLOPES.double()).sin() + torch.tensor([0.1, 0.3, 1.0]) * RNG.normal(R, N, OUTPUTS)
NET = Net(mlp(2, [7], OUTPUTS))


def learnt(batches, likelihood=None, net=NET, n=N, **settings):
    posterior = registry.posterior("last-layer", net, likelihood or Gaussian(), prior_variance=0.8, **settings)
    rng = Rng(0, dtype=torch.float64)
    state = posterior.init(n, R, rng)
    for rows in batches:
        state, _ = posterior.update(state, Batch(X[:, rows], Y[:, rows]), rng)
    return posterior, state


def dense(posterior, state, x, y, weight=1.0):
    """Mean [R, F] and covariance [R, F, F] for each output, by the normal equations at the noise of the state."""
    phi = posterior.features(state, x)
    for o, tau in enumerate(posterior.expected_noise(state)[:, 0].mT):
        precision = tau[:, None, None] * phi.mT @ (weight * phi.mT).mT + torch.eye(phi.shape[2]).double() / 0.8
        covariance = torch.linalg.inv(precision)
        yield (covariance @ phi.mT @ (y[:, :, o] * tau[:, None] * weight).unsqueeze(2)).squeeze(2), covariance


def test_it_is_linear_regression_on_the_features_in_whatever_batches():
    posterior, state = learnt([slice(0, 13), slice(13, 14), slice(14, N)])
    exact = list(dense(posterior, state, X, Y))
    mean, factor, scale = posterior.gaussian(state)
    torch.testing.assert_close(mean[0], torch.stack([m for m, _ in exact], 2))
    covariance = torch.linalg.inv(oracles.dense(factor))
    covariance = covariance.unflatten(1, (-1, OUTPUTS)).unflatten(3, (-1, OUTPUTS))
    for o, (_, own) in enumerate(exact):
        torch.testing.assert_close(scale * covariance[:, :, o, :, o], own)
    _, whole = learnt([slice(0, N)])
    torch.testing.assert_close(whole.mean, state.mean)
    _, twice = learnt([slice(0, N), slice(0, N)])  # a second epoch
    torch.testing.assert_close(twice.inputs, state.inputs)
    torch.testing.assert_close(twice.precision, state.precision)


def test_the_noise_is_at_the_optimum_of_the_bound():
    posterior, state = learnt([slice(0, N)] * 3)
    phi = posterior.features(state, X)
    a, b = state.common.noise
    for o, (mean, covariance) in enumerate(dense(posterior, state, X, Y)):
        spread = torch.einsum("rbf,rfg,rbg->r", phi, covariance, phi)
        squares = (Y[:, :, o] - (phi @ mean.unsqueeze(2)).squeeze(2)).square().sum(1) + spread
        torch.testing.assert_close(b[:, o], 6 + squares / 2, rtol=1e-5, atol=0)
    torch.testing.assert_close(a, torch.full_like(a, 6 + N / 2))


def test_gains_are_the_divergence_after_one_more_example_and_its_mean():
    posterior, state = learnt([slice(0, N)], Gaussian(noise_std=0.4))
    y = RNG.normal(R, 5, OUTPUTS)
    gain = posterior.information_gain(state, Batch(NEW, y))
    for i in range(5):
        total = torch.zeros(R).double()
        for old, new in zip(
            dense(posterior, state, X, Y),
            dense(posterior, state, torch.cat([X, NEW[:, i : i + 1]], 1), torch.cat([Y, y[:, i : i + 1]], 1)),
            strict=True,
        ):
            total = total + oracles.kl(*new, *old)
        torch.testing.assert_close(gain[:, i], total)
    n = 20_000
    predictor = Predictor.sample(posterior, state, n, Rng(4, dtype=torch.float64))
    out = torch.cat([out for _, out in predictor.outputs(NEW)], 2)  # [R, S, B, OUTPUTS]
    drawn = out + 0.4 * RNG.normal(*out.shape)
    every = torch.stack([posterior.information_gain(state, Batch(NEW, y)) for y in drawn[:, :2000].unbind(1)])
    expected = posterior.expected_gain(state, NEW)
    assert ((every.mean(0) - expected).abs() < 5 * every.std(0) / 2000**0.5).all()
    variance = torch.stack([out[..., o].var(1) for o in range(OUTPUTS)], 2)
    torch.testing.assert_close(expected, 0.5 * (1 + variance / 0.16).log().sum(2), rtol=0.03, atol=0)


def test_what_is_no_longer_seen_returns_to_the_prior():
    posterior, state = learnt([slice(0, 20), slice(20, N)], Gaussian(noise_std=0.4), forgetting=0.9)
    weight = 0.9 ** torch.arange(N - 1, -1, -1).double()
    for o, (mean, _) in enumerate(dense(posterior, state, X, Y, weight)):
        torch.testing.assert_close(state.mean[:, :, o], mean)
    later, rng = state, Rng(0, dtype=torch.float64)
    for _ in range(50):
        later, _ = posterior.update(later, Batch(X[:, :1], Y[:, :1]), rng)
    now, before, untrained = (posterior.expected_gain(s, X[:, 1:]) for s in (later, state, posterior.init(N, R, rng)))
    assert (now < untrained).all() and (now.mean(1) > 2 * before.mean(1)).all()


def log_evidence(posterior, x, y):
    """The log evidence [R] of targets with noise 0.1, by dense covariances."""
    phi = posterior.features(posterior.init(N, R, Rng(0, dtype=torch.float64)), x)
    covariance = 0.8 * phi @ phi.mT + 0.01 * torch.eye(x.shape[1])
    normal = torch.distributions.MultivariateNormal(torch.zeros(x.shape[1]).double(), covariance[:, None])
    return normal.log_prob(y.mT).sum(1)


def test_inputs_that_tell_nothing_are_found_by_the_evidence():
    rng = Rng(2, dtype=torch.float64)
    x = torch.cat([rng.normal(R, 300, 6), torch.zeros(R, 300, 1).double()], 2)
    posterior = registry.posterior("last-layer", Net(mlp(7, [40], 3)), Gaussian(noise_std=0.1), prior_variance=0.8)
    y = (x[:, :, :2] @ SLOPES.double()).sin() + 0.1 * rng.normal(R, 300, 3)
    state = posterior.init(300, R, Rng(0, dtype=torch.float64))
    factors = posterior.relevance(state, Batch(x, y), 5)
    assert (factors[:, 2:5] < 0.1).all() and (factors[:, [0, 1, 6]] == 1).all()
    assert (factors[:, 5] == 1).all()  # as irrelevant, but not among the first five
    assert (log_evidence(posterior, x * factors.unsqueeze(1), y) > log_evidence(posterior, x, y) + 20).all()
    alone = posterior.relevance(posterior.init(9, R, Rng(0, dtype=torch.float64)), Batch(x, y), 5)
    torch.testing.assert_close(alone, factors)  # whatever number of examples the state stands for


def test_the_features_of_a_trained_module_stay():
    module: Any = mlp(2, [5], OUTPUTS)
    posterior, state = learnt([slice(0, N)], net=Net(module, trained=True))
    with torch.no_grad():
        hidden = module[:2](X.float())
    torch.testing.assert_close(posterior.features(state, X)[..., :-1], hidden.double(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("end", [nn.Tanh(), nn.ReLU()])
def test_what_follows_the_last_layer_is_refused(end):
    net = Net(nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, OUTPUTS), end))
    with pytest.raises(InputError, match="ends with a dense layer"):
        learnt([slice(0, N)], net=net)


def test_single_precision_keeps_the_prior_of_directions_without_data():
    # Rounding errors of sums in single precision would act as thousands of examples.
    posterior = registry.posterior("last-layer", Net(nn.Linear(4, 1)), Gaussian(noise_std=1e-3))
    rng = Rng(0)
    x = rng.normal(1, 4096, 2) @ rng.normal(1, 2, 4)
    unseen = torch.linalg.svd(x)[2][:, 2:3]
    state = posterior.init(1e6, 1, rng)
    for _ in range(100):
        state, _ = posterior.update(state, Batch(x, x.sum(2, keepdim=True)), rng)
    variance = 2 * posterior.expected_gain(state, unseen).double()
    at_zero = 2 * posterior.expected_gain(state, 0 * unseen).double()
    spread = (variance.exp() - at_zero.exp()) * 1e-6
    torch.testing.assert_close(spread, torch.ones_like(spread), rtol=0.1, atol=0)
