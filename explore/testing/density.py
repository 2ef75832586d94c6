"""Checks for posteriors with a density: samples, KL divergences, exact models, information gain."""

import math
from operator import attrgetter
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import jacrev, vmap

from explore.core import tree
from explore.core.rng import Rng
from explore.core.shapes import Batch, State
from explore.inference import predict
from explore.inference.predict import Predictor
from explore.nets.net import Net
from explore.testing import oracles
from explore.testing.oracles import Matched
from explore.testing.subject import MLP, NETS, N, R, Subject, data, finish, seeded, start, train
from explore.testing.suite import assert_close
from explore.testing.values import KNOWN_NOISE, POSTERIORS, expect_distances, step_size

GAUSSIAN, VARIATIONAL, INFORMATIVE = map(attrgetter, ("gaussian", "variational", "informative"))


@POSTERIORS.check(of=VARIATIONAL)
def samples_follow_the_stated_density(subject: Subject) -> None:
    # E[d log q / dw] = 0 and E[w d log q / dw^T] = -1, by integration by parts.
    posterior, state, _ = subject.trained()
    n = 30_000 if subject.gaussian else 100_000
    # For a density over weights, use samples of the weights; `expect_distances` uses samples of the coordinates.
    over_weights = getattr(posterior, "over_weights", False) and posterior.coordinates == posterior.net.shapes
    draw = posterior.sample if over_weights else posterior.sample_coordinates
    points = oracles.flat(draw(state, n, seeded(6))[: len(posterior.coordinates)])
    score = oracles.slope(posterior, state, points)
    points = points - points.mean(1, keepdim=True)
    second = torch.einsum("rsv,rsw->rvw", points, score) / n + torch.eye(points.shape[2], dtype=points.dtype)
    limit = torch.einsum("rv,rw->rvw", points.std(1), score.std(1))  # exact for independent factors, so 8 below
    assert (score.mean(1).abs() < 5 * score.std(1) / n**0.5).all(), "samples and density have different means"
    assert (second.abs() < 8 * limit / n**0.5).all(), "samples are wider or narrower than the density"
    if subject.gaussian:
        expect_distances(posterior, state, 100_000, seeded(7), "in double precision")


@POSTERIORS.check(of=lambda subject: subject.variational and not subject.gaussian)
def divergences_are_those_of_samples(subject: Subject) -> None:
    posterior, old, batch = subject.trained(prior_variance=0.6)
    new, n = train(posterior, old, batch, seeded(7)), 100_000
    samples = posterior.sample_coordinates(new, n, seeded(6))
    prior = torch.distributions.Normal(0.0, 0.6**0.5).log_prob(oracles.flat(samples)).sum(2)
    of_new, of_old = (oracles.log_prob(posterior, state, oracles.flat(samples)) for state in (new, old))
    assert ((of_new - of_old).mean(1) > 1e-6).all(), "updates do not move its density"
    ratio = of_new - prior
    error = (posterior.kl_prior(new) - ratio.mean(1)).abs()
    assert (error < 5 * ratio.std(1) / n**0.5).all(), "`kl_prior` is not E[log q - log p] of samples"


@POSTERIORS.check("mlp", "no-bias", "conv-no-bias", of=GAUSSIAN)
def density_equals_the_dense_gaussian(subject: Subject, net: str) -> None:
    settings = {**subject.variant(net), "likelihood": KNOWN_NOISE, "kl_weight": 0.7, "prior_variance": 0.6}
    posterior, old, batch = subject.trained(**settings)
    new = train(posterior, old, data(posterior.net, 6), seeded(7))
    old = old._replace(common=old.common._replace(n_data=1.5 * old.common.n_data))  # the density may depend on N
    (mean, covariance), (mean0, covariance0) = (oracles.implied_gaussian(posterior, s) for s in (new, old))
    assert (oracles.kl(mean, covariance, mean0, covariance0) > 1e-6).all(), "updates do not move its density"
    prior = torch.zeros_like(mean), 0.6 * torch.eye(mean.shape[1], dtype=torch.float64).expand_as(covariance)
    assert_close(posterior.kl_prior(new), oracles.kl(mean, covariance, *prior), "`kl_prior`")
    if net == "mlp" and posterior.coordinates == posterior.net.shapes:
        _expect_products(posterior, new, batch, mean, covariance)
        rank = posterior.net.weights - covariance0.diagonal(dim1=1, dim2=2).sum(1) / 0.6
        assert_close(posterior.effective_rank(old), rank, "`effective_rank`", rtol=1e-6)


def _expect_products(posterior: Any, state: State, batch: Batch, mean: Tensor, covariance: Tensor) -> None:
    """Assert that `solve`, `quad` and linearised predictions agree with the dense weight `mean` and `covariance`."""

    def output(weights: Tensor, x: Tensor) -> Tensor:
        """Return the outputs [O] of a network with these flat weights, at one input."""
        layers = oracles.unflat(weights[None, None], MLP.shapes)
        return MLP.output(layers, x[None, None])[0, 0, 0]

    jacobians = vmap(vmap(vmap(jacrev(output), (None, 0)), (0, None)))  # [R, S, B, O, W]
    v = seeded(7).normal(R, 4, posterior.net.weights)
    _, matrix, scale = posterior.gaussian(state)
    products = scale * oracles.flat(matrix.solve(oracles.unflat(v, MLP.shapes)))
    assert_close(products, v @ covariance, "`solve`")

    # Gradients at the same weights that `quad` uses.
    weights = posterior.sample(state, posterior.gain_samples, seeded(2))
    if posterior.linearises:
        weights = oracles.unflat(mean.unsqueeze(1), MLP.shapes)
    score = (batch.y.unsqueeze(1) - MLP.output(weights, batch.x)) / 0.25
    g = torch.einsum("rsbo,rsbow->rsbw", score, jacobians(oracles.flat(weights), batch.x)).mean(1)
    precision, taps = posterior.gradients(state, batch, seeded(2))
    expected = torch.einsum("rbv,rvw,rbw->rb", g, covariance, g)
    assert_close(posterior.gaussian(state)[2] * precision.quad(taps), expected, "`quad`")

    jacobian = jacobians(mean.unsqueeze(1), batch.x)[:, 0]
    linearised = predict.linearised(posterior, state, batch.x)
    out = MLP.output(oracles.unflat(mean.unsqueeze(1), MLP.shapes), batch.x)[:, 0]
    assert_close(linearised.mean, out, "linearised mean")
    variance = torch.einsum("rbov,rvw,rbow->rbo", jacobian, covariance, jacobian)
    assert_close(linearised.variance, variance, "linearised variance")


def linear_data(rng: Rng, orthogonal: bool = False, slope: float = 1.0) -> Batch:
    """Return 24 examples of a linear function of 3 inputs, with noise std 0.5; `orthogonal`: with orthogonal inputs."""
    x = rng.normal(1, 24, 3)
    if orthogonal:
        x = torch.linalg.qr(torch.cat([torch.ones(1, 24, 1), x], 2).double())[0][:, :, 1:] * 3
    weights = slope * torch.tensor([[1.0], [-2.0], [0.5]], dtype=torch.float64)
    return Batch(x, x @ weights + 0.3 * slope + 0.5 * rng.normal(1, 24, 1))


@POSTERIORS.check(of=GAUSSIAN)
def a_linear_model_is_bayesian_linear_regression(subject: Subject) -> None:
    linear = subject.contract.linear
    assert linear is not None, "" + subject.add(
        "linear",
        '[("covariance", {...})] with settings at which 600 updates reach Bayesian linear regression; "diagonal" where '
        'its covariance is diagonal, "mean" where only the mean is exact, [] where neither is',
    )
    rng = Matched(3, dtype=torch.float64)
    batch = Batch(*map(torch.cat, zip(linear_data(rng), linear_data(rng, orthogonal=True), strict=True)))
    exact_mean, exact_covariance = oracles.ridge(*batch, 0.5, 0.8)
    for moment, settings in linear:
        first = {"covariance": 0, "diagonal": 1, "mean": 2}  # first replica with exact covariance
        assert moment in first, f'"linear" may be {", ".join(first)}; got {moment!r}'
        arguments = {"likelihood": KNOWN_NOISE, "prior_variance": 0.8, **settings}
        posterior, rng = subject.make(net=Net(nn.Linear(3, 1)), **arguments), Matched(3, dtype=torch.float64)
        state = train(posterior, start(posterior, 24, 2, rng), batch, rng, 600, ends=True)
        state = finish(posterior, state, batch)
        mean, covariance = oracles.implied_gaussian(posterior, state)
        why = f'{subject.name} with {dict(settings)}: of "linear" in CONTRACT, 600 updates do not reach the %s'
        assert_close(mean, exact_mean, why % "mean", rtol=1e-6, atol=1e-8)
        exact = slice(first[moment], None)
        assert_close(covariance[exact], exact_covariance[exact], why % "covariance", rtol=1e-6, atol=1e-8)


@POSTERIORS.check("linear", "deep", of=lambda subject: subject.gaussian and not subject.cls.prior_error)
def the_prior_survives_where_nothing_was_seen(subject: Subject, net: str) -> None:
    module = nn.Linear(5, 2) if net == "linear" else nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))
    if subject.build(Net(module)).coordinates != Net(module).shapes:
        pytest.skip("its density is not over all layers")
    linear = subject.contract.linear or [("mean", subject.contract.lively)]
    rng, variance, n = seeded(), 0.8, 20_000
    # Inputs vary in two directions: two axes in the first replica, any two in the second.
    directions = torch.stack([torch.eye(5, dtype=torch.float64), torch.linalg.qr(rng.normal(5, 5))[0]])
    x, unseen = rng.normal(2, 24, 2) @ directions[:, :2], directions[:, 2:]
    batch = Batch(x, x @ rng.normal(2, 5, 2) + 0.5 * rng.normal(2, 24, 2))
    last = None if any(moment == "covariance" for moment, _ in linear) else 1  # diagonal ones know axes only
    for _, settings in linear:
        arguments = {"likelihood": KNOWN_NOISE, "prior_variance": variance, **settings}
        posterior = subject.make(net=Net(module), **arguments)
        state = train(posterior, start(posterior, 24, 2, rng), batch, rng, 600, ends=True)
        state = finish(posterior, state, batch)
        weights = posterior.sample(state, n, seeded(6))[0][:, :, :5]
        spread = {"weights": unseen.unsqueeze(1) @ weights}
        if net == "linear":
            outputs = Predictor.sample(posterior, state, n, seeded(7)).outputs
            at, at_zero = (torch.cat([out for _, out in outputs(x)], 2) for x in (unseen, 0 * unseen))
            spread["predictions"] = at - at_zero
        for name, values in spread.items():
            share = values.var(1)[:last] / variance
            assert (share.log().abs() < math.log(1.1)).all(), (
                f"{subject.name} with {dict(settings)}: along inputs that were never seen, the variance of {name} is "
                f"{share.min():.2g} to {share.max():.2g} times the prior's. Keep damping out of the density, or say "
                "in `prior_error` why the prior is lost"
            )


@POSTERIORS.check(of=lambda one: one.variational and all(moment == "mean" for moment, _ in one.contract.linear or ()))
def a_linear_model_is_bayesian_linear_regression_on_average(subject: Subject) -> None:
    # Likelihood and prior contribute about equally to the precision, so that errors in either one show.
    lively = {**subject.contract.lively, **step_size(subject, 0.05)}
    allowed: dict[str, Any] = {"mean": 0.25, "variance": 1.5, "settings": lively, **subject.contract.average}
    arguments = {**allowed["settings"], "likelihood": KNOWN_NOISE, "prior_variance": 0.03}
    posterior, rng, replicas, steps = subject.make(net=Net(nn.Linear(3, 1)), **arguments), seeded(), 8, 400
    single = linear_data(seeded(3), orthogonal=True, slope=0.3)
    batch = tree.map_tensors(lambda t: t.expand(replicas, -1, -1), single)
    state, moments = start(posterior, 24, replicas, rng), []
    for i in range(steps):
        state, _ = posterior.update(state, batch, rng, i / steps)
        if i >= steps - 100 and i % 2 == 0:
            weights = oracles.flat(posterior.sample_coordinates(state, 50, rng))
            moments.append(torch.stack([weights.mean(1), weights.var(1)]).mean(1))
    mean, variance = torch.stack(moments).mean(0)
    exact_mean, exact_covariance = (t[0] for t in oracles.ridge(*single, 0.5, 0.03))
    exact = exact_covariance.diagonal()
    error, ratio = ((mean - exact_mean).abs() / exact.sqrt()).max(), (variance / exact).log().abs().max().exp()
    advice = subject.add("average", '{"mean": ..., "variance": ..., "settings": {...}}')
    assert error <= allowed["mean"], (
        f"over the last 100 of {steps} updates the mean of a weight is {error:.2g} deviations from "
        f"Bayesian linear regression: check likelihood and prior. If the posterior is only approximate, {advice}"
    )
    assert ratio <= allowed["variance"], (
        f"over the last 100 of {steps} updates the variance of a weight is {ratio:.2g} times too large "
        f"or small, against Bayesian linear regression. If the posterior is only approximate, {advice}"
    )


@POSTERIORS.check(of=INFORMATIVE)
def gain_is_one_number_an_example_that_grows_with_the_square_of_its_step(subject: Subject) -> None:
    posterior, state, batch = subject.trained(likelihood=KNOWN_NOISE)
    gain = posterior.gain(state, batch, seeded(2))
    assert gain.shape == (R, N) and (gain > 0).all(), "`gain` must be positive, of shape [R, B]"
    part = posterior.gain(state, Batch(batch.x[:, 2:5], batch.y[:, 2:5]), seeded(2))
    assert_close(part, gain[:, 2:5], "`gain` of an example depends on other examples of the batch")
    larger = posterior.with_settings(gain_step=2 * posterior.gain_step).gain(state, batch, seeded(2))
    assert_close(larger, 4 * gain, "`gain` must be four times as large for twice the `gain_step`")


@POSTERIORS.check(of=INFORMATIVE)
def gain_falls_when_a_transition_repeats(subject: Subject) -> None:
    # A linear network has a unique solution. In other networks, the gain of a point depends on the learned features,
    # and varies between correct runs by more than the tolerance below.
    settings = {"likelihood": KNOWN_NOISE, **step_size(subject)}
    posterior, state, batch = subject.trained(net=NETS["linear"], steps=30, **settings)
    x, y = (torch.full((R, 1, n), 4.0, dtype=torch.float64) for n in (2, 3))  # 4 standard deviations off
    both = Batch(torch.cat([batch.x, x], 1), torch.cat([batch.y, y], 1))
    states = (train(posterior, state, each, seeded(3), 200) for each in (both, batch))
    with_it, without = (posterior.gain(s, Batch(x, y), seeded(2)) for s in states)
    share = (with_it / without).max()  # 0.001 to 0.01 for exact inference
    assert share < 0.2, (
        f"after 200 updates with a transition, its `gain` is {share:.2f} times the gain after 200 updates "
        "without it, but at most 0.2 is allowed. `gain` must fall with the residual and the variance of the state. If "
        "the updates are only too slow, "
        + subject.add("lively", "{...}, settings at which 200 updates reach mean and variance")
    )
