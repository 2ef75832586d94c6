"""Targets of different noise beside each other, and likelihoods of users: whether intervals hold what they say."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from explore import ActiveLearner, FittedModel, registry
from explore.core.errors import InputError
from explore.core.rng import Rng
from explore.core.shapes import Batch
from explore.data.base import Dataset
from explore.learning import compare
from explore.nets.likelihoods import Gaussian, Parameterless
from explore.nets.net import Net, mlp
from explore.testing.oracles import Matched, implied_gaussian, ridge
from explore.vime.reward import IntrinsicReward
from tests.user_likelihoods import Heteroscedastic, Poisson, StudentT

N, TEST = 400, 2000
NUMBERS = np.random.default_rng(0)
X = NUMBERS.uniform(-2, 2, (N + TEST, 1))
SIGNAL = np.concatenate([np.sin(2 * X), np.cos(1.5 * X)], 1) / [0.7, 0.66]  # of deviation 1


def fitted(likelihood, y, name="noisy-kfac", outputs=1, **settings):
    settings = {"epochs": 25} | settings
    posterior = registry.posterior(name, Net(mlp(1, [20], outputs)), likelihood, "default", **settings)
    return FittedModel.fit(posterior, X[:N], y[:N], samples=50, seed=1)


def covered(model, y, level=0.9):
    """Share of the test targets within their intervals, for each target."""
    low, high = (t[0].numpy() for t in model.interval(X[N:], level))
    return ((y[N:] >= low) & (y[N:] <= high)).mean(0)


SEVERAL: dict[str, dict[str, Any]] = {
    "bbb": {"epochs": 150},
    "vogn": {"epochs": 250},
    "noisy-kfac": {"epochs": 100, "members": 3},
    "ensemble": {"epochs": 100, "members": 3, "lr": 0.01, "batch_size": 10},
    "map": {"epochs": 50, "lr": 0.01, "batch_size": 10},
}
QUICK = ("map",)
NAMES = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in SEVERAL]


@pytest.mark.parametrize("name", NAMES)
def test_a_precise_target_beside_a_noisy_one_has_intervals_of_its_own(name):
    """Deviations of 1 and 0.02: with one noise for both, intervals hold 80 % of the one and all of the other."""
    y = SIGNAL + np.random.default_rng(1).normal(size=SIGNAL.shape) * [1.0, 0.02]
    model = fitted(Gaussian(prior_shape=1.0, prior_rate=0.01), y, name, 2, **SEVERAL[name])
    low, high = (t[0].numpy() for t in model.interval(X[N:]))
    width = (high - low).mean(0)
    # The noise alone: 3.29 and 0.066. The net's own doubt widens the narrow one by an amount that rounding decides.
    assert 3 < width[0] < 3.6 and 0.06 < width[1] < 0.3
    # 400 labels give the noise to 4 %, which is 1.5 % of coverage.
    assert abs(covered(model, y)[0] - 0.9) < 0.03 and covered(model, y)[1] > 0.87


@dataclass(frozen=True)
class KnownNoise(Gaussian):
    """Of a deviation of its own for each output."""

    noise_std: float | None = 1.0
    deviations: tuple[float, ...] = (0.5, 0.05, 2.0)

    def init(self, outputs, replicas, rng):
        phi = super().init(outputs, replicas, rng)
        return phi._replace(rate=phi.rate * rng.tensor(self.deviations).to(phi.rate).square())


@pytest.mark.parametrize(("name", "own"), [("full", {}), ("noisy-kfac", {"damping": "exact"})])
def test_each_output_is_weighed_by_its_own_precision(name, own):
    """Bayesian linear regression, exact: three outputs that share inputs and nothing else."""
    rng, likelihood = Matched(3, dtype=torch.float64), KnownNoise()
    x, weights = rng.normal(2, 24, 3), rng.normal(3, 3)
    y = x @ weights + rng.normal(2, 24, 3) * torch.tensor(likelihood.deviations)
    settings = own | {"lr": 0.2, "beta": 0.1, "fisher": "exact", "prior_variance": 0.8}
    posterior = registry.posterior(name, Net(nn.Linear(3, 3)), likelihood, "plain", **settings)
    state = posterior.init(24, 2, rng)
    for _ in range(400):
        state, _ = posterior.update(state, Batch(x, y), rng)
    mean, covariance = implied_gaussian(posterior, state)
    for o, sd in enumerate(likelihood.deviations):
        expected = ridge(x, y[..., o : o + 1], sd, 0.8)
        torch.testing.assert_close(mean.unflatten(1, (4, 3))[..., o], expected[0], rtol=1e-5, atol=1e-7)
        own = covariance.unflatten(2, (4, 3)).unflatten(1, (4, 3))[:, :, o, :, o]
        torch.testing.assert_close(own, expected[1], rtol=1e-5, atol=1e-8)


# Likelihoods of users --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_intervals_of_a_student_t_hold_what_they_say():
    """Half of the targets between the quartiles: a Gaussian of the same variance would hold two thirds."""
    y = SIGNAL[:, :1] + 0.3 * np.random.default_rng(2).standard_t(3, size=(N + TEST, 1))
    model = fitted(StudentT(scale=0.3 / float(y[:N].std())), y, epochs=50)
    for level in (0.5, 0.9):
        assert abs(float(covered(model, y, level)[0]) - level) < 0.05
    found = model.predict(X[N:])
    np.testing.assert_allclose(found.noise, 0.3 * 3**0.5, rtol=1e-5)
    assert found.total.min() > 0.3 * 3**0.5
    below = model.below(X[N:], y[N:])[0].numpy()  # uniform, of a distribution that is right
    assert abs(below.mean() - 0.5) < 0.05 and abs(below.std() - 12**-0.5) < 0.03
    assert 0.9 < float(model.evaluate(X[N:], y[N:])["coverage_95"]) < 0.99


@pytest.mark.slow  # tests/test_distributions.py covers fits to counts
def test_counts_stay_counts():
    rates = np.exp(1 + SIGNAL[:, :1])
    y = np.random.default_rng(3).poisson(rates).astype(float)
    model = fitted(Poisson(), y)
    assert model.scales.y.mean == 0 and model.scales.y.scale == 1
    found = model.predict(X[N:])
    np.testing.assert_allclose(found.mean[0], rates[N:], rtol=0.35, atol=0.35)
    np.testing.assert_allclose(found.noise[0] ** 2, found.mean[0], rtol=1e-4)
    low, high = (t[0].numpy() for t in model.interval(X[N:]))
    assert (low == low.round()).all() and (low >= 0).all()
    stated = (model.below(X[N:], high) - model.below(X[N:], low - 1)).mean()  # at least 0.9, as counts have steps
    assert abs(covered(model, y)[0] - float(stated)) < 0.03 and stated > 0.9
    assert model.evaluate(X[N:], y[N:])["log_likelihood"].isfinite()
    assert (model.sample(X[N:], 3) % 1 == 0).all()


def test_a_noise_that_the_net_predicts_is_wide_where_the_targets_scatter():
    sd = np.where(X > 0, 0.5, 0.05)
    y = SIGNAL[:, :1] + sd * np.random.default_rng(4).normal(size=X.shape)
    model = fitted(Heteroscedastic(), y, outputs=2)
    low, high = (t[0].numpy() for t in model.interval(X[N:]))
    held = (y[N:] >= low) & (y[N:] <= high)
    for side in (X[N:] > 0.2, X[N:] < -0.2):
        assert abs(held[side].mean() - 0.9) < 0.06
    assert model.predict(X[N:]).noise.shape == (1, TEST, 1)
    assert (high - low)[X[N:] > 0.2].mean() > 4 * (high - low)[X[N:] < -0.2].mean()


@pytest.mark.parametrize(("likelihood", "outputs"), [(StudentT(), 1), (Poisson(), 1), (Heteroscedastic(), 2)])
@pytest.mark.parametrize("rule", ["epig", "bait", "information-gain", "expected-improvement", "core-set"])
def test_rules_choose_under_any_likelihood(rule, likelihood, outputs):
    posterior = registry.posterior("bbb", Net(mlp(1, [4], outputs)), likelihood, "small", epochs=2)
    learner = ActiveLearner(posterior, X[:30], [rule], samples=9)
    learner.tell(range(5), np.arange(5.0))
    choice = learner.ask(2)
    assert len(set(choice.indices[0].tolist())) == 2 and choice.scores.isfinite().all()


def without(*names):
    """A Student-t that lacks some parts."""
    kept = {k: v for k, v in vars(StudentT).items() if k not in (*names, "__dict__", "__weakref__")}
    return type("StudentT", (Parameterless,), kept)(3.0, 0.2)


@pytest.mark.parametrize(
    ("lacks", "ask"),
    [
        ("variance", lambda model: model.predict(X[:3])),
        ("cdf", lambda model: model.evaluate(X[:3], X[:3])),
        ("cdf", lambda model: model.interval(X[:3])),
        ("cdf", lambda model: model.below(X[:3], X[:3])),
        ("quantile", lambda model: model.quantiles(X[:3], [0.5])),
    ],
)
def test_a_part_that_is_missing_is_named_where_it_is_needed(lacks, ask):
    model = fitted(without(lacks), SIGNAL[:, :1], "map", epochs=1)
    with pytest.raises(InputError, match=rf"StudentT has no {lacks}\(noise, out.*\), which .* need; add the method"):
        ask(model)


@pytest.mark.parametrize("name", ["score", "fisher_root", "sample", "log_prob", "mean", "discrete"])
def test_without_what_a_fit_needs_there_is_no_posterior(name):
    with pytest.raises(
        InputError, match=f"the likelihood StudentT lacks {name}; see explore.nets.protocols.Likelihood"
    ):
        registry.posterior("map", Net(mlp(1, [4], 1)), without(name))


def test_targets_are_scaled_only_where_the_likelihood_allows_it():
    with pytest.raises(InputError, match="StudentT.scaling is None; it must be 'affine'"):
        registry.posterior("map", Net(mlp(1, [4], 1)), without("scaling"))
    counts = registry.posterior("bbb", Net(mlp(1, [4], 1)), Poisson(), "small", epochs=2)
    splits = compare.split(Dataset("counts", X[:60], np.arange(60.0)[:, None], ("x",), "regression"), 2, Rng(0))
    with pytest.raises(InputError, match="Poisson needs raw targets; pass scaling='none' to compare.split"):
        next(iter(compare.follow(counts, splits, Rng(0))))
    with pytest.raises(
        InputError, match="the dynamics model standardises its targets; use Gaussian instead of Poisson"
    ):
        IntrinsicReward(spaces.Box(0, 1, (1,)), spaces.Discrete(2), posterior=counts)
    with pytest.raises(InputError, match=r"Poisson has no scaled_noise\(noise, factor\), which calibration needs"):
        FittedModel.fit(counts, X[:20], np.arange(20.0), calibrate=0.2)


def test_outputs_that_the_last_layer_does_not_have_are_declared():
    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other = nn.Linear(1, 1), nn.Linear(1, 1)

        def forward(self, x):
            return torch.cat([self.one(x), self.other(x)], 1)

    undeclared = registry.posterior("map", Net(Heads()), "gaussian", epochs=2)
    with pytest.raises(
        InputError, match=r"the network returns 2 outputs, but its last layer has 1; pass outputs=2 to Net"
    ):
        FittedModel.fit(undeclared, X[:20], SIGNAL[:20])
    declared = registry.posterior("map", Net(Heads(), outputs=2), "gaussian", epochs=2)
    assert FittedModel.fit(declared, X[:20], SIGNAL[:20]).predict(X[:3]).mean.shape == (1, 3, 2)


def test_a_name_of_the_registry_makes_one():
    posterior = registry.posterior("map", Net(mlp(1, [4], 1)), "tests.user_likelihoods:Poisson")
    assert posterior.likelihood == Poisson()
    with pytest.raises(InputError, match="unknown likelihood 'gauss'; allowed: bernoulli, categorical, gaussian"):
        registry.posterior("map", Net(mlp(1, [4], 1)), "gauss")
