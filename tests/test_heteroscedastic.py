"""Noise that depends on the input, through training, predictions, commands and estimators."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import distributions as D

import explore
from explore.core.errors import InputError
from explore.core.rng import Rng
from explore.inference.predict import Predictor
from explore.inference.updates import steps
from explore.learning import build
from explore.learning.fit import last_epoch
from explore.learning.scaling import resolution
from explore.nets.likelihoods import Heteroscedastic, PartialHeteroscedastic
from explore.nets.net import Net, mlp

R, S, B, M = 2, 3, 50, 2
RNG = Rng(0, dtype=torch.float64)
OUT = (2 * RNG.normal(R, S, B, 2 * M)).clamp(-2.9, 2.9)  # within the limit of log deviations
TAU = 0.5 + RNG.uniform(R, S, M)
Y = RNG.normal(R, 1, B, M)


def test_targets_are_normal_with_a_bounded_deviation():
    likelihood = Heteroscedastic(spread=0.7, limit=2.0)
    mean, raw = OUT.chunk(2, -1)
    deviation = (0.7 * raw).clamp(-2, 2).exp() / TAU.unsqueeze(2).sqrt()
    normal = D.Normal(mean, deviation)
    torch.testing.assert_close(likelihood.log_prob(TAU, OUT, Y), normal.log_prob(Y).sum(-1))
    torch.testing.assert_close(likelihood.cdf(TAU, OUT, Y), normal.cdf(Y))
    torch.testing.assert_close(likelihood.variance(TAU, OUT), deviation**2)
    extreme = torch.tensor([0.0, 1e4]).double().expand(1, 1, 1, 2)
    assert float(likelihood.variance(TAU[:1, :1, :1], extreme)) == pytest.approx(np.exp(4) / float(TAU[0, 0, 0]))


def test_rounded_targets_take_the_mean_log_density_over_their_cells():
    likelihood = Heteroscedastic(resolution=(0.4, 0.0))
    inside = ((torch.arange(4000, dtype=torch.float64) + 0.5) / 4000 - 0.5).view(-1, 1, 1, 1, 1)
    cells = Y + inside * torch.tensor([0.4, 0.0], dtype=torch.float64)
    expected = torch.stack([Heteroscedastic().log_prob(TAU, OUT, y) for y in cells]).mean(0)
    torch.testing.assert_close(likelihood.log_prob(TAU, OUT, Y), expected, rtol=1e-6, atol=1e-6)
    free = OUT.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(likelihood.log_prob(TAU, free, Y).sum(), free)
    torch.testing.assert_close(likelihood.score(TAU, OUT, Y), gradient)
    gone = torch.where(RNG.uniform(R, 1, B, M) < 0.4, torch.nan, Y)
    partial, exact = PartialHeteroscedastic(resolution=(0.4, 0.0)), PartialHeteroscedastic()
    lost = TAU.unsqueeze(2) * (-2 * likelihood.log_deviation(OUT)).exp() * torch.tensor([0.16, 0.0]).double() / 24
    less = (lost * ~gone.isnan()).sum(-1)
    torch.testing.assert_close(partial.log_prob(TAU, OUT, gone), exact.log_prob(TAU, OUT, gone) - less)
    assert likelihood.exact == Heteroscedastic()
    with pytest.raises(InputError, match="likelihood.resolution has 1 values, but there are 2 targets"):
        Heteroscedastic(resolution=(1.0,)).squares(OUT, Y)


def test_the_resolution_is_found_in_the_targets():
    rounded, exact, designed = np.round(np.arange(30) ** 1.5), np.linspace(0, 1, 30), np.arange(30) % 10
    odd = np.r_[np.arange(28) % 4 * 0.5, 0.3, np.nan]
    y = np.stack([np.sort(rounded % 20), exact, designed, odd, designed % 9], 1)
    expected = [1 / y[:, 0].std(), 0, 0, 0.2 / np.nanstd(odd), 1 / y[:, 4].std()]
    np.testing.assert_allclose(resolution(y), expected)
    yields = np.array([0, 0, 0, 2.1, 6.4, 9.9, 20.8])  # repeated at a bound alone
    clipped, twice = np.stack([yields, 100 - yields], 1), np.r_[yields, 6.4][:, None]
    assert resolution(clipped) == (0, 0) and resolution(twice) == (pytest.approx(2.1 / twice.std()),)


def test_rounded_targets_keep_a_deviation_and_predictions_are_densities():
    """Each x has one whole number. Without the resolution, the deviation shrinks to nothing."""
    x = np.repeat(np.arange(6.0), 20)[:, None]
    y = np.repeat([0.0, 1, 0, 2, 1, 3], 20)
    settings = {"likelihood": "heteroscedastic", "epochs": 100, "random_state": 0, "dtype": "float32"}
    model = explore.BayesianRegressor(**settings).fit(x, y)
    likelihood: Any = model.model_.posterior.likelihood
    assert likelihood.resolution == pytest.approx((1 / y.std(),))
    rounded = model.predict(x, return_std=True)[1]
    exact = explore.BayesianRegressor(noise={"resolution": ()}, **settings).fit(x, y).predict(x, return_std=True)[1]
    assert exact.mean() < 0.1 < 0.25 < rounded.mean() < 0.4


def test_an_odd_number_of_outputs_is_refused():
    with pytest.raises(InputError, match="two network outputs per target.*; got 3 outputs"):
        Heteroscedastic().mean(torch.zeros(1, 1, 1, 3))


def test_missing_targets_have_no_factor():
    gone = RNG.uniform(R, 1, B, M) < 0.4
    seen, partial, plain = torch.where(gone, torch.nan, Y), PartialHeteroscedastic(), Heteroscedastic()
    each = D.Normal(plain.mean(OUT), plain.variance(TAU, OUT).sqrt()).log_prob(Y).masked_fill(gone, 0).sum(-1)
    torch.testing.assert_close(partial.log_prob(TAU, OUT, seen), each)
    free = OUT.clone().requires_grad_()
    (expected,) = torch.autograd.grad(partial.log_prob(TAU, free, seen).sum(), free)
    torch.testing.assert_close(partial.score(TAU, OUT, seen), expected)
    torch.testing.assert_close(partial.training_score(TAU, OUT, seen), expected)
    phi = plain.init(2 * M, R, RNG)
    whole = partial.update(phi, OUT, Y, 40.0, 1.0)
    torch.testing.assert_close(tuple(whole), tuple(plain.update(phi, OUT, Y, 40.0, 1.0)))


@pytest.mark.parametrize("name", ["noisy-kfac", "bbb", "map"])
def test_gradients_of_the_mean_are_weighed_and_information_stays(name):
    """beta = 1 weighs residuals equally; the mean Fisher information of each output is that of beta = 0."""

    def weights_for(beta: float) -> torch.Tensor:
        posterior = explore.posterior(name, Net(mlp(1, [3], 2 * M)), Heteroscedastic(beta=beta), "plain")
        weights = steps.training_weights(posterior, TAU, OUT)
        assert weights is not None
        return weights

    equal, some, none = map(weights_for, (1.0, 0.4, 0.0))
    precision = Heteroscedastic().precision(TAU, OUT)
    residuals = equal[..., :M] * precision / TAU.unsqueeze(2)  # constant in each output
    assert (residuals.std((1, 2)) < 1e-9 * residuals.mean((1, 2))).all()
    for weights in (equal, some, none):
        torch.testing.assert_close(weights[..., M:], torch.ones_like(weights[..., M:]))
        informed = (weights[..., :M] * precision).mean((1, 2))
        torch.testing.assert_close(informed, precision.mean((1, 2)))
    torch.testing.assert_close(none, torch.ones_like(none))
    slang = explore.posterior("slang", Net(mlp(1, [3], 2)), Heteroscedastic(), "plain")
    assert steps.training_weights(slang, TAU, OUT) is None  # its gradients are also its curvature


@pytest.mark.parametrize("side", [-1, 1])
def test_steps_at_the_limit_lead_inwards(side):
    """There, the score and the information are those at the limit, except that no score points further out."""
    posterior = explore.posterior(
        "noisy-kfac", Net(mlp(1, [3], 2 * M)), Heteroscedastic(spread=0.5, limit=1.0), "plain"
    )
    likelihood, at = posterior.likelihood, OUT.clone()
    at[..., M:], beyond = side * (2 - 1e-9), torch.cat([OUT[..., :M], torch.full_like(OUT[..., M:], side * 1e3)], -1)
    within, score = likelihood.score(TAU, at, Y), likelihood.training_score(TAU, beyond, Y)
    inwards = side * within[..., M:] < 0
    assert inwards.any() and not inwards.all()
    assert (likelihood.score(TAU, beyond, Y)[..., M:] == 0).all()  # exact
    torch.testing.assert_close(likelihood.training_score(TAU, at, Y), within)
    torch.testing.assert_close(score[..., M:], within[..., M:].masked_fill(~inwards, 0))
    torch.testing.assert_close(score[..., :M], within[..., :M])
    torch.testing.assert_close(likelihood.fisher_root(TAU, beyond), likelihood.fisher_root(TAU, at))
    weights = steps.training_weights(posterior, TAU, beyond)
    assert weights is not None and weights.isfinite().all()


def test_reparameterised_posteriors_follow_the_weighed_gradient():
    posterior = explore.posterior("bbb", Net(mlp(1, [3], 2 * M)), Heteroscedastic(), "plain")
    free = OUT.clone().requires_grad_()
    weighed = posterior._weighted(TAU, free)
    torch.testing.assert_close(weighed.detach(), OUT)
    (gradient,) = torch.autograd.grad(posterior.likelihood.log_prob(TAU, weighed, Y).sum(), free)
    factors = steps.training_weights(posterior, TAU, OUT)
    torch.testing.assert_close(gradient, factors * posterior.likelihood.score(TAU, OUT, Y))


def test_calibration_stretches_means_and_noise_alone():
    net = Net(mlp(1, [5], 2))
    layers, tau, x = net.glorot(R, RNG, S), TAU[..., :1], RNG.normal(R, B, 1)
    plain = Predictor(net, Heteroscedastic(), layers, tau)
    factor = torch.tensor([4.0, 0.25]).double()
    one, other = plain.label_moments(x), plain.stretched(factor).label_moments(x)
    torch.testing.assert_close(other.mean, one.mean)
    torch.testing.assert_close(other.variance, factor[:, None, None] * one.variance)
    torch.testing.assert_close(other.noise, factor[:, None, None] * one.noise)


def growing(n, seed=0):
    """A sine whose noise grows from 0.02 to 0.5 along x."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(0, 1, (n, 1))
    return x, np.sin(6 * x) + (0.02 + 0.48 * x**2) * rng.normal(size=(n, 1))


@pytest.mark.slow
def test_deviation_grows_where_the_noise_does():
    x, y = (torch.as_tensor(a, dtype=torch.float32)[None] for a in growing(200))
    posterior = explore.posterior(
        "noisy-kfac", Net(mlp(1, [20], 2)), Heteroscedastic(prior_shape=1.0, prior_rate=0.01), "default", epochs=200
    )
    state = last_epoch(posterior, 4 * x - 2, y, Rng(0)).state
    at = torch.tensor([[[-1.6], [1.6]]])  # x = 0.1 and 0.9: deviations 0.025 and 0.41
    low, high = Predictor.sample(posterior, state, 100, Rng(1)).label_moments(at).noise.sqrt().flatten().tolist()
    assert 0.01 < low < 0.08 and 0.25 < high < 0.6


def test_estimator(monkeypatch):
    x, y = growing(60)
    quick = {"hidden": (8,), "epochs": 5, "samples": 10, "random_state": 0}
    model = explore.BayesianRegressor(likelihood="heteroscedastic", **quick).fit(x, y.ravel())
    _, std = model.predict(x, return_std=True)
    assert len(np.unique(std.round(9))) == 60 and model.predict_quantiles(x).shape == (60, 3)
    again = explore.BayesianRegressor(likelihood="heteroscedastic", noise={"spread": 0.1}, **quick).fit(x, y.ravel())
    likelihood = again.model_.posterior.likelihood
    assert isinstance(likelihood, Heteroscedastic) and likelihood.spread == 0.1
    with pytest.raises(InputError, match="likelihood='categorical' is for classes"):
        explore.BayesianRegressor(likelihood="categorical").fit(x, y.ravel())
    with pytest.raises(InputError, match="likelihood applies to regression only"):
        explore.BayesianClassifier(likelihood="gaussian").fit(x, y.ravel() > 0)


def test_likelihoods_by_name():
    numbers = type("Data", (), {"classes": ()})
    classes = type("Data", (), {"classes": ("a", "b")})
    assert build.check_likelihood(None, numbers) == "gaussian"
    assert build.check_likelihood("heteroscedastic", numbers) == "heteroscedastic"
    with pytest.raises(InputError, match="the likelihood of classes is fixed"):
        build.check_likelihood("gaussian", classes)
    with pytest.raises(InputError, match="categorical is for classes, but the target is a number"):
        build.check_likelihood("categorical", numbers)
    assert build.outputs("heteroscedastic", 0, 3) == 6


def test_recommended_settings_take_steps_of_another_size():
    from explore.inference.presets import recommended_settings

    cls = explore.registry.find("posteriors", "noisy-kfac")
    plain, varying = (
        recommended_settings(cls, 400, likelihood=name).settings for name in ("gaussian", "heteroscedastic")
    )
    assert (varying["trust_region"] > 4 * plain["trust_region"]) and varying["noisy_trust"] < plain["noisy_trust"]
    assert varying["prior_variance"] == plain["prior_variance"]
