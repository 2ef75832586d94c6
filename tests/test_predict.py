"""Predictions in chunks, and test metrics against NumPy."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from explore import registry
from explore.core.rng import Rng
from explore.core.shapes import Batch, flatten, unflatten
from explore.inference import predict
from explore.inference.predict import Predictor, crps
from explore.nets.likelihoods import Bernoulli, Categorical, Gaussian
from explore.nets.net import Net, mlp
from tests import oracles

RNG = Rng(0, dtype=torch.float64)
R, S, P = 2, 7, 11
NET = Net(mlp(2, [4], 2))
LAYERS, X, Y = NET.glorot(R, RNG, S), RNG.normal(R, P, 2), RNG.normal(R, P, 2)
TAU, SCALE = 0.5 + RNG.uniform(R, S, 2) * torch.tensor([1.0, 40.0]), 0.5 + RNG.uniform(R, 2)
OUT = NET.output(LAYERS, X)
NETS = Predictor(NET, Gaussian(), LAYERS, TAU)
ONE = replace(NETS, layers=tuple(w[:, :1] for w in LAYERS), noise=TAU[:, :1])


@pytest.fixture(params=["whole", "chunks"])
def memory(request, monkeypatch):
    if request.param == "chunks":
        for budget in ("BUDGET", "CACHE"):
            monkeypatch.setattr(predict, budget, 3 * R * S * 7)  # three points at once; the widest layer takes 3 + 4
        assert [part.stop - part.start for part, _ in NETS.outputs(X)] == [3, 3, 3, 2]


def close(actual, expected):
    np.testing.assert_allclose(actual.numpy(), expected, rtol=1e-8)


def test_moments(memory):
    mean, variance = NETS.moments(X)
    close(mean, OUT.numpy().mean(1))
    close(variance, OUT.numpy().var(1, ddof=1))


def test_what_is_made_of_each_chunk_stands_at_its_points(memory):
    close(
        NETS.log_prob(X, Y), torch.cat([NETS.log_prob(X[:, i : i + 1], Y[:, i : i + 1]) for i in range(P)], 2).numpy()
    )


def test_a_tiny_budget_still_moves_on(monkeypatch):
    monkeypatch.setattr(predict, "BUDGET", 1)
    assert len(list(NETS.outputs(X))) == P


def test_predictions_carry_no_graph():
    layers = tuple(w.clone().requires_grad_() for w in LAYERS)
    assert not replace(NETS, layers=layers).moments(X).mean.requires_grad


@pytest.mark.parametrize("scaled", [False, True])
def test_regression_metrics(memory, scaled):
    found = NETS.evaluate(X, Y, SCALE if scaled else None)
    scale = SCALE.numpy()[:, None] if scaled else np.ones((R, 1, 2))
    out, y = OUT.numpy() * scale[:, None], Y.numpy() * scale  # in original units
    close(found["rmse"], np.sqrt(((out.mean(1) - y) ** 2).mean((1, 2))))
    # One density for the vector of outputs; a mixture over samples for every point by itself.
    std = scale[:, None] / np.sqrt(TAU.numpy())[:, :, None]
    density = stats.norm(out, std).pdf(y[:, None]).prod(-1)
    close(found["log_likelihood"], np.log(density.mean(1)).mean(1))
    close(found["epistemic"], out.std(1, ddof=1).mean((1, 2)))
    total = np.sqrt(out.var(1, ddof=1) + (std**2).mean(1))
    close(found["coverage_95"], (np.abs(y - out.mean(1)) <= stats.norm.ppf(0.975) * total).mean((1, 2)))


@pytest.mark.parametrize(("samples", "tolerance"), [(1, 1e-6), (6, 1e-6), (90, 0.03)])  # 90: only some pairs
def test_ranked_probability_score_is_the_integral_over_thresholds(samples, tolerance):
    rng = np.random.default_rng(samples)
    mean, y = rng.normal(size=(1, samples, 3, 1)), rng.normal(size=3)
    deviation = rng.uniform(0.1, 2, mean.shape)
    at = np.linspace(-30, 30, 60_001)
    for i, found in enumerate(crps(*map(torch.from_numpy, (mean, deviation, y[None, :, None]))).flatten().tolist()):
        below = stats.norm(mean[0, :, i], deviation[0, :, i]).cdf(at).mean(0)
        assert found == pytest.approx(np.trapezoid((below - (at >= y[i])) ** 2, at), rel=max(tolerance, 1e-3))


@pytest.mark.parametrize(("likelihood", "outputs"), [(Categorical(), 3), (Bernoulli(), 1)])
def test_classification_metrics(memory, likelihood, outputs):
    net = Net(mlp(2, [4], outputs))
    layers = tuple(3 * w for w in net.glorot(R, RNG, S))
    y = (X[..., 0] > 0).long()
    found = Predictor(net, likelihood, layers, None).evaluate(X, y)
    out = net.output(layers, X).numpy()
    if outputs == 1:
        out = np.concatenate([np.zeros_like(out), out], -1)
    p = np.exp(out) / np.exp(out).sum(-1, keepdims=True)
    p = p.mean(1)  # over samples
    close(found["error"], (p.argmax(-1) != y.numpy()).mean(1))
    close(found["log_likelihood"], np.log(np.take_along_axis(p, y.numpy()[..., None], -1)).mean((1, 2)))


def test_a_single_sample_has_no_spread():
    found = ONE.evaluate(X, Y)
    assert found["epistemic"].tolist() == [0, 0]
    close(found["rmse"], np.sqrt(((OUT[:, 0] - Y).numpy() ** 2).mean((1, 2))))


@pytest.mark.parametrize(("widths", "covered"), [(0.999, 1.0), (1.001, 0.0)])
def test_coverage_counts_up_to_the_edge_of_the_interval(widths, covered):
    variance, mean = torch.var_mean(OUT, 1)
    edge = stats.norm.ppf(0.975) * (variance + (1 / TAU).mean(1)[:, None]).sqrt()
    found = NETS.evaluate(X, mean - widths * edge)
    assert found["coverage_95"].tolist() == [covered] * R


def test_linearised_moments_are_those_of_the_dense_jacobian(monkeypatch):
    rng = Rng(0, dtype=torch.float64)
    net = Net(mlp(3, [4], 2))
    posterior = registry.posterior("noisy-kfac", net, Gaussian(), samples=3)
    state = posterior.init(9, 2, rng)
    state, _ = posterior.update(state, Batch(rng.normal(2, 9, 3), rng.normal(2, 9, 2)), rng)
    x = rng.normal(2, 5, 3)
    mean, precision, scale = posterior.gaussian(state)
    monkeypatch.setattr(predict, "BUDGET", 2 * net.weights * 2)  # two points a chunk
    found = predict.linearised(posterior, state, x)
    for r in range(2):
        covariance = scale * oracles.dense(precision)[r].inverse()
        vector = flatten(mean)[r]

        def f(w, point):
            layers = tuple(p[None, None] for p in unflatten(w, net.shapes))
            return net.output(layers, point[None, None])[0, 0, 0]

        for p in range(5):
            jacobian = torch.autograd.functional.jacobian(lambda w, p=p, r=r: f(w, x[r, p]), vector)
            torch.testing.assert_close(found.mean[r, p], f(vector, x[r, p]))
            torch.testing.assert_close(found.variance[r, p], (jacobian @ covariance @ jacobian.mT).diagonal())


def test_one_certain_net_has_the_noise_that_is_expected():
    """Whatever the random numbers; of several samples the noise is drawn, and so is that of an uncertain net."""
    net = Net(mlp(2, [4], 1))
    for name, certain in (("map", True), ("bbb", False)):
        posterior = registry.posterior(name, net, Gaussian())
        state = posterior.init(20, 2, RNG)
        for n in (1, 5):
            noise = [posterior.joint_sample(state, n, Rng(seed))[1].expand(2, n, -1) for seed in (1, 2)]
            assert torch.equal(*noise) == (certain and n == 1)
            assert torch.equal(noise[0], posterior.expected_noise(state).expand(2, n, -1)) == (certain and n == 1)


def test_one_sample_varies_not_at_all():
    mean, variance = ONE.moments(X)
    assert torch.equal(variance, torch.zeros_like(mean))


def test_images_are_not_taken_one_by_one():
    """Even where a few are more than the budget; but for those that are far more."""
    net = Net(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(2 * 36, 3)))
    predictor = Predictor(net, Categorical(), tuple(torch.zeros(1, 4, i, o) for i, o in net.shapes), None)
    x = torch.zeros(1, 20, 1, 8, 8)
    assert [part.stop - part.start for part, _ in predictor.outputs(x, 1)] == [8, 8, 4]
    assert [part.stop - part.start for part, _ in predictor.outputs(x, 10**6)] == [20]
