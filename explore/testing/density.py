"""Requirements on posteriors with a density: the density, its consequences, the bound, the information gain."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from explore.core import tree
from explore.core.rng import Rng
from explore.core.shapes import Batch, State
from explore.inference import predict
from explore.nets.likelihoods import Gaussian
from explore.nets.net import Net
from explore.testing import oracles
from explore.testing.oracles import Matched, Twice
from explore.testing.subject import (
    CONV_NO_BIAS,
    LINEAR,
    MLP,
    MODULE,
    NO_BIAS,
    N,
    R,
    Subject,
    assert_close,
    assert_same_bits,
    seeded,
    start,
    train,
)
from explore.testing.values import POSTERIORS, deviation, step_size

GAUSSIAN, VARIATIONAL, INFORMATIVE = map(attrgetter, ("gaussian", "variational", "informative"))


def not_gaussian(subject: Subject) -> bool:
    """Whether the density is not Gaussian."""
    return subject.variational and not subject.gaussian


def over_weights(posterior: Any) -> None:
    if not posterior.over_weights:
        pytest.skip("its density is over other coordinates than weights")


# Gaussian densities, against dense matrices ----------------------------------------------------------------


@POSTERIORS.check(of=GAUSSIAN)
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


@POSTERIORS.check({"mlp": MLP, "no-bias": NO_BIAS, "conv-no-bias": CONV_NO_BIAS}, of=GAUSSIAN)
def density_equals_the_dense_gaussian(subject: Subject, net: Net) -> None:
    subject.require(net)
    posterior, old, batch = subject.trained(net=net, kl_weight=0.7, prior_variance=0.6)
    new = train(posterior, old, batch, seeded(7))
    old = old._replace(common=old.common._replace(n_data=1.5 * old.common.n_data))  # the scale may depend on N
    (mean, cov), (mean0, cov0) = (oracles.implied_gaussian(posterior, s, R) for s in (new, old))
    q = oracles.normal(mean, cov)
    samples = posterior.sample_coordinates(new, 4, seeded(6))
    expected = q.log_prob(oracles.flat(samples).transpose(0, 1))
    assert_close(posterior.log_prob(new, samples).mT, expected, f"{subject.name}: `log_prob`")
    assert_close(posterior.entropy(new), q.entropy(), f"{subject.name}: `entropy`")

    assert_close(posterior.kl(new, new), torch.zeros(R, dtype=torch.float64), f"{subject.name}: `kl` with itself")
    divergence = posterior.kl(new, old)
    assert (divergence > 1e-6).all(), f"{subject.name}: updates do not move its density"
    assert_close(divergence, oracles.kl(mean, cov, mean0, cov0), f"{subject.name}: `kl`")

    prior = 0.6 * torch.eye(mean.shape[1], dtype=torch.float64).expand_as(cov)
    expected = oracles.kl(mean, cov, torch.zeros_like(mean), prior)
    assert_close(posterior.kl_prior(new), expected, f"{subject.name}: `kl_prior`")


@POSTERIORS.check(of=GAUSSIAN)
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


@POSTERIORS.check(of=GAUSSIAN)
def sampled_and_linearised_predictions_of_a_linear_net_agree(subject: Subject) -> None:
    posterior, state, batch = subject.trained(net=LINEAR)
    over_weights(posterior)
    exact, n = predict.linearised(posterior, state, batch.x), 20_000
    sampled = predict.Predictor.sample(posterior, state, n, seeded(6)).moments(batch.x)
    error = ((sampled.mean - exact.mean) / exact.variance.sqrt()).abs().max()
    assert error < 5 / n**0.5, f"{subject.name}: predictions of samples have another mean"
    error = (sampled.variance / exact.variance - 1).abs().max()
    assert error < 5 * (2 / n) ** 0.5, f"{subject.name}: predictions of samples have another variance"


@POSTERIORS.check(of=GAUSSIAN)
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


@POSTERIORS.check({"mlp": MLP, "no-bias": NO_BIAS, "conv-no-bias": CONV_NO_BIAS}, of=GAUSSIAN)
def a_learned_prior_is_the_maximum_of_the_bound(subject: Subject, net: Net) -> None:
    subject.require(net)
    if not subject.learns_prior:
        pytest.skip("it refuses to learn its prior's variance")
    posterior, old, batch = subject.trained(net=net, prior_variance="learned")
    assert old.common.prior is not None, f"{subject.name}: its state has no prior; `common` gives it one"
    new = posterior.end_epoch(old)
    mean, covariance = oracles.implied_gaussian(posterior, new, R)
    for now, before in zip((mean, covariance), oracles.implied_gaussian(posterior, old, R), strict=True):
        assert_close(now, before, f"{subject.name}: `end_epoch` changes the density, so that the bound may fall")

    second = mean.square() + covariance.diagonal(dim1=1, dim2=2)
    layers = oracles.unflat(second, posterior.coordinates)
    pairs = zip(new.common.prior.variance, layers, strict=True)
    eta = torch.cat([(variance * torch.ones_like(squares)).flatten(1) for variance, squares in pairs], 1)
    expected = []
    for squares, has_bias_variance in zip(layers, posterior.own_bias_variance, strict=True):
        groups = (squares[:, :-1], squares[:, -1:]) if has_bias_variance else (squares,)
        expected += [g.mean((1, 2), keepdim=True).expand_as(g).flatten(1) for g in groups]
    assert_close(eta, torch.cat(expected, 1), f"{subject.name}: the learned variances")

    exact = oracles.kl(mean, covariance, torch.zeros_like(mean), torch.diag_embed(eta))
    assert_close(posterior.kl_prior(new), exact, f"{subject.name}: `kl_prior` of a learned prior")
    fallen = posterior.kl_prior(old) - posterior.kl_prior(new)
    assert (fallen > 1e-3).all(), f"{subject.name}: the KL from the prior does not fall where its variance is learned"

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
    for name, divergence, other in (
        ("kl", posterior.kl(new, old), posterior.log_prob(old, samples)),
        ("kl_prior", posterior.kl_prior(new), prior),
    ):
        ratio = log_prob - other
        error = (divergence - ratio.mean(1)).abs()
        assert (error < 5 * ratio.std(1) / n**0.5).all(), f"{subject.name}: `{name}` is not E[log q - log p] of samples"


# Exact answers ---------------------------------------------------------------------------------------------


@POSTERIORS.check(of=GAUSSIAN)
def a_linear_model_is_bayesian_linear_regression(subject: Subject) -> None:
    linear = subject.contract.linear
    assert linear is not None, f"{subject.name}: " + subject.add(
        "linear",
        '[("covariance", {...})] with settings at which 600 updates reach Bayesian linear regression; "diagonal" where '
        'its covariance is diagonal, "mean" where only the mean is exact, [] where neither is',
    )
    for moment, settings in linear:
        allowed = ("covariance", "diagonal", "mean")
        assert moment in allowed, f'{subject.name}: "linear" may name covariance, diagonal and mean; it has {moment!r}'
        designs = [(False, moment == "covariance")] + [(True, True)] * (moment == "diagonal")
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
    settings = {"likelihood": Gaussian(noise_std=0.5), "prior_variance": 0.8, **settings}
    posterior = subject.make(net=Net(nn.Linear(3, 1)), **settings)
    state = train(posterior, start(posterior, 24, 2, rng), batch, rng, 600, ends=True)
    return oracles.implied_gaussian(posterior, state, 2), oracles.ridge(*batch, 0.5, 0.8)


def linear_data(rng: Rng, orthogonal: bool = False) -> Batch:
    x = rng.normal(2, 24, 3)
    if orthogonal:  # columns, the constant one included, at right angles
        x = torch.linalg.qr(torch.cat([torch.ones(2, 24, 1), x], 2).double())[0][:, :, 1:] * 3
    y = x @ torch.tensor([[1.0], [-2.0], [0.5]], dtype=torch.float64) + 0.3 + 0.5 * rng.normal(2, 24, 1)
    return Batch(x, y)


# The bound on the evidence ----------------------------------------------------------------------------------


@POSTERIORS.check(of=VARIATIONAL)
def elbo_counts_every_example_once(subject: Subject) -> None:
    posterior, state, batch = subject.trained(likelihood=Gaussian(noise_std=0.5), kl_weight=0.35, augmentation=3.0)
    samples = posterior.sample(state, 6, seeded(2))
    out = posterior.net.output(samples, batch.x)
    # Here the batch is all the data, so the bound is the plain sum over them.
    fit = torch.distributions.Normal(out, 0.5).log_prob(batch.y.unsqueeze(1)).sum((2, 3)).mean(1)
    elbo, objective = (f(state, batch, seeded(2), samples=6) for f in (posterior.elbo, posterior.objective))
    assert_close(elbo, fit - posterior.kl_prior(state), f"{subject.name}: `elbo`, a bound, knows no kl_weight")
    assert_close(objective, 3 * fit - 0.35 * posterior.kl_prior(state), f"{subject.name}: `objective`")


@POSTERIORS.check(of=VARIATIONAL)
def elbo_and_its_gradient_ignore_batch_size_and_number_of_samples(subject: Subject) -> None:
    posterior, state, batch = subject.trained()

    def value_and_gradients(x: Tensor, y: Tensor, samples: int, kind: Any, state: State = state) -> list[Tensor]:
        floats = [t.clone().requires_grad_(t.dim() > 0) for _, t in tree.leaves(state) if t.is_floating_point()]
        remaining = iter(floats)
        differentiable = tree.map_tensors(lambda t: next(remaining) if t.is_floating_point() else t, state)
        elbo = posterior.elbo(differentiable, Batch(x, y), seeded(2, kind=kind), samples)
        inputs = [t for t in floats if t.requires_grad]
        gradients = torch.autograd.grad(elbo.sum(), inputs, allow_unused=True, materialize_grads=True)
        return [elbo.detach(), *gradients]

    fresh = value_and_gradients(batch.x, batch.y, 4, Rng, start(posterior, N, R, seeded()))
    assert all(bool(t.isfinite().all()) for t in fresh), f"{subject.name}: `elbo` of a fresh state has no gradient"
    whole = value_and_gradients(batch.x, batch.y, 4, Rng)
    halves = [value_and_gradients(batch.x[:, p], batch.y[:, p], 4, Rng) for p in (slice(0, 6), slice(6, 12))]
    moving = any(g.abs().max() > 1e-3 for g in whole[1:])
    assert moving, f"{subject.name}: the gradient of `elbo` by all numbers of the state is zero"
    for full, one, two in zip(whole, *halves, strict=True):
        assert_close((one + two) / 2, full, f"{subject.name}: `elbo` of two halves of a batch, on the average")
    for full, repeated in zip(whole, value_and_gradients(batch.x, batch.y, 8, Twice), strict=True):
        assert_close(repeated, full, f"{subject.name}: `elbo` of twice the same samples")


# Information gain ------------------------------------------------------------------------------------------


@POSTERIORS.check(of=INFORMATIVE)
def gain_is_one_number_an_example_that_grows_with_the_square_of_its_step(subject: Subject) -> None:
    posterior, state, batch = subject.trained(likelihood=Gaussian(noise_std=0.5))
    gain = posterior.gain(state, batch, seeded(2))
    assert gain.shape == (R, N) and (gain > 0).all(), f"{subject.name}: `gain` is not [R, B] of positive numbers"
    part = posterior.gain(state, Batch(batch.x[:, 2:5], batch.y[:, 2:5]), seeded(2))
    assert_close(part, gain[:, 2:5], f"{subject.name}: `gain` of an example depends on others of its batch")
    larger = posterior.with_settings(gain_step=2 * posterior.gain_step).gain(state, batch, seeded(2))
    assert_close(larger, 4 * gain, f"{subject.name}: `gain` with twice the `gain_step` is not four times as much")


@POSTERIORS.check(of=INFORMATIVE)
def gain_falls_when_a_transition_repeats(subject: Subject) -> None:
    # Of a linear net, which has one answer. Of others the gain of a point depends on the features that training came
    # to, and differs between sound runs by more than what is asked for here.
    settings = {"likelihood": Gaussian(noise_std=0.5), **step_size(subject)}
    posterior, state, batch = subject.trained(net=LINEAR, steps=30, **settings)
    x, y = (torch.full((R, 1, n), 4.0, dtype=torch.float64) for n in (2, 3))  # four deviations from the other inputs
    both = Batch(torch.cat([batch.x, x], 1), torch.cat([batch.y, y], 1))
    with_it, without = (
        posterior.gain(train(posterior, state, b, seeded(3), 200), Batch(x, y), seeded(2)) for b in (both, batch)
    )
    share = (with_it / without).max()  # exact inference leaves 0.001 to 0.01
    assert share < 0.2, (
        f"{subject.name}: 200 updates with a transition leave {share:.2f} of the information that it gives after as "
        "many without it; at most a fifth may be left. `gain` has to fall with the residual and with the variance of "
        "the state it is given; where the updates are too slow to lower these, "
        + subject.add("lively", "{...}, settings at which 200 updates reach mean and variance")
    )
