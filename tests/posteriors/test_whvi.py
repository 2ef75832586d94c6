"""WHVI against weight matrices written out with scipy's Hadamard matrix."""

import dataclasses
import math

import numpy as np
import pytest
import scipy.linalg
import torch
from torch import nn
from torch.distributions import MultivariateNormal, Normal, kl_divergence

from explore.core import tree
from explore.core.errors import InputError
from explore.core.rng import Rng
from explore.core.shapes import Batch
from explore.inference import predict
from explore.inference.gaussian import GaussianPosterior
from explore.learning.fit import last_epoch
from explore.learning.learner import ActiveLearner
from explore.nets.likelihoods import Gaussian
from explore.nets.net import Net, mlp
from explore.nets.zoo import alexnet_dense
from explore.posteriors import whvi
from explore.posteriors.whvi import WHVI
from tests import oracles

STRUCTURES = ["S1HGHS2", "V1HGHS2", "S1HGHV2", "V1HGHV2", "S1HGH", "V1HGH", "GH"]
MODULE = mlp(2, [3], 2).double()
RNG = Rng(9, dtype=torch.float64)
BATCH = Batch(RNG.normal(2, 5, 2), RNG.normal(2, 5, 2))


def rng(seed=0):
    return Rng(seed, dtype=torch.float64)


def build(module=MODULE, **settings):
    return WHVI(net=Net(module), likelihood=Gaussian(noise_std=0.5), prior_variance=0.6, kl_weight=0.7, **settings)


def alone(inputs, outputs, bias=False, **settings):
    """A WHVI layer by itself: (posterior, its form, state)."""
    posterior = build(nn.Linear(inputs, outputs, bias=bias), last_layer="whvi", vectors="stack", **settings)
    return posterior, posterior.forms[0], posterior.init(20, 2, rng())


def with_bent_flows(state):
    """The state of one layer with flows far from the identity, near which they start."""
    bent = (1.5 * rng(7).normal(*t.shape) for t in state.points[0][-3:])
    return state._replace(points=((*state.points[0][:-3], *bent),))


def h(d):
    return torch.as_tensor(scipy.linalg.hadamard(d)).double()


def power_of_two(n):
    return 2 ** (n - 1).bit_length()


def written_out(form, z, points, inputs, outputs):
    """W [..., inputs, outputs] of y = x W, block by block from the definition."""
    parts = dict(zip(form.names, z, strict=True)) | dict(zip(form.points, points, strict=False))
    d = power_of_two(inputs)
    if "s1" not in parts:
        tall = h(d).repeat(math.ceil(outputs / d), 1)[:outputs, :inputs]
        return (torch.diag_embed(parts["g"].squeeze(-2)) @ tall).mT
    blocks = []
    for k in range(math.ceil(outputs / d)):
        g = parts["g"][..., min(k, parts["g"].shape[-2] - 1), :]
        w = h(d) @ torch.diag_embed(g) @ h(d) / d**0.5
        if "s2" in parts:
            s2 = torch.cat([parts["s2"][..., k, :], torch.ones(*parts["s2"].shape[:-2], d - inputs)], -1)
            w = w @ torch.diag_embed(s2)
        blocks.append(w)
    w = torch.cat(blocks, -2)[..., :outputs, :inputs]
    return (torch.diag_embed(parts["s1"].squeeze(-2)) @ w).mT


def layer_matrix(layer, inputs, bias=False):
    """What a layer does to the unit vectors (and to zero, as the last row), [R, S, I, O]."""
    points = torch.eye(inputs + bias, inputs, dtype=torch.float64)
    a = torch.cat([points, torch.ones(len(points), int(bias))], 1).expand(2, 1, 1, -1, -1)
    w = layer(a).squeeze(2)
    return torch.cat([w[:, :, :-1] - w[:, :, -1:], w[:, :, -1:]], 2) if bias else w


# The weights -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(13, 5), (13, 50), (4, 4), (1, 3), (8, 1)])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_layer_equals_its_dense_form(structure, shape, bias):
    posterior, form, state = alone(shape[0], shape[1], bias, structure=structure)
    (layer,) = posterior.sample(state, 4, rng(1))
    z = posterior.sample_coordinates(state, 4, rng(1))
    w = written_out(form, z, [p.unsqueeze(1) for p in state.points[0]], *shape)
    if bias:
        w = torch.cat([w, z[form.names.index("bias")]], 2)
    assert layer.samples == 4
    x = rng(2).normal(2, 1, 6, 1, shape[0])
    a = torch.cat([x, torch.ones(2, 1, 6, 1, bias)], -1)
    expected = torch.einsum("rsbti,rkio->rkbto", a, w)
    torch.testing.assert_close(layer(a), expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(layer(a.expand(-1, 4, -1, -1, -1)), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("covariance", ["diagonal", "full"])
def test_covariance_of_sampled_weights(covariance):
    posterior, form, state = alone(3, 6, initial_std=0.3, covariance=covariance)
    state = posterior.update(state, Batch(rng(3).normal(2, 5, 3), rng(3).normal(2, 5, 6)), rng(4))[0]
    n = 20000
    w = layer_matrix(posterior.sample(state, n, rng(1))[0], 3).flatten(2)
    mean, precision, _ = posterior.gaussian(state)
    # W is linear in g.
    units = torch.eye(4, dtype=torch.float64)[:, None].expand(2, -1, -1, -1)
    directions = written_out(form, [units], [p.unsqueeze(1) for p in state.points[0]], 3, 6).flatten(2)
    sigma = torch.linalg.inv(oracles.dense(precision))
    if covariance == "diagonal":
        assert torch.equal(sigma, torch.diag_embed(sigma.diagonal(dim1=1, dim2=2)))
    else:
        assert (sigma - torch.diag_embed(sigma.diagonal(dim1=1, dim2=2))).abs().max() > 1e-6
    expected = directions.mT @ sigma @ directions
    assert torch.linalg.matrix_rank(expected).tolist() == [4, 4]  # of 18
    centred = w - (mean[0] @ directions)
    deviation = expected.diagonal(dim1=1, dim2=2).sqrt()
    assert ((centred.mean(1) / deviation).abs() < 5 / n**0.5).all()
    error = (centred.mT @ centred / n - expected) / (deviation.unsqueeze(2) * deviation.unsqueeze(1))
    assert error.abs().max() < 5 * (2 / n) ** 0.5


def test_every_weight_starts_with_the_variance_of_the_coordinates():
    posterior = build(nn.Linear(13, 40), last_layer="whvi", initial_std=0.2)
    state = posterior.init(20, 2, rng())
    w = layer_matrix(posterior.sample(state, 20000, rng(1))[0], 13, True)
    torch.testing.assert_close(w.std(1), torch.full_like(w[:, 0], 0.2), rtol=0.05, atol=0)
    assert w.mean(1).std() == pytest.approx((2 / (14 + 40)) ** 0.5, rel=0.2)  # Glorot's


@pytest.mark.parametrize("settings", [{}, {"structure": "V1HGHV2"}, {"covariance": "full"}, {"flows": 2}])
def test_every_example_draws_as_sampled_weights_do(settings):
    posterior, _, state = alone(3, 5, True, initial_std=0.4, **settings)
    if "flows" in settings:
        state = with_bent_flows(state)
    n = 40000
    a = torch.cat([rng(2).normal(2, 1, 1, 1, 3), torch.ones(2, 1, 1, 1, 1)], -1)
    sampled = posterior.sample(state, n, rng(3))[0](a)[:, :, 0, 0]
    with_own = dataclasses.replace(posterior, samples=1)._build(state, (2, 1, n), rng(4))[0][0]
    fresh = with_own(a.expand(-1, -1, n, -1, -1))[:, 0, :, 0]
    for moment in (1, 2, 3):
        one, other = (torch.stack([(x**moment).mean(1), (x**moment * x.roll(1, 2)).mean(1)]) for x in (sampled, fresh))
        spread = torch.stack([(sampled**moment).std(1), (sampled**moment * sampled.roll(1, 2)).std(1)])
        assert ((one - other).abs() < 5 * spread * (2 / n) ** 0.5).all()
    centred = fresh - fresh.mean(1, keepdim=True)
    neighbours = (centred[:, 1:] * centred[:, :-1]).mean(1) / centred.square().mean(1)
    assert neighbours.abs().max() < 5 / n**0.5


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize(("inputs", "outputs"), [(1, 11), (11, 1)])
def test_a_vector_of_weights_comes_out_of_a_square(structure, inputs, outputs):
    module = nn.Linear(inputs, outputs)
    posterior = build(module, last_layer="whvi", structure=structure)
    (form,), state = posterior.forms, posterior.init(20, 2, rng())
    z = posterior.sample_coordinates(state, 3, rng(1))
    square = written_out(form, z, [p.unsqueeze(1) for p in state.points[0]], 4, 4)
    expected = square.flatten(2)[..., :11].unflatten(2, (inputs, outputs))
    (w,) = posterior.sample(state, 3, rng(1))
    torch.testing.assert_close(w[:, :, :-1], expected, rtol=1e-10, atol=1e-12)
    assert torch.equal(w[:, :, -1:], z[form.names.index("bias")])
    # The same weights for every example, spelled out example by example.
    x = torch.cat([rng(2).normal(2, 1, 6, 1, inputs), torch.ones(2, 1, 6, 1, 1)], -1)
    own = form.build(tuple(t.unsqueeze(2).expand(-1, -1, 6, -1, -1) for t in z), state.points[0], (2, 3, 6), rng())[0]
    torch.testing.assert_close(own(x), torch.einsum("rsbti,rkio->rkbto", x, w), rtol=1e-10, atol=1e-12)


def parameters(posterior):
    state = posterior.init(20, 1, rng())
    return sum(t.numel() for _, t in tree.leaves((state.mean, state.spread, state.points)))


def test_number_of_parameters():
    net = Net(mlp(1, [128, 128], 1))
    # The paper counts 1541 and 4141 with the noise.
    assert parameters(build(mlp(1, [128, 128], 1), vectors="stack")) == 1540
    assert parameters(build(mlp(1, [128, 128], 1), vectors="stack", flows=10)) == 4140
    assert net.weights == 16897
    square = [parameters(build(nn.Linear(d, d), last_layer="whvi")) / d for d in (16, 64, 256)]
    assert square == [6, 6, 6]  # S1, S2, and mean and deviation of g and of the bias
    vector = [parameters(build(nn.Linear(d * d, 1, bias=False), last_layer="whvi")) / d for d in (4, 16, 64)]
    assert vector == [4, 4, 4]


@pytest.mark.parametrize(("flows", "paper"), [(0, 2_310_996), (3, 2_366_301)])
def test_number_of_parameters_of_the_papers_alexnet(flows, paper):
    """WHVI in its dense layers; of the last one's S1 the paper counts the 4086 entries that no output reads too."""
    settings = {"convolutions": "mc-dropout", "last_layer": "whvi", "vectors": "stack"}
    assert parameters(build(alexnet_dense(), flows=flows, **settings)) == paper - (4096 - 10)


# The bound -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reparameterisation", ["local", "weights"])
@pytest.mark.parametrize("schedule", ["cosine", "power"])
def test_updates_descend_the_bound_with_adam(reparameterisation, schedule):
    posterior = build(reparameterisation=reparameterisation, samples=3, lr=0.05, schedule=schedule, initial_std=0.2)
    form = posterior.forms[0]
    state = posterior.init(20, 2, rng())
    (g, bias), (last,) = ([t.clone().requires_grad_() for t in ts] for ts in state.mean)
    (g_rho, bias_rho), (last_rho,) = ([t.clone().requires_grad_() for t in ts] for ts in state.spread)
    s1, s2 = (t.clone().requires_grad_() for t in state.points[0])
    everything = [g, bias, last, g_rho, bias_rho, last_rho, s1, s2]
    optimiser = torch.optim.Adam(everything, lr=0.05)
    noise, same_noise = rng(1), rng(1)

    for step in range(1, 4):
        state, info = posterior.update(state, BATCH, noise)

        stds = [torch.log1p(r.exp()) for r in (g_rho, bias_rho, last_rho)]
        x = torch.cat([BATCH.x, torch.ones(2, 5, 1)], -1)
        if reparameterisation == "local":  # [R, S B, ...] numbers, and for the last layer [R, S, B, T, O]
            draws = [
                m.unsqueeze(1) + s.unsqueeze(1) * same_noise.normal(2, 15, *m.shape[1:])
                for m, s in zip((g, bias), stds, strict=False)
            ]
        else:
            draws = [
                m.unsqueeze(1) + s.unsqueeze(1) * same_noise.normal(2, 3, *m.shape[1:])
                for m, s in zip((g, bias, last), stds, strict=True)
            ]
        w = torch.cat([written_out(form, draws[:2], [s1.unsqueeze(1), s2.unsqueeze(1)], 2, 3), draws[1]], 2)
        if reparameterisation == "local":
            hidden = torch.einsum("rbi,rsbio->rsbo", x, w.unflatten(1, (3, 5))).relu()
            a = torch.cat([hidden, torch.ones(2, 3, 5, 1)], -1)
            mean, std = a @ last.unsqueeze(1), (a**2 @ stds[2].unsqueeze(1) ** 2).sqrt()
            out = mean + std * same_noise.normal(2, 3, 5, 1, 2).squeeze(3)
        else:
            hidden = torch.einsum("rbi,rsio->rsbo", x, w).relu()
            out = torch.cat([hidden, torch.ones(2, 3, 5, 1)], -1) @ draws[2]
        nll = -Normal(out, 0.5).log_prob(BATCH.y.unsqueeze(1)).sum(-1).mean((1, 2))
        divergence = sum(
            kl_divergence(Normal(m, s), Normal(0, 0.6**0.5)).sum((1, 2))
            for m, s in zip((g, bias, last), stds, strict=True)
        )
        for group in optimiser.param_groups:
            group["lr"] = 0.05 * ((1 + 5e-4 * step) ** -0.3 if schedule == "power" else 1)
        optimiser.zero_grad()
        (nll + 0.7 / 20 * divergence).sum().backward()
        optimiser.step()

        torch.testing.assert_close(info["nll"], nll.detach(), rtol=1e-8, atol=0)
        ours = (*state.mean[0], *state.mean[1], *state.spread[0], *state.spread[1], *state.points[0])
        for one, other in zip(ours, everything, strict=True):
            torch.testing.assert_close(one, other.detach(), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("reparameterisation", ["local", "weights"])
def test_updates_descend_the_bound_with_flows(reparameterisation):
    posterior = build(
        nn.Linear(2, 2, bias=False), last_layer="whvi", reparameterisation=reparameterisation, samples=3, lr=0.05,
        initial_std=0.2, flows=2,
    )  # fmt: skip
    form, state = posterior.forms[0], with_bent_flows(posterior.init(20, 2, rng()))
    free = [t.clone().requires_grad_() for t in (state.mean[0][0], state.spread[0][0], *state.points[0])]
    mean, rho, s1, s2, u, w, b = free
    optimiser, noise, same_noise = torch.optim.Adam(free, lr=0.05), rng(1), rng(1)

    for _ in range(3):
        state, _ = posterior.update(state, BATCH, noise)

        draws = 15 if reparameterisation == "local" else 3
        std = torch.log1p(rho.exp())
        z = mean.unsqueeze(1) + std.unsqueeze(1) * same_noise.normal(2, draws, 1, 2)  # [R, draws, 1, 2]
        g, log_det = [z[:, :, 0]], torch.zeros(2, draws)
        for k in range(2):
            inner = (w[:, k] * u[:, k]).sum(1, keepdim=True)
            bent_u = u[:, k] + (torch.log1p(inner.exp()) - 1 - inner) * w[:, k] / w[:, k].square().sum(1, keepdim=True)
            t = torch.tanh((g[-1] * w[:, k, None]).sum(2) + b[:, k, None])
            log_det = log_det + torch.log(1 + (w[:, k] * bent_u).sum(1)[:, None] * (1 - t**2))
            g.append(g[-1] + t.unsqueeze(2) * bent_u[:, None])
        matrix = written_out(form, [g[-1].unsqueeze(2)], [s1.unsqueeze(1), s2.unsqueeze(1)], 2, 2)
        if reparameterisation == "local":
            out = torch.einsum("rbi,rsbio->rsbo", BATCH.x, matrix.unflatten(1, (3, 5)))
        else:
            out = torch.einsum("rbi,rsio->rsbo", BATCH.x, matrix)
        nll = -Normal(out, 0.5).log_prob(BATCH.y.unsqueeze(1)).sum(-1).mean((1, 2))
        # E[log q_0(g_0)] is the entropy's; the rest is of the samples, with log p(g_0) written as its expectation too.
        prior = Normal(0, 0.6**0.5)
        divergence = kl_divergence(Normal(mean, std), prior).sum((1, 2))
        moved = (prior.log_prob(g[0]) - prior.log_prob(g[-1])).sum(2)
        optimiser.zero_grad()
        (nll + 0.7 / 20 * (divergence + (moved - log_det).mean(1))).sum().backward()
        optimiser.step()
        ours = (state.mean[0][0], state.spread[0][0], *state.points[0])
        for one, other in zip(ours, free, strict=True):
            torch.testing.assert_close(one, other.detach(), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("structure", ["S1HGHS2", "S1HGH"])  # with one g, and one for each stacked block
def test_full_covariance_equals_the_dense_gaussian(structure):
    posterior = build(covariance="full", initial_std=0.3, lr=0.05, structure=structure)
    new = posterior.init(20, 2, rng())
    for i in (0, 1, 2, 7):
        new = posterior.update(new, BATCH, rng(i))[0]
    mean, cov = oracles.implied_gaussian(posterior, new)
    root = new.spread[0][0].tril(-1) + torch.diag_embed(torch.log1p(new.spread[0][0].diagonal(dim1=1, dim2=2).exp()))
    n = root.shape[1]
    torch.testing.assert_close(cov[:, :n, :n], root @ root.mT, rtol=1e-8, atol=1e-10)
    assert cov[:, 0, 1].abs().min() > 1e-5
    prior = MultivariateNormal(torch.zeros_like(mean), 0.6 * torch.eye(mean.shape[1], dtype=torch.float64))
    expected = kl_divergence(MultivariateNormal(mean, cov), prior)
    torch.testing.assert_close(posterior.kl_prior(new), expected, rtol=1e-8, atol=1e-9)
    n = 20000
    white = torch.linalg.solve_triangular(
        torch.linalg.cholesky(cov),
        (oracles.flat(posterior.sample_coordinates(new, n, rng(8))) - mean.unsqueeze(1)).mT,
        upper=False,
    )
    assert (white @ white.mT / n - torch.eye(mean.shape[1])).abs().max() < 5 * (2 / n) ** 0.5


@pytest.mark.parametrize("settings", [{}, {"covariance": "full"}, {"structure": "V1HGHV2"}, {"flows": 2}])
def test_gain_is_that_of_the_coordinates(settings):
    posterior = build(gain_samples=3, initial_std=0.2, lr=0.05, **settings)
    state = posterior.init(20, 2, rng())
    for i in range(3):
        state = posterior.update(state, BATCH, rng(i))[0]
    gain = posterior.gain(state, BATCH, rng(1))
    _, precision, _ = posterior.gaussian(state)
    noise = rng(1)
    drawn = posterior.sample_coordinates(state, 3, noise)
    tau = posterior.likelihood.sample_noise(state.common.noise, 3, noise)
    sizes = [z[0, 0].numel() for z in drawn]

    def log_prob(vector, example):
        z = tuple(v.view(z.shape) for v, z in zip(vector.split(sizes, 2), drawn, strict=True))
        layers = posterior._build(state, (2, 3), rng(), z)[0]
        out = posterior.net.output(layers, BATCH.x[:, example : example + 1])
        return posterior.likelihood.log_prob(tau, out, BATCH.y[:, None, example : example + 1]).sum()

    diagonal = settings.get("covariance") != "full"
    sigma = torch.linalg.inv(oracles.dense(precision))
    blocks = [torch.eye(n) if diagonal or i else torch.ones(n, n) for i, n in enumerate(sizes)]
    # The covariance's step is projected on what can change: blocks of layers' coordinates, or single ones.
    for example in range(5):
        vector = oracles.flat(drawn).requires_grad_()
        (g,) = torch.autograd.grad(log_prob(vector, example), vector)
        mean = torch.einsum("ri,rij,rj->r", g.mean(1), sigma, g.mean(1))
        curvature = torch.einsum("rsi,rsj->rij", g, g) / 3 * torch.block_diag(*blocks)
        covariance = torch.einsum("rij,rjk,rkl,rli->r", sigma, curvature, sigma, curvature)
        expected = 0.5e-4 * mean + 0.25e-4 * covariance
        torch.testing.assert_close(gain[:, example], expected, rtol=1e-8, atol=0)


# Flows -----------------------------------------------------------------------------------------------------


def test_flows_determinant_is_the_jacobians():
    r = rng(5)
    z, u, w, b = r.normal(2, 3, 4), r.normal(2, 5, 4), r.normal(2, 5, 4), r.normal(2, 5)
    end, log_det = whvi.flow(z, u, w, b)
    for i in range(2):
        for s in range(3):
            one = slice(i, i + 1)
            jacobian = torch.autograd.functional.jacobian(
                lambda x, one=one: whvi.flow(x.view(1, 1, 4), u[one], w[one], b[one])[0].flatten(), z[i, s]
            )
            torch.testing.assert_close(log_det[i, s], torch.linalg.slogdet(jacobian).logabsdet)
            assert torch.linalg.det(jacobian) > 0


def test_flows_can_be_inverted_whatever_their_parameters():
    u, w = torch.tensor([[[-50.0, 3.0]]]).double(), torch.tensor([[[2.0, 1.0]]]).double()  # w^T u = -97
    line = torch.linspace(-5, 5, 1001).double()[None, :, None] * w.squeeze(1) + torch.tensor([0.3, -0.2])
    end, log_det = whvi.flow(line, u, w, torch.zeros(1, 1).double())
    along = (end * w).sum(-1)
    assert (along.diff(dim=1) > 0).all() and log_det.isfinite().all()
    steep = torch.cat([line, torch.zeros(1, 1, 2)], 1).float().requires_grad_()  # at 0 the tanh is steepest
    _, log_det = whvi.flow(steep, u.float(), w.float(), torch.zeros(1, 1))
    (gradient,) = torch.autograd.grad(log_det.sum(), steep)
    assert log_det.isfinite().all() and gradient.isfinite().all()


def test_flows_start_near_the_identity():
    z = rng(1).normal(2, 3, 8)
    end, log_det = whvi.flow(z, *whvi.start_flows(2, 4, 8, rng()))
    assert 0 < (end - z).abs().max() < 0.2 and log_det.abs().max() < 0.2


def test_kl_with_flows_equals_quadrature():
    # One weight: g is a number, and its density after the flows follows from the change of variables.
    posterior, form, state = alone(1, 1, flows=2, initial_std=0.5)
    u, w, b = (1.5 * rng(3).normal(2, *t.shape[1:]) for t in state.points[0][-3:])
    state = state._replace(points=((*state.points[0][:-3], u, w, b),))
    mean, std = state.mean[0][0].flatten(), torch.log1p(state.spread[0][0].exp()).flatten()
    z = mean[:, None] + std[:, None] * torch.linspace(-9, 9, 20001).double()  # [R, n]
    end = whvi.flow(z.unsqueeze(2), u, w, b)[0].squeeze(2)
    slope = torch.gradient(end, dim=1)[0] / (z[:, 1:2] - z[:, :1])
    q = Normal(mean[:, None], std[:, None])
    integrand = q.log_prob(z).exp() * (q.log_prob(z) - slope.log() - Normal(0, 0.6**0.5).log_prob(end))
    expected = torch.trapezoid(integrand, z, dim=1)
    log_det = torch.trapezoid(q.log_prob(z).exp() * slope.log(), z, dim=1)
    assert log_det.abs().max() > 0.2  # with the wrong sign the KL would differ by twice that
    assert (posterior.kl_prior(state) - expected).abs().max() < 0.05


# Convolutions, predictions, settings -----------------------------------------------------------------------

CONV = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2))
IMAGES = Batch(rng(2).normal(2, 5, 3, 4, 4), rng(3).normal(2, 5, 2))


def test_convolutions_apply_filters_made_of_g():
    posterior = build(CONV)
    state = posterior.init(20, 2, rng())
    layers = posterior.sample(state, 3, rng(1))
    w = layer_matrix(layers[0], 27, True)
    expected = posterior.net.output((w, layers[1]), IMAGES.x)
    torch.testing.assert_close(posterior.net.output(layers, IMAGES.x), expected, rtol=1e-10, atol=1e-12)


def test_mixed_setting_drops_out_in_convolutions():
    posterior = build(CONV, convolutions="mc-dropout", rate=0.3, last_layer="whvi")
    state = posterior.init(20, 2, rng())
    (m,) = state.points[0]
    w = posterior.sample(state, 4000, rng(1))[0]
    ratio = w / m.unsqueeze(1)
    kept = (ratio != 0).all(3)
    larger = 1 / (1 - 0.3 * (torch.arange(28) < 27).double())
    torch.testing.assert_close(ratio, (kept * larger).unsqueeze(3).expand_as(ratio))
    assert (kept[:, :, :27].double().mean((1, 2)) - 0.7).abs().max() < 5 * (0.21 / 4000 / 27) ** 0.5
    assert kept[:, :, 27].all()
    # In training every example has a mask of its own.
    layer, excess = posterior.forms[0].build((), state.points[0], (2, 3, 5), rng(1))
    a = torch.ones(2, 3, 5, 2, 28, dtype=torch.float64)
    found = layer(a)
    assert torch.equal(found[..., 0, :], found[..., 1, :])
    assert len(found[:, :, :, 0, 0].unique()) == 30
    second = m.square().sum((1, 2)) + (1 / 0.7 - 1) * m[:, :-1].square().sum((1, 2))
    torch.testing.assert_close(excess.squeeze(1), second / 1.2)
    torch.testing.assert_close(posterior.kl_prior(state), GaussianPosterior.kl_prior(posterior, state) + second / 1.2)
    for i in range(3):
        state, _ = posterior.update(state, IMAGES, rng(i))
    assert not torch.equal(state.points[0][0], m) and bool(state.common.alive.all())
    assert posterior.gain(state, IMAGES, rng(1)).isfinite().all()


def test_mixed_setting_where_the_last_layer_is_a_convolution():
    conv = nn.Sequential(nn.Conv2d(3, 2, 4), nn.Flatten())
    with pytest.raises(InputError, match="use the posterior mc-dropout"):
        build(conv, convolutions="mc-dropout", last_layer="whvi").init(20, 2, rng())
    module = nn.Sequential(nn.Flatten(), nn.Linear(48, 48), nn.Unflatten(1, (3, 4, 4)), conv)
    posterior = build(module, convolutions="mc-dropout", last_layer="whvi")
    state, _ = posterior.update(posterior.init(20, 2, rng()), IMAGES, rng(1))
    assert state.common.alive.all() and posterior.kl_prior(state).isfinite().all()
    assert posterior.net.output(posterior.sample(state, 3, rng(2)), IMAGES.x).isfinite().all()


@pytest.mark.filterwarnings("ignore::explore.acquisitions.base.RedundancyWarning")
def test_predictions_where_no_layer_is_a_matrix():
    x = rng(1).normal(40, 3).numpy()
    posterior = dataclasses.replace(build(mlp(3, [4], 2), last_layer="whvi"), epochs=3)
    learner = ActiveLearner(posterior, x, ["max-variance", "random"], trials=2, samples=6)
    learner.tell(np.tile(np.arange(5), (4, 1)), rng(2).normal(4, 5, 2))
    choice = learner.ask(2)
    assert choice.indices.shape == (4, 2) and (choice.indices >= 5).all()
    predictor = predict.Predictor.sample(posterior, learner.fitted.state, 6, Rng(0))
    moments = predictor.moments(learner.x.float().expand(4, -1, -1))
    assert (moments.variance > 0).all()


def test_noise_is_learnt_from_its_first_step_on():
    posterior = dataclasses.replace(build(), likelihood=Gaussian(), noise_start=2)
    state = posterior.init(20, 2, rng())
    rates = []
    for i in range(4):
        state, _ = posterior.update(state, BATCH, rng(i))
        rates.append(float(state.common.noise.rate[0, 0]))
    assert rates[0] == rates[1] == 6.0 and rates[2] != 6.0 and rates[3] != rates[2]


def test_a_fit_with_flows_goes_through():
    assert last_epoch(build(flows=2, epochs=2), *BATCH, rng()).state.common.alive.all()
