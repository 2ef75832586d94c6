"""What a posterior with a density owes: that it is one, what follows from it, the bound, and the information gain."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from explore.core.rng import Rng
from explore.core.shapes import Batch, State
from explore.inference import predict
from explore.nets.likelihoods import Gaussian
from explore.nets.net import Net
from explore.testing import oracles
from explore.testing.oracles import Matched
from explore.testing.subject import (
    CONV_NO_BIAS,
    LINEAR,
    MLP,
    MODULE,
    NO_BIAS,
    R,
    Subject,
    assert_close,
    assert_same_bits,
    seeded,
    start,
    train,
)
from explore.testing.values import POSTERIORS, deviation


def gaussian(subject: Subject) -> bool:
    """Whether its density is Gaussian, over whatever coordinates."""
    return subject.gaussian


def not_gaussian(subject: Subject) -> bool:
    """Whether it is another one."""
    return subject.variational and not subject.gaussian


def over_weights(posterior: Any) -> None:
    if not posterior.over_weights:
        pytest.skip("its density is over other coordinates than weights")


# Gaussian densities, against dense matrices ----------------------------------------------------------------


@POSTERIORS.check(of=gaussian)
def samples_follow_the_stated_density(subject: Subject) -> None:
    posterior, state, _ = subject.trained()
    mean, covariance = oracles.implied_gaussian(posterior, state, R)
    n = 100_000
    samples = posterior.sample_coordinates(state, n, seeded(6))
    white = torch.linalg.solve_triangular(
        torch.linalg.cholesky(covariance), (oracles.flat(samples) - mean.unsqueeze(1)).mT, upper=False
    )
    # Whitened entries of mean and covariance have standard errors 1/sqrt(n) and at most sqrt(2/n).
    assert white.mean(2).abs().max() < 5 / n**0.5, f"{subject.name}: samples have another mean than `log_prob`"
    eye = torch.eye(mean.shape[1], dtype=torch.float64)
    error = (white @ white.mT / n - eye).abs().max()
    assert error < 5 * (2 / n) ** 0.5, f"{subject.name}: samples have another covariance than `log_prob`"
    _expect_entropy(subject, posterior, state, samples)


def _expect_entropy(subject: Subject, posterior: Any, state: State, samples: Any) -> None:
    error = posterior.log_prob(state, samples).mean(1) + posterior.entropy(state)
    limit = 5 * deviation(subject, posterior, state, samples) / samples[0].shape[1] ** 0.5
    assert error.abs().max() < limit, f"{subject.name}: `entropy` is not -E log q of samples"


@POSTERIORS.check({"mlp": MLP, "no-bias": NO_BIAS, "conv-no-bias": CONV_NO_BIAS}, of=gaussian)
def density_equals_the_dense_gaussian(subject: Subject, net: Net) -> None:
    if net is CONV_NO_BIAS and not subject.takes("convolutions"):
        pytest.skip("it refuses convolutions")
    posterior, old, batch = subject.trained(net=net, kl_weight=0.7, prior_variance=0.6)
    new = train(posterior, old, batch, seeded(7))
    old = old._replace(common=old.common._replace(n_data=1.5 * old.common.n_data))  # the scale may depend on N
    (mean, cov), (mean0, cov0) = (oracles.implied_gaussian(posterior, s, R) for s in (new, old))
    q, q0 = oracles.normal(mean, cov), oracles.normal(mean0, cov0)
    samples = posterior.sample_coordinates(new, 4, seeded(6))
    expected = q.log_prob(oracles.flat(samples).transpose(0, 1))
    assert_close(posterior.log_prob(new, samples).mT, expected, f"{subject.name}: `log_prob`")
    assert_close(posterior.entropy(new), q.entropy(), f"{subject.name}: `entropy`")

    assert_close(posterior.kl(new, new), torch.zeros(R, dtype=torch.float64), f"{subject.name}: `kl` with itself")
    divergence = posterior.kl(new, old)
    assert (divergence > 1e-6).all(), f"{subject.name}: updates do not move its density"
    assert_close(divergence, oracles.kl(mean, cov, mean0, cov0), f"{subject.name}: `kl`")
    assert_close(divergence, torch.distributions.kl_divergence(q, q0), f"{subject.name}: `kl`")

    prior = 0.6 * torch.eye(mean.shape[1], dtype=torch.float64).expand_as(cov)
    expected = oracles.kl(mean, cov, torch.zeros_like(mean), prior)
    assert_close(posterior.kl_prior(new), expected, f"{subject.name}: `kl_prior`")


@POSTERIORS.check(of=gaussian)
def products_with_the_covariance_are_those_of_the_dense_gaussian(subject: Subject) -> None:
    posterior, state, batch = subject.trained(likelihood=Gaussian(noise_std=0.5))
    over_weights(posterior)
    mean, covariance = oracles.implied_gaussian(posterior, state, R)
    v = seeded(7).normal(R, 4, posterior.net.weights)
    products = oracles.flat(posterior.solve(state, oracles.unflat(v, MLP.shapes)))
    assert_close(products, v @ covariance, f"{subject.name}: `solve`")

    # Gradients at the very samples that `quad` draws.
    weights = posterior.sample(state, posterior.gain_samples, seeded(2))
    score = (batch.y.unsqueeze(1) - oracles.run(MODULE, weights, batch.x)) / 0.25
    g = torch.einsum("rsbo,rsbow->rsbw", score, oracles.jacobians(MODULE, weights, batch.x, MLP.shapes)).mean(1)
    expected = torch.einsum("rbv,rvw,rbw->rb", g, covariance, g)
    precision, taps = posterior.gradients(state, batch, seeded(2))
    assert_close(posterior.gaussian(state)[2] * precision.quad(taps), expected, f"{subject.name}: `quad`")

    at_mean = oracles.unflat(mean.unsqueeze(1), MLP.shapes)
    jacobian = oracles.jacobians(MODULE, at_mean, batch.x, MLP.shapes)[:, 0]
    linearised = predict.linearised(posterior, state, batch.x)
    assert_close(linearised.mean, oracles.run(MODULE, at_mean, batch.x)[:, 0], f"{subject.name}: linearised mean")
    variance = torch.einsum("rbov,rvw,rbow->rbo", jacobian, covariance, jacobian)
    assert_close(linearised.variance, variance, f"{subject.name}: linearised variance")


@POSTERIORS.check(of=gaussian)
def sampled_and_linearised_predictions_of_a_linear_net_agree(subject: Subject) -> None:
    posterior, state, batch = subject.trained(net=LINEAR)
    over_weights(posterior)
    exact, n = predict.linearised(posterior, state, batch.x), 20_000
    sampled = predict.Predictor.sample(posterior, state, n, seeded(6)).moments(batch.x)
    error = ((sampled.mean - exact.mean) / exact.variance.sqrt()).abs().max()
    assert error < 5 / n**0.5, f"{subject.name}: predictions of samples have another mean"
    error = (sampled.variance / exact.variance - 1).abs().max()
    assert error < 5 * (2 / n) ** 0.5, f"{subject.name}: predictions of samples have another variance"


@POSTERIORS.check(of=gaussian)
def diagnostics_equal_those_of_the_dense_covariance(subject: Subject) -> None:
    posterior, state, _ = subject.trained(kl_weight=0.7, prior_variance=0.6)
    over_weights(posterior)
    state = state._replace(common=state.common._replace(n_data=1.5 * state.common.n_data))
    _, covariance = oracles.implied_gaussian(posterior, state, R)
    spectrum = torch.linalg.eigvalsh(covariance)
    diagnostics = posterior.diagnostics(state)
    w = posterior.net.weights
    assert_close(diagnostics["condition"], spectrum[:, -1] / spectrum[:, 0], f"{subject.name}: condition", rtol=1e-6)
    assert_close(diagnostics["damping_share"], w / 0.6 / (1 / spectrum).sum(1), f"{subject.name}: damping_share")
    assert_close(diagnostics["effective_rank"], w - spectrum.sum(1) / 0.6, f"{subject.name}: effective_rank")


# The prior's variance, where it is learned ------------------------------------------------------------------


@POSTERIORS.check({"mlp": MLP, "no-bias": NO_BIAS, "conv-no-bias": CONV_NO_BIAS}, of=gaussian)
def a_learned_prior_is_the_maximum_of_the_bound(subject: Subject, net: Net) -> None:
    if net is CONV_NO_BIAS and not subject.takes("convolutions"):
        pytest.skip("it refuses convolutions")
    if not subject.learns_prior:
        pytest.skip("it refuses to learn its prior's variance")
    posterior, old, batch = subject.trained(net=net, prior_variance="learned")
    assert old.common.prior is not None, f"{subject.name}: its state has no prior; `common` gives it one"
    new = posterior.end_epoch(old)
    mean, covariance = oracles.implied_gaussian(posterior, new, R)
    for now, before in zip((mean, covariance), oracles.implied_gaussian(posterior, old, R), strict=True):
        assert_close(now, before, f"{subject.name}: `end_epoch` changes the density, so that the bound may fall")

    second = mean.square() + covariance.diagonal(dim1=1, dim2=2)
    found, expected = [], []
    for squares, own, learned in zip(
        oracles.unflat(second, posterior.coordinates),
        posterior.own_bias_variance,
        new.common.prior.variance,
        strict=True,
    ):
        groups = (squares[:, :-1], squares[:, -1:]) if own else (squares,)
        expected += [g.mean((1, 2), keepdim=True).expand_as(g).flatten(1) for g in groups]
        found.append((learned * torch.ones_like(squares)).flatten(1))
    eta = torch.cat(found, 1)
    assert_close(eta, torch.cat(expected, 1), f"{subject.name}: the learned variances")

    exact = oracles.kl(mean, covariance, torch.zeros_like(mean), torch.diag_embed(eta))
    assert_close(posterior.kl_prior(new), exact, f"{subject.name}: `kl_prior` of a learned prior")
    fallen = posterior.kl_prior(old) - posterior.kl_prior(new)
    assert (fallen > 1e-3).all(), f"{subject.name}: the KL from the prior does not fall where its variance is learned"
    for factor in (0.99, 1.01):  # it is the least
        other = oracles.kl(mean, covariance, torch.zeros_like(mean), torch.diag_embed(factor * eta))
        assert (other > exact).all(), f"{subject.name}: another variance has a smaller KL"

    moved, still = (train(posterior, s, batch, seeded(4), 1) for s in (new, old))
    assert (posterior.kl(moved, still) > 1e-12).all(), f"{subject.name}: updates do not follow the learned prior"
    assert_same_bits(moved.common.prior.held, new.common.prior.variance)


# Other densities, by samples -------------------------------------------------------------------------------


@POSTERIORS.check(of=not_gaussian)
def samples_follow_the_stated_density_by_parts(subject: Subject) -> None:
    # E[d log q / dw] = 0 and E[w d log q / dw^T] = -1, by integration by parts.
    posterior, state, _ = subject.trained()
    n = 100_000
    samples = posterior.sample_coordinates(state, n, seeded(6))
    points = oracles.flat(samples).requires_grad_()
    log_prob = posterior.log_prob(state, oracles.unflat(points, posterior.coordinates))
    (score,) = torch.autograd.grad(log_prob.sum(), points)
    points = points.detach() - points.detach().mean(1, keepdim=True)
    eye = torch.eye(points.shape[2], dtype=points.dtype)
    second = torch.einsum("rsv,rsw->rvw", points, score) / n + eye
    limit = torch.einsum("rv,rw->rvw", points.std(1), score.std(1))  # of independent factors; 8 of a dependent pair
    assert (score.mean(1).abs() < 5 * score.std(1) / n**0.5).all(), f"{subject.name}: samples lie beside `log_prob`"
    assert (second.abs() < 8 * limit / n**0.5).all(), f"{subject.name}: samples are wider or narrower than `log_prob`"
    _expect_entropy(subject, posterior, state, samples)


@POSTERIORS.check(of=not_gaussian)
def divergences_are_those_of_samples(subject: Subject) -> None:
    posterior, old, batch = subject.trained(prior_variance=0.6)
    new, n = train(posterior, old, batch, seeded(7)), 100_000
    samples = posterior.sample_coordinates(new, n, seeded(6))
    prior = torch.distributions.Normal(0.0, 0.6**0.5).log_prob(oracles.flat(samples)).sum(2)
    log_prob = posterior.log_prob(new, samples)
    assert (posterior.kl(new, new).abs() < 1e-8).all(), f"{subject.name}: `kl` with itself is not 0"
    assert (posterior.kl(new, old) > 1e-6).all(), f"{subject.name}: updates do not move its density"
    for name, found, other in (
        ("kl", posterior.kl(new, old), posterior.log_prob(old, samples)),
        ("kl_prior", posterior.kl_prior(new), prior),
    ):
        ratio = log_prob - other
        error = (found - ratio.mean(1)).abs()
        assert (error < 5 * ratio.std(1) / n**0.5).all(), f"{subject.name}: `{name}` is not E[log q - log p] of samples"


# Exact answers ---------------------------------------------------------------------------------------------


@POSTERIORS.check(of=gaussian)
def a_linear_model_is_bayesian_linear_regression(subject: Subject) -> None:
    linear = subject.contract.linear
    assert linear is not None, f"{subject.name}: " + subject.add(
        "linear",
        '[("covariance", {...})] with settings at which 600 updates reach Bayesian linear regression; "diagonal" where '
        'its covariance is diagonal, "mean" where only the mean is exact, [] where neither is',
    )
    for what, settings in linear:
        known = ("covariance", "diagonal", "mean")
        assert what in known, f'{subject.name}: "linear" may name covariance, diagonal and mean; it has {what!r}'
        designs = [(False, what == "covariance")] + [(True, True)] * (what == "diagonal")
        for orthogonal, whole in designs:
            (mean, covariance), (exact_mean, exact_covariance) = _linear_fit(subject, orthogonal, settings)
            why = f"{subject.name} with {dict(settings)}: the %s of Bayesian linear regression is not reached"
            why += ', which "linear" in CONTRACT says' + " (inputs at right angles)" * orthogonal
            assert_close(mean, exact_mean, why % "mean", rtol=1e-6, atol=1e-8)
            if whole:
                assert_close(covariance, exact_covariance, why % "covariance", rtol=1e-6, atol=1e-8)


def _linear_fit(subject: Subject, orthogonal: bool, settings: Any) -> tuple[tuple[Tensor, Tensor], ...]:
    """Mean and covariance after training on a linear-Gaussian model, and the exact ones: noise 0.5, prior 0.8."""
    rng = Matched(3, dtype=torch.float64)
    batch = linear_data(rng, orthogonal)
    known = {"likelihood": Gaussian(noise_std=0.5), "prior_variance": 0.8}
    posterior = subject.make(net=Net(nn.Linear(3, 1)), **known, **settings)
    state = train(posterior, start(posterior, 24, 2, rng), batch, rng, 600, ends=True)
    return oracles.implied_gaussian(posterior, state, 2), oracles.ridge(*batch, 0.5, 0.8)


def linear_data(rng: Rng, orthogonal: bool = False) -> Batch:
    x = rng.normal(2, 24, 3)
    if orthogonal:  # columns, the constant one included, at right angles
        x = torch.linalg.qr(torch.cat([torch.ones(2, 24, 1), x], 2).double())[0][:, :, 1:] * 3
    y = x @ torch.tensor([[1.0], [-2.0], [0.5]], dtype=torch.float64) + 0.3 + 0.5 * rng.normal(2, 24, 1)
    return Batch(x, y)


# Scaling with the data -------------------------------------------------------------------------------------
