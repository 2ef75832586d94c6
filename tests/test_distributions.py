"""Student's t, Poisson, negative binomial and ordinal likelihoods against scipy, and fits with them."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy import integrate, stats

import explore
from explore import ActiveLearner, FittedModel, NegativeBinomial, Net, Ordinal, Poisson, StudentT, mlp
from explore.core.errors import InputError
from explore.core.rng import Rng
from explore.nets.likelihoods.poisson import bisected_quantile, poisson_quantile

R, S, B = 2, 3, 4
RNG = Rng(0, dtype=torch.float64)
OUT: dict[Any, torch.Tensor] = {
    StudentT(freedom=5.0): RNG.normal(R, S, B, 2),
    Poisson(limit=1.5): 2 * RNG.normal(R, S, B, 2),  # with outputs beyond the limit
    NegativeBinomial(limit=1.5): 2 * RNG.normal(R, S, B, 2),
    Ordinal(classes=4): 2 * RNG.normal(R, S, B, 1),
}
NUMBERS = [likelihood for likelihood in OUT if not likelihood.discrete]
SPREAD = 0.2 + RNG.uniform(R, S, 2)  # precisions, or dispersions
CUTS = torch.tensor([-1.0, 0.2, 3.0]).double().expand(R, S, -1)
every = pytest.mark.parametrize("likelihood", OUT, ids=lambda x: type(x).__name__)


def noise(likelihood):
    return CUTS if likelihood.discrete else None if type(likelihood) is Poisson else SPREAD


def law(likelihood):
    """The distribution in scipy."""
    out, spread = OUT[likelihood].numpy(), SPREAD.unsqueeze(2).numpy()
    if isinstance(likelihood, StudentT):
        return stats.t(likelihood.freedom, out, spread**-0.5)
    mu = np.exp(np.minimum(out, 1.5)) * np.where(out > 1.5, out - 0.5, 1)
    return stats.nbinom(1 / spread, 1 / (1 + spread * mu)) if likelihood == NUMBERS[2] else stats.poisson(mu)


def targets(likelihood):
    return likelihood.sample(noise(likelihood), OUT[likelihood], Rng(5, dtype=torch.float64))


def close(actual, expected, rtol=1e-8, atol=1e-10):
    torch.testing.assert_close(actual, torch.as_tensor(expected).expand_as(actual), rtol=rtol, atol=atol)


@pytest.mark.parametrize("likelihood", NUMBERS, ids=lambda x: type(x).__name__)
def test_distribution_of_numbers(likelihood):
    given, out, y, expected = noise(likelihood), OUT[likelihood], targets(likelihood), law(likelihood)
    density = expected.logpdf if isinstance(likelihood, StudentT) else expected.logpmf
    close(likelihood.log_prob(given, out, y), density(y.numpy()).sum(-1))
    close(likelihood.mean(out), expected.mean())
    close(likelihood.variance(given, out).expand_as(out), expected.var())
    for shift in (-2.0, 0.0, 0.3):
        close(likelihood.cdf(given, out, y + shift), expected.cdf(y.numpy() + shift))
    for level in (0.025, 0.5, 0.9):
        close(likelihood.quantile(given, out, level), expected.ppf(level))


def test_ordinal_probabilities():
    likelihood = Ordinal(classes=4)
    out, y = OUT[likelihood], targets(likelihood)
    ends = torch.tensor([-torch.inf, *CUTS[0, 0].tolist(), torch.inf]).double()
    p = (ends - out).sigmoid().diff()
    close(likelihood.given(CUTS).mean(out), p)
    close(likelihood.log_prob(CUTS, out, y), p.gather(-1, y.unsqueeze(-1)).squeeze(-1).log())
    close(likelihood.mean(torch.zeros(1, 1, 1, 1).double()), torch.full((4,), 0.25).double())
    close(likelihood.entropy(CUTS, out), -(p * p.log()).sum(-1))
    far = likelihood.log_prob(CUTS, out + 200, torch.zeros_like(y))
    close(far, (CUTS[..., :1] - out[..., 0] - 200))  # where probabilities underflow


@every
def test_score_is_the_gradient_of_log_prob(likelihood):
    given, y, out = noise(likelihood), targets(likelihood), OUT[likelihood].clone().requires_grad_()
    (expected,) = torch.autograd.grad(likelihood.log_prob(given, out, y).sum(), out)
    close(likelihood.score(given, out.detach(), y), expected)


@every
def test_fisher_root_squares_to_the_mean_squared_score(likelihood):
    given, out = noise(likelihood), OUT[likelihood]
    root = likelihood.fisher_root(given, out)
    found = torch.einsum("krsbo,krsbp->rsbop", root, root)
    if isinstance(likelihood, StudentT):
        scale = SPREAD.unsqueeze(2).rsqrt()
        y = out + scale * torch.sinh(torch.linspace(-12, 12, 4001).double()[:, None, None, None, None])
        score = torch.stack([likelihood.score(given, out, target) for target in y])
        density = torch.as_tensor(law(likelihood).pdf(y.numpy()))
        expected = torch.as_tensor(integrate.trapezoid((score.square() * density).numpy(), y.numpy(), axis=0))
    else:
        counts = range(4 if likelihood.discrete else 400)
        each = [torch.full(out.shape[:3] if likelihood.discrete else out.shape, c) for c in counts]
        if likelihood.discrete:
            p = [likelihood.log_prob(given, out, c).exp().unsqueeze(-1) for c in each]
        else:
            p = [torch.as_tensor(law(likelihood).pmf(c.numpy())) for c in each]
        expected = sum(q * likelihood.score(given, out, c).square() for q, c in zip(p, each, strict=True))
    close(found, torch.diag_embed(expected), 1e-5, 1e-8)


def test_quantiles_on_a_gpu_are_those_of_scipy():
    rate, level = torch.logspace(-3, 6, 500).double(), RNG.uniform(500)
    shape = (1, 1, 500, 1)
    expected = poisson_quantile(rate.view(shape), level.view(shape))
    close(bisected_quantile(rate, level), expected.flatten())


def test_counts_far_from_the_data_do_not_overflow():
    out = torch.full((1, 1, 1, 1), 1e4)
    for likelihood in (Poisson(), NegativeBinomial()):
        given = likelihood.expected(likelihood.init(1, 1, Rng(0)))
        assert likelihood.log_prob(given, out, torch.ones(1, 1, 1, 1)).isfinite()
        assert likelihood.mean(out).isfinite() and likelihood.sample(given, out, Rng(0)).isfinite()


# What is learnt along ----------------------------------------------------------------------------------------


def settled(likelihood, out, y, batch=50, passes=30):
    """The noise after updates with batches of the outputs [1, 1, N, O] and targets."""
    rng = Rng(1, dtype=torch.float64)
    phi = likelihood.init(out.shape[-1], 1, rng)
    for _ in range(passes):
        for part in rng.permutation(1, out.shape[2])[0].split(batch):
            phi = likelihood.update(phi, out[:, :, part], y[:, :, part], float(out.shape[2]), 1.0)
    return likelihood.expected(phi)


@pytest.mark.parametrize(
    ("likelihood", "truth"),
    [
        (StudentT(), torch.tensor([[[25.0, 0.5]]])),
        (NegativeBinomial(), torch.tensor([[[0.1, 2.0]]])),
        (Ordinal(classes=4), torch.tensor([[[-2.0, 1.0, 1.5]]])),
    ],
    ids=lambda x: type(x).__name__,
)
def test_parameters_of_generated_data_are_recovered(likelihood, truth):
    rng, truth = Rng(3, dtype=torch.float64), truth.double()
    out = 1.5 + rng.normal(1, 1, 4000, 1 if likelihood.discrete else 2)
    y = likelihood.sample(truth, out, rng)
    found = settled(likelihood, out, y)
    if likelihood.discrete:
        close(found, truth, 0, 0.2)
        shares = torch.bincount(y.flatten(), minlength=4) / y.numel()
        close(likelihood.given(found).mean(out).mean((0, 1, 2)), shares.double(), 0, 0.01)
    else:
        close(found, truth, 0.15)


@pytest.mark.parametrize(
    "likelihood", [StudentT(noise_std=0.5), NegativeBinomial(dispersion=0.5), Ordinal(3, (-1.0, 2.0))]
)
def test_known_parameters_stay(likelihood):
    phi = likelihood.init(1, R, RNG)
    y = torch.ones(R, 1, B, dtype=torch.long) if likelihood.discrete else torch.ones(R, 1, B, 1)
    assert likelihood.update(phi, torch.zeros(R, S, B, 1), y, 9.0, 1.0) is phi
    assert likelihood.kl(phi).tolist() == [0, 0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: StudentT(freedom=2.0), r"freedom is 2.0; it must be in \(2, inf\)"),
        (lambda: NegativeBinomial(dispersion=0.0), "dispersion is 0.0; it must be in"),
        (lambda: Poisson(limit=-1.0), "limit is -1.0; it must be in"),
        (lambda: Ordinal(classes=1), "classes is 1; it must be in"),
        (lambda: Ordinal(3, (1.0, 0.0)), r"cuts is \(1.0, 0.0\); it must be 2 ascending numbers"),
        (lambda: Ordinal().mean(torch.zeros(1, 1, 1, 2)), "Ordinal expects a network with one output; got 2"),
    ],
)
def test_settings_are_checked(make, message):
    with pytest.raises(InputError, match=message):
        make()


# Fits --------------------------------------------------------------------------------------------------------

X = np.random.default_rng(0).uniform(-2, 2, (500, 1))
F = np.sin(2 * X)
DATA = np.random.default_rng(1)
Y = {
    "student-t": F + 0.2 * DATA.standard_t(4, X.shape),
    "poisson": DATA.poisson(np.exp(1 + F)),
    "negative-binomial": DATA.negative_binomial(2, 2 / (2 + np.exp(2 + F))),
    "ordinal": np.digitize(3 * F + DATA.logistic(size=X.shape), [-3, 1])[:, 0],
}


def fitted(name, likelihood, **settings):
    posterior = explore.posterior(name, Net(mlp(1, [15], 1)), likelihood, **settings)
    return FittedModel.fit(posterior, X[:300], Y[likelihood][:300], samples=30, seed=1)


POSTERIORS: dict[str, dict[str, Any]] = {
    "noisy-kfac": {"preset": "hundreds", "epochs": 40},
    "vogn": {"epochs": 60},
    "bbb": {"epochs": 60, "lr": 0.01},
    "mclmc": {"start": 50, "warmup": 40, "epochs": 110, "thinning": 5, "chains": 2},
}
QUICK = {"noisy-kfac": Y, "vogn": ["poisson"], "bbb": ["student-t"], "mclmc": ["ordinal"]}


@pytest.mark.parametrize(
    ("name", "likelihood"),
    [
        pytest.param(name, likelihood, marks=[] if likelihood in QUICK[name] else pytest.mark.slow)
        for name in POSTERIORS
        for likelihood in Y
    ],
)
def test_fits_predict_held_out_targets(name, likelihood):
    model = fitted(name, likelihood, **POSTERIORS[name])
    x, y = X[300:], Y[likelihood][300:]
    found = {key: float(value) for key, value in model.evaluate(x, y).items()}
    if likelihood == "ordinal":
        shares = np.bincount(Y[likelihood][:300]) / 300
        np.testing.assert_allclose(model.probabilities(X[:300])[0].mean(0), shares, atol=0.06)
        assert found["error"] < 0.5 and set(model.sample(x, 2).unique().tolist()) <= {0, 1, 2}
        return
    assert "crps" not in found and found["rmse"] < y.std() and 0.9 <= found["coverage_95"] < 0.99
    low, high = (t[0].numpy() for t in model.interval(x, 0.9))
    assert 0.84 < ((low <= y) & (y <= high)).mean() <= 0.99
    if likelihood != "student-t":
        assert (low == low.round()).all() and (model.sample(x[:3], 2) % 1 == 0).all()


@pytest.mark.parametrize("likelihood", Y)
def test_targets_that_are_not_allowed_are_refused(likelihood):
    model = fitted("map", likelihood, epochs=1)
    wrong = {"student-t": [], "ordinal": [3.0, 0.5]}.get(likelihood, [-1.0, 0.5])
    for value in (*wrong, np.nan):
        y = Y[likelihood].astype(float)
        y[3] = value
        message = "whole numbers from 0" if value == value else "NaN|finite"
        with pytest.raises(InputError, match=message):
            FittedModel.fit(model.posterior, X, y)
        with pytest.raises(InputError, match=message):
            model.evaluate(X, y)


def test_what_needs_gaussian_noise_is_refused():
    for name in ("gp", "last-layer", "hmc"):
        with pytest.raises(InputError, match="StudentT"):
            explore.posterior(name, Net(mlp(1, [4], 1)), "student-t")
    with pytest.raises(InputError, match=r"probit\(\) does not support the likelihood Ordinal"):
        fitted("noisy-kfac", "ordinal", epochs=1).probit(X)


def test_rules_use_the_cut_points_that_were_learnt():
    posterior = explore.posterior("bbb", Net(mlp(1, [4], 1)), "ordinal", "small", epochs=20)
    learner = ActiveLearner(posterior, X[:60], ["epig", "batch-bald"], samples=9)
    learner.tell(np.tile(range(20), (2, 1)), np.tile(Y["ordinal"][:20], (2, 1)))
    assert learner.ask(2).indices.shape == (2, 2)


def test_noise_around_a_trained_module_is_fitted_to_its_residuals():
    module = torch.nn.Linear(1, 1)
    with torch.no_grad():
        module.weight.zero_()
        module.bias.fill_(2.0)
    y = np.random.default_rng(2).negative_binomial(2, 2 / (2 + np.exp(2.0)), 2000)
    model = explore.laplace(module, np.zeros((2000, 1)), y[:, None], "negative-binomial")
    assert abs(float(model.posterior.expected_noise(model.state)) - 0.5) < 0.08
