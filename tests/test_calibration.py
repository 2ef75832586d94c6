"""The factor on the predictive variance: what it does to a distribution, and that the held-out examples choose it."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from explore import registry
from explore.core.errors import InputError
from explore.core.rng import Rng
from explore.data.base import Dataset
from explore.inference.predict import Predictor
from explore.learning import calibration, compare
from explore.learning.estimators import BayesianClassifier, BayesianRegressor
from explore.learning.model import FittedModel
from explore.nets.likelihoods import Categorical, Gaussian
from explore.nets.net import Net, mlp

RNG = Rng(0, dtype=torch.float64)
R, S, P, O = 2, 7, 40, 2  # noqa: E741
NET = Net(mlp(3, [5], O))
X = RNG.normal(R, P, 3)
Y = RNG.normal(R, P, O)
LAYERS = NET.glorot(R, RNG, S)
NETS = Predictor(NET, Gaussian(), LAYERS, 0.5 + RNG.uniform(R, S, O))
FACTOR = torch.tensor([4.0, 0.3], dtype=torch.float64)


def close(actual, expected, rtol=1e-9):
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=1e-12)


def mixture(nets, x, y):
    """Log density of the mixture at each point, written out, [R, P]."""
    out, sd = NET.output(nets.layers, x), nets.noise.rsqrt()[:, :, None]
    log_prob = torch.distributions.Normal(out, sd).log_prob(y.unsqueeze(1)).sum(3)
    return log_prob.logsumexp(1) - math.log(out.shape[1])


def test_the_distribution_is_stretched_about_its_mean():
    root, mean = FACTOR.sqrt()[:, None, None], NET.output(NETS.layers, X).mean(1)
    stretched = NETS.stretched(FACTOR)
    expected = mixture(NETS, X, mean + (Y - mean) / root) - O * FACTOR.sqrt().log().unsqueeze(1)
    close(stretched.log_prob(X, Y).logsumexp(1) - math.log(S), expected)
    close(stretched.evaluate(X, Y)["log_likelihood"], expected.mean(1))
    close(stretched.moments(X).mean, NETS.moments(X).mean)
    close(stretched.moments(X).variance, FACTOR[:, None, None] * NETS.moments(X).variance)
    close(stretched.label_moments(X).noise, FACTOR[:, None, None] * NETS.label_moments(X).noise)
    close(stretched.stretched(1 / FACTOR).log_prob(X, Y), NETS.log_prob(X, Y))


def test_a_factor_is_the_most_likely_one():
    found = calibration.variance_factor(NETS, X, Y)
    best = NETS.stretched(found).evaluate(X, Y)["log_likelihood"]
    for other in (0.99, 1.01, 0.5, 2.0):
        assert (NETS.stretched(other * found).evaluate(X, Y)["log_likelihood"] < best).all()


def test_of_one_net_the_factor_has_a_closed_form():
    one = dataclasses.replace(NETS, layers=tuple(w[:, :1] for w in LAYERS), noise=NETS.noise[:, :1])
    mean = NET.output(one.layers, X).squeeze(1)
    exact = ((Y - mean).square() * one.noise).mean((1, 2))
    close(calibration.variance_factor(one, X, Y), exact, rtol=1e-3)


def test_a_factor_stays_within_its_limits():
    close(calibration.variance_factor(NETS, X, 1e3 * Y), torch.full((R,), 100.0, dtype=torch.float64))


def data(n=60, noise=0.5):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(n, 2))
    return x, np.sin(2 * x[:, :1]) + noise * rng.normal(size=(n, 1))


def posterior(**settings):
    own = {"epochs": 30, "batch_size": 30, "lr": 0.05} | settings
    return registry.posterior("bbb", Net(mlp(2, [8], 1)), Gaussian(noise_std=0.1), **own)


def test_a_fit_that_is_too_sure_of_itself_is_widened_by_examples_it_has_not_seen():
    x, y = data()
    plain, calibrated = (FittedModel.fit(posterior(), x, y, 30, calibrate=share) for share in (0.0, 0.25))
    assert plain.factor is None and calibrated.factor is not None and float(calibrated.factor) > 3
    root = float(calibrated.factor) ** 0.5
    new, (old_low, old_high) = data(5)[0], plain.interval(data(5)[0])
    one, two = plain.predict(new), calibrated.predict(new)
    torch.testing.assert_close(two.mean, one.mean, rtol=1e-4, atol=1e-5)
    for name in ("epistemic", "noise", "total"):
        torch.testing.assert_close(getattr(two, name), root * getattr(one, name), rtol=1e-4, atol=1e-6)
    low, high = calibrated.interval(new)
    torch.testing.assert_close(high - low, root * (old_high - old_low), rtol=1e-3, atol=1e-5)
    below = calibrated.below(new, high.numpy()[0])
    assert ((below - 0.95).abs() < 1e-3).all()
    drawn, sd = calibrated.sample(new, 4000), two.total
    assert ((drawn.std(1) / sd - 1).abs() < 0.2).all()

    again = FittedModel.from_state_dict(posterior(), calibrated.state_dict())
    for name in ("mean", "total"):
        assert torch.equal(getattr(again.predict(new), name), getattr(two, name))
    torch.testing.assert_close(calibrated.replica(0).factor, calibrated.factor)


def test_held_out_examples_are_not_trained_on():
    # A net with room to learn its training targets by heart: on these the factor would be far below.
    x, y = (torch.from_numpy(v).unsqueeze(0) for v in data(40))
    over = posterior(epochs=400, lr=0.02, kl_weight=1e-4)
    found = calibration.held_out_factor(over, x, y, Rng(0, dtype=torch.float64), 0.5, 30)
    model = FittedModel.fit(over, x[0].numpy(), y[0].numpy(), 30, dtype=torch.float64, standardise="none")
    seen = calibration.variance_factor(model.predictor(), x, (y - y.mean(1)) / y.std(1, correction=0))
    assert found > 2 * seen


def test_every_replica_has_a_factor_of_its_own_and_a_failed_one_has_none():
    x, y = (torch.from_numpy(v).expand(2, -1, -1).clone() for v in data(40))
    y[1] = 0.01 * y[1]
    found = calibration.held_out_factor(posterior(), x, y, Rng(0, dtype=torch.float64), 0.2, 30)
    assert found[0] > 1 > found[1]
    y[1] = math.inf
    broken = calibration.held_out_factor(posterior(), x, y, Rng(0, dtype=torch.float64), 0.2, 30)
    assert torch.equal(broken[0], found[0]) and broken[1] == 1


def test_what_cannot_be_calibrated_is_refused():
    x, _ = data()
    classes = registry.posterior("bbb", Net(mlp(2, [4], 2)), Categorical(), epochs=1)
    with pytest.raises(InputError, match="calibrate applies to regression only: it scales"):
        FittedModel.fit(classes, x, np.arange(60) % 2, calibrate=0.1)
    with pytest.raises(InputError, match=r"calibrate is 0.7; it must be in \(0, 0.5\]"):
        FittedModel.fit(posterior(), *data(), calibrate=0.7)
    with pytest.raises(InputError, match="calibrate holds out part of the data and needs at least 2 examples; got"):
        FittedModel.fit(posterior(), *data(1), calibrate=0.1)
    nets = Predictor(NET, Categorical(), NETS.layers, None)
    with pytest.raises(InputError, match="Categorical has no scaled_noise.* which calibration needs"):
        nets.stretched(FACTOR)


def test_estimators_pass_it_on():
    x, y = data()
    own = {"posterior": "bbb", "hidden": (4,), "epochs": 3, "random_state": 0}
    model = BayesianRegressor(**own, calibrate=0.2).fit(x, y[:, 0])
    assert model.model_.factor is not None
    with pytest.raises(InputError, match="calibrate applies to regression only: it"):
        BayesianClassifier(**own, calibrate=0.2).fit(x, y[:, 0] > 0)


def test_a_comparison_takes_its_test_metrics_with_the_factor_and_continues_with_it():
    x, y = data(80)
    splits = compare.split(Dataset(name="waves", x=x, y=y, features=("a", "b"), task="regression"), 2, Rng(0))
    fitted = posterior(epochs=100)

    def measured(**more):
        events = compare.follow(fitted, splits, Rng(0), 30, **more)
        return [event for event in events if isinstance(event, compare.Measured)]

    plain, found = measured(), measured(calibrate=0.2)
    one, two = plain[-1].scalars, found[-1].scalars
    assert two["test/variance_factor"].shape == (2,) and "test/variance_factor" not in one
    for tag in ("train/nll", "train/bound", "test/rmse"):
        torch.testing.assert_close(one[tag], two[tag])
    assert (two["test/log_likelihood"] > one["test/log_likelihood"] + 0.5).all()
    assert (two["test/coverage_95"] > one["test/coverage_95"]).all()
    torch.testing.assert_close(
        two["uncertainty/epistemic_mean"], two["test/variance_factor"].sqrt() * one["uncertainty/epistemic_mean"]
    )
    resumed = measured(calibrate=0.2, saved=found[20].saved)
    assert all(torch.equal(a, b) for a, b in zip(resumed[-1].scalars.values(), two.values(), strict=True))
