"""Laplace's approximation against dense matrices, exact evidence and finite sums over the data."""

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import jacrev

import explore
from explore.core.errors import InputError
from explore.core.rng import Rng
from explore.core.shapes import Batch, unflatten
from explore.inference.predict import Predictor, linearised, probit
from explore.nets.likelihoods import Bernoulli, Categorical, Gaussian
from explore.nets.net import Net, mlp
from explore.posteriors.laplace import Laplace
from tests import oracles

NOISE, N, R = 0.3, 23, 2
NET = Net(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)))


def draw(seed=0):
    return Rng(seed, dtype=torch.float64)


def data(likelihood, net=NET, seed=3):
    x = draw(seed).normal(R, N, 3)
    if likelihood.discrete:
        return Batch(x, (x[..., 0] > 0).long() + (0 if isinstance(likelihood, Bernoulli) else (x[..., 1] > 0).long()))
    return Batch(x, x.sin() + 0.1 * draw(4).normal(R, N, 3))


def fitted(structure, likelihood, subset="all", net=NET, parts=3, **settings):
    """A finished state at random weights, and the data in unequal batches."""
    posterior = Laplace(net=net, likelihood=likelihood, structure=structure, subset=subset, **settings)
    batch = data(likelihood, net)
    state = posterior.init(N, R, draw(1))
    pieces = [Batch(x, y) for x, y in zip(*(t.tensor_split(parts, 1) for t in batch), strict=True)]
    return posterior, posterior.finish(state, iter(pieces), draw(2)), batch, pieces


def exact_fisher(posterior, state, batch):
    """F of all weights [R, W, W], by automatic differentiation, and per layer the moments A and S."""
    net, likelihood = posterior.net, posterior.likelihood
    noise = likelihood.expected(state.common.noise)
    flat = oracles.flat(tuple(state.weights))

    def output(w, x):
        return net.output(unflatten(w[None, None], net.shapes), x[None, None])[0, 0, 0]

    matrices = []
    for r in range(R):
        total = torch.zeros(())
        for x in batch.x[r]:
            jacobian = jacrev(output)(flat[r, 0], x)
            part = None if noise is None else noise[r : r + 1]
            root = likelihood.fisher_root(part, output(flat[r, 0], x)[None, None, None])[:, 0, 0, 0]
            g = root @ jacobian
            total = total + g.mT @ g / N
        matrices.append(total)
    return torch.stack(matrices)


LIKELIHOODS = [Gaussian(noise_std=NOISE), Categorical()]


@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=["gaussian", "categorical"])
@pytest.mark.parametrize("structure", ["full", "diagonal", "low-rank", "ekfac"])
def test_curvature_is_that_of_automatic_differentiation(structure, likelihood):
    posterior, state, batch, _ = fitted(structure, likelihood, evidence=False, prior_variance=0.5, rank=100)
    exact = exact_fisher(posterior, state, batch)
    precision = oracles.dense(posterior.gaussian(state)[1]) - torch.eye(exact.shape[1], dtype=torch.float64) / (N * 0.5)
    if structure in ("full", "low-rank"):
        torch.testing.assert_close(precision, exact, rtol=1e-6, atol=1e-6)
    else:  # a diagonal is exact in its basis
        torch.testing.assert_close(
            torch.linalg.diagonal(precision).sum(1), torch.linalg.diagonal(exact).sum(1), rtol=1e-8, atol=1e-9
        )
    if structure == "diagonal":
        torch.testing.assert_close(precision, torch.diag_embed(torch.linalg.diagonal(exact)), rtol=1e-8, atol=1e-9)


def test_kfac_is_the_product_of_the_moments_of_all_data():
    posterior, state, batch, _ = fitted("kfac", Gaussian(noise_std=NOISE), evidence=False)
    precision = oracles.dense(posterior.gaussian(state)[1])
    hidden = (batch.x @ state.weights[0][:, 0, :3] + state.weights[0][:, 0, 3:]).tanh()
    ones = torch.ones(R, N, 1, dtype=torch.float64)
    a = torch.cat([hidden, ones], 2)
    moment = a.mT @ a / N
    for r in range(R):  # S of the last layer is I / noise^2, since the output is linear in it
        expected = torch.kron(moment[r], torch.eye(3).double() / NOISE**2) + torch.eye(15).double() / N
        torch.testing.assert_close(precision[r, 16:, 16:], expected)


@pytest.mark.parametrize("structure", ["full", "kfac"])
def test_evidence_of_a_linear_model_is_exact(structure):
    """p(y) = N(0, noise^2 I + eta X X^T) for each target, at the ridge solution."""
    net, likelihood, eta = Net(nn.Linear(3, 2)), Gaussian(noise_std=NOISE), 0.7
    posterior = Laplace(net=net, likelihood=likelihood, structure=structure, evidence=False, prior_variance=eta)
    x, rng = draw(3).normal(1, N, 3), draw(5)
    y = rng.normal(1, N, 2)
    design = torch.cat([x, torch.ones(1, N, 1)], 2)[0]
    weights = torch.linalg.solve(
        design.mT @ design / NOISE**2 + torch.eye(4).double() / eta, design.mT @ y[0] / NOISE**2
    )
    state = posterior.init(N, 1, rng)._replace(weights=(weights[None, None],))
    batch = Batch(x, y)
    state = posterior.finish(state, [batch], rng)
    covariance = NOISE**2 * torch.eye(N).double() + eta * design @ design.mT
    exact = torch.distributions.MultivariateNormal(torch.zeros(N).double(), covariance).log_prob(y[0].mT).sum()
    assert float(posterior.log_evidence(state, [batch])) == pytest.approx(float(exact), rel=1e-9)


@pytest.mark.parametrize("structure", ["kfac", "full", "low-rank"])
def test_prior_variance_maximises_the_evidence(structure):
    posterior, state, _, pieces = fitted(structure, Categorical(), rank=100)
    best = posterior.log_evidence(state, pieces)
    for l in range(2):  # noqa: E741
        for factor in (0.97, 1.03):
            scaled = state.eta.clone()
            scaled[:, slice(None) if structure != "kfac" else l] *= factor
            assert (posterior.log_evidence(state._replace(eta=scaled), pieces) <= best + 1e-9).all()
    assert (state.eta > 2e-4).all() and (state.eta < 50).all()
    if structure != "kfac":
        torch.testing.assert_close(state.eta[:, 0], state.eta[:, 1])


def test_last_layer_has_the_block_of_the_full_matrix_and_the_rest_stays():
    likelihood = Categorical()
    whole, state, batch, _ = fitted("full", likelihood, evidence=False)
    last, of_last, _, _ = fitted("full", likelihood, subset="last", evidence=False)
    block = oracles.dense(whole.gaussian(state)[1])[:, 16:, 16:]
    torch.testing.assert_close(oracles.dense(last.gaussian(of_last)[1]), block)
    layers = last.sample(of_last, 5, draw())
    assert torch.equal(layers[0], state.weights[0].expand(-1, 5, -1, -1))
    assert (layers[1].std(1) > 0).all()
    expected = linearised(last, of_last, batch.x)
    predictor = Predictor.sample(last, of_last, 20_000, draw())
    (out,) = [out for _, out in predictor.outputs(batch.x[:, :4])]
    error = (out.var(1) / expected.variance[:, :4]).log().abs()
    assert error.max() < 6 * math.sqrt(2 / 20_000)
    torch.testing.assert_close(out.mean(1), expected.mean[:, :4], rtol=0, atol=0.1)


def test_refinement_starts_from_any_structure_of_the_last_layer():
    module, x, y = trained()
    model = explore.laplace(module, x, y, structure="full", layers="last")
    assert explore.refined(model, x, y, epochs=1).predict(x).mean.isfinite().all()


@pytest.mark.parametrize("likelihood", [Categorical(), Bernoulli()])
def test_probit_is_near_the_average_over_samples(likelihood):
    net = NET if isinstance(likelihood, Categorical) else Net(mlp(3, [4], 1))
    posterior, state, batch, _ = fitted("kfac", likelihood, net=net, evidence=False, prior_variance=3.0)
    sampled = Predictor.sample(posterior, state, 4000, draw()).moments(batch.x).mean
    found = probit(posterior, state, batch.x)
    plain = likelihood.mean(linearised(posterior, state, batch.x).mean.unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(found.sum(2), torch.ones(R, N, dtype=torch.float64))
    assert (found - sampled).abs().mean() < 0.5 * (plain - sampled).abs().mean()


def test_a_fitted_model_has_the_closed_form_of_its_classes():
    module, x, y = trained(2)
    model: Any = explore.laplace(module, x, y)
    expected = probit(model.posterior, model.state, x.unsqueeze(0))
    torch.testing.assert_close(model.probit(x), expected)
    with pytest.raises(InputError, match="needs classes and a Gaussian posterior"):
        explore.laplace(*trained()).probit(x)


def trained(outputs=1):
    torch.manual_seed(0)
    module = mlp(2, [16], outputs)
    x = torch.randn(300, 2)
    y = x.prod(1, keepdim=True) + 0.1 * torch.randn(300, 1) if outputs == 1 else (x.prod(1) > 0).long()
    optimiser = torch.optim.Adam(module.parameters(), lr=0.02)
    for _ in range(300):
        optimiser.zero_grad()
        out = module(x)
        loss = (out - y).square().mean() if outputs == 1 else nn.functional.cross_entropy(out, y)
        loss.backward()
        optimiser.step()
    return module, x, y


@pytest.mark.parametrize("layers", ["last", "all"])
def test_around_a_trained_module(layers):
    module, x, y = trained()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=50)
    model = explore.laplace(module, loader, layers=layers)
    prediction = model.predict(x)
    residual = float((y - module(x).detach()).square().mean().sqrt())
    torch.testing.assert_close(prediction.mean[0], module(x).detach(), rtol=0, atol=0.1)
    torch.testing.assert_close(prediction.noise[0].mean().item(), residual, rtol=0.1, atol=0)
    inside, outside = prediction.epistemic.mean(), model.predict(10 * x).epistemic.mean()
    assert 0 < inside < residual < outside
    assert float(model.initial_curvature_share) == 0


def test_classes_and_refinement():
    module, x, y = trained(2)
    model = explore.laplace(module, x, y, layers="all", structure="kfac")
    better = explore.refined(model, x, y, epochs=3, lr=0.05)
    labels = y.tolist()
    for one in (model, better):
        p = one.probabilities(x)[0]
        assert float((p.argmax(1) == y).float().mean()) > 0.93
        assert -p[range(300), labels].log().mean() < 0.25
    assert type(better.posterior).__name__ == "NoisyKFAC"
    far = torch.tensor([[30.0, 30.0]])
    assert model.probabilities(far).amax() < 0.999  # the module itself is certain
    with pytest.raises(InputError, match="refined\\(\\) starts from laplace\\(\\); got NoisyKFAC"):
        explore.refined(better, x, y)


def test_sizes_that_a_full_matrix_cannot_have_are_refused():
    net = Net(mlp(100, [100], 1))
    with pytest.raises(InputError, match='at most 4,096 weights, but there are 10,201; use "kfac"'):
        Laplace(net=net, likelihood=Gaussian(), structure="full").init(10, 1, draw())
