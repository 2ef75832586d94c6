"""The microcanonical sampler against exact posteriors, and its integrator against the theory."""

import math

import pytest
import torch
from torch import nn

import explore
from explore.core import tree
from explore.core.errors import InputError
from explore.core.rng import Rng
from explore.core.shapes import Batch, unflatten
from explore.inference.draws import effective_sample_size
from explore.inference.updates import microcanonical
from explore.learning.fit import last_epoch
from explore.nets.likelihoods import Bernoulli, Categorical, Gaussian, Heteroscedastic
from explore.nets.net import Net, mlp
from explore.posteriors.mclmc import MCLMC
from explore.testing import oracles
from tests.user_likelihoods import Poisson


def draw(seed=0):
    return Rng(seed, dtype=torch.float64)


def test_linear_gaussian_model_has_the_exact_mean_and_covariance():
    rng = draw(3)
    x = rng.normal(2, 24, 7)
    y = x @ rng.normal(1, 7, 1) + 0.3 + 0.5 * rng.normal(2, 24, 1)
    posterior = MCLMC(
        net=Net(nn.Linear(7, 1)), likelihood=Gaussian(noise_std=0.5), prior_variance=0.8,
        epochs=560, start=20, warmup=40, thinning=10, chains=8, energy_variance=1e-3,
    )  # fmt: skip
    state, info = last_epoch(posterior, x, y, draw())[2:]
    mean, covariance = oracles.ridge(x, y, 0.5, 0.8)
    samples = oracles.flat(posterior.sample(state, 10**9, draw()))
    white = torch.linalg.solve_triangular(
        torch.linalg.cholesky(covariance), (samples - mean.unsqueeze(1)).mT, upper=False
    )
    n = info["effective_draws"].min() / 2  # of predictions; single directions may have fewer
    assert samples.shape[1] == 4000 and n > 500
    assert white.mean(2).abs().max() < 5 / n**0.5
    assert (white @ white.mT / 4000 - torch.eye(8)).abs().max() < 0.02 + 5 * (2 / n) ** 0.5
    assert (info["r_hat"] < 1.02).all() and (info["undone"] == 0).all()


@pytest.mark.parametrize(
    "likelihood",
    [
        Gaussian(prior_rate=0.01),
        Heteroscedastic(prior_shape=2.0, resolution=(0.9, 0.0)),
        Gaussian(noise_std=0.3),
        Categorical(),
    ],
)
def test_density_is_that_of_the_model(likelihood):
    """Unknown precisions are integrated out on a grid."""
    net, rng, copies = Net(mlp(2, [3], 4)), draw(5), 2.5
    posterior = MCLMC(net=net, likelihood=likelihood, prior_variance=0.6)
    x, z = rng.normal(1, 6, 2), rng.normal(1, 5, net.weights)
    state = posterior.init(6 * copies, 1, rng)
    layers = posterior.net.output(unflatten(z, net.shapes), x)
    targets = likelihood.mean(layers).shape[3]
    y = (x[..., 0] > 0).long() if likelihood.discrete else rng.normal(1, 6, targets)
    batch = Batch(x, y)
    found, gradient = posterior.density(state.common, batch, z)

    def exact(z):
        out, target = net.output(unflatten(z, net.shapes), x), y.unsqueeze(1)
        prior = -z.square().sum(2) / 1.2
        if not posterior.scales_unknown:
            return copies * likelihood.log_prob(likelihood.expected(state.common.noise), out, target).sum(2) + prior
        log_tau = torch.linspace(-16, 9, 30001, dtype=torch.float64)
        shape, rate, total = likelihood.prior_shape, likelihood.prior_rate, prior
        for m in range(targets):
            deviation = likelihood.log_deviation(out)[..., m] if targets < 4 else torch.zeros(())
            cell = getattr(likelihood, "resolution", (0.0,) * targets)[m] ** 2 / 12
            half = 0.5 * ((target - likelihood.mean(out))[..., m].square() + cell) * (-2 * deviation).exp()
            log = (shape + 3 * copies) * log_tau - log_tau.exp() * (rate + copies * half.sum(2, keepdim=True))
            total = total + log.logsumexp(2) - copies * (deviation + torch.zeros(6)).sum(-1)
        return total

    differences = found - exact(z)
    assert found.std() > 0.5 and (differences - differences.mean()).abs().max() < 1e-3
    for direction in rng.normal(3, 1, 5, net.weights):
        slope = (exact(z + 1e-4 * direction) - exact(z - 1e-4 * direction)) / 2e-4
        torch.testing.assert_close((gradient * direction).sum(2), slope, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize(("scales", "groups"), [("layers", 2), ("inputs", 5)])
def test_scales_multiply_the_prior_of_layers_and_inputs(scales, groups):
    net, rng, spread = Net(mlp(2, [3], 1)), draw(5), 0.5
    posterior = MCLMC(
        net=net, likelihood=Gaussian(noise_std=1.0), prior_variance=0.6, prior_scales=scales, scale_spread=spread
    )
    plain = MCLMC(net=net, likelihood=Gaussian(noise_std=1.0), prior_variance=0.6)
    x, z = rng.normal(1, 6, 2), rng.normal(1, 5, net.weights + groups)
    batch, state = Batch(x, x[..., :1].sin()), posterior.init(6, 1, rng)
    v, t = z.split([net.weights, groups], 2)
    first, last = unflatten(v, net.shapes)
    first = first * t[..., 0, None, None].exp() * (t[..., 2:, None].exp() if scales == "inputs" else 1)
    weights = torch.cat([first.flatten(2), (last * t[..., 1, None, None].exp()).flatten(2)], 2)
    found, gradient = posterior.density(state.common, batch, z)
    fit = plain.density(state.common, batch, weights)[0] + weights.square().sum(2) / 1.2
    torch.testing.assert_close(found, fit - v.square().sum(2) / 1.2 - t.square().sum(2) / (2 * spread**2))
    step = 1e-6 * rng.normal(1, 5, z.shape[2])
    ends = [posterior.density(state.common, batch, z + sign * step)[0] for sign in (1, -1)]
    torch.testing.assert_close((gradient * step).sum(2), (ends[0] - ends[1]) / 2, rtol=1e-5, atol=1e-11)
    prior = MCLMC(
        net=net, likelihood=Gaussian(), prior_variance=0.6, prior_scales=scales, scale_spread=spread, epochs=5320
    )
    inputs = prior.init(6, 1, rng).weights[0][0, :, 0, 0]  # E w^2 = eta E exp(2 t) per scale
    factors = 2 if scales == "inputs" else 1
    assert float(inputs.square().mean()) == pytest.approx(0.6 * math.exp(2 * spread**2) ** factors, rel=0.15)


def gaussian(z):
    """A density with the standard deviations 1 to 2."""
    scales = torch.linspace(1, 2, z.shape[2], dtype=z.dtype)
    return -0.5 * (z / scales).square().sum(2), -z / scales**2


def started(chains=64, dimensions=40, size=0.05):
    position = torch.linspace(1, 2, dimensions) * draw(7).normal(1, chains, dimensions)
    log_density, gradient = gaussian(position)
    momentum = microcanonical.direction(position, draw(8))
    start = microcanonical.Chains(position, momentum, log_density, gradient)
    return start, microcanonical.untuned(position, size)


def test_error_of_the_energy_falls_with_the_third_power_of_the_step():
    errors = []
    for size in (0.1, 0.05):
        chains, tuning = started(size=size)
        _, error, failed = microcanonical.step(gaussian, chains, tuning, draw())
        assert not failed.any()
        errors.append(error.square().mean().sqrt())
    assert errors[0] / errors[1] == pytest.approx(8, rel=0.1)


def test_momenta_stay_unit_vectors_and_forget_their_direction_over_the_length():
    chains, tuning = started(size=1e-3)
    tuning = tuning._replace(length=10 * tuning.size)
    first, rng = chains.momentum, draw(9)
    for _ in range(10):
        chains, _, _ = microcanonical.step(lambda z: (0 * z[..., 0], 0 * z), chains, tuning, rng)
    torch.testing.assert_close(chains.momentum.norm(dim=2), torch.ones(1, 64).double())
    assert float((first * chains.momentum).sum(2).mean()) == pytest.approx(math.exp(-1), abs=0.05)


def test_a_step_that_diverges_is_undone():
    chains, tuning = started()

    def walls(z):
        log_density, gradient = gaussian(z)
        return torch.where(torch.arange(64) % 2 == 0, torch.nan, log_density), gradient

    after, _, failed = microcanonical.step(walls, chains, tuning, draw())
    assert failed.flatten().tolist() == [i % 2 == 0 for i in range(64)]
    assert torch.equal(after.position[:, ::2], chains.position[:, ::2])
    assert torch.equal(after.momentum[:, ::2], -chains.momentum[:, ::2])
    assert (after.position[:, 1::2] != chains.position[:, 1::2]).all()
    shorter = microcanonical.tuned(tuning, torch.zeros(1, 64, 1).double(), failed, 0.1, 40).size
    torch.testing.assert_close(shorter[:, ::2], 0.8 * tuning.size[:, ::2])


def test_a_lost_chain_restarts_at_the_best_one():
    chains, _ = started(chains=4)
    bad = chains.position.clone()
    bad[:, [1, 3]] = torch.nan
    new, lost = microcanonical.begun(gaussian, chains._replace(position=bad))
    assert lost.tolist() == [[False, True, False, True]]
    best = 0 if chains.log_density[0, 0] > chains.log_density[0, 2] else 2
    for c, source in enumerate((0, best, 2, best)):
        for after, before in zip(new, chains, strict=True):
            if after is not new.momentum:
                torch.testing.assert_close(after[:, c], before[:, source])
    assert torch.equal(new.momentum, chains.momentum)


def test_steps_are_tuned_to_the_energy_variance():
    chains, tuning = started(size=1e-3)
    rng, errors = draw(), []
    for i in range(800):
        chains, error, failed = microcanonical.step(gaussian, chains, tuning, rng)
        if i < 600:
            tuning = microcanonical.tuned(tuning, error, failed, 1e-3, 40)
            tuning = microcanonical.spread(microcanonical.visited(tuning, chains)) if i > 300 else tuning
        else:
            errors.append(error)
    assert float(torch.stack(errors).square().mean()) / 40 == pytest.approx(1e-3, rel=1.0)
    expected = torch.linspace(1, 2, 40).square().sum().sqrt()
    assert float(tuning.length.mean()) == pytest.approx(float(expected), rel=0.2)


def test_coordinates_are_divided_by_their_deviations():
    deviations = torch.logspace(-2, 0, 40, dtype=torch.float64)

    def density(z):
        return -0.5 * (z / deviations).square().sum(2), -z / deviations**2

    rng = draw()
    position = deviations * rng.normal(1, 8, 40)
    chains, _ = microcanonical.begun(
        density, microcanonical.Chains(position, microcanonical.direction(position, rng), *[position] * 2)
    )
    tuning, sizes = microcanonical.untuned(position, 1e-3), []
    for _ in range(2):
        for _ in range(1500):
            chains, error, failed = microcanonical.step(density, chains, tuning, rng)
            tuning = microcanonical.visited(microcanonical.tuned(tuning, error, failed, 0.01, 40), chains)
        sizes.append(float((tuning.size * tuning.scale.log().mean(2, keepdim=True).exp()).mean()))
        tuning = microcanonical.preconditioned(tuning)
    expected = deviations / deviations.log().mean().exp()
    assert (tuning.scale / expected).log().abs().max() < 0.5
    assert sizes[1] > 5 * sizes[0] and float(tuning.visits.sum()) == 0
    ratio = chains.position.std((0, 1)) / deviations
    assert 0.5 < ratio.median() < 1.6


def test_effective_sample_size_is_numpyros():
    diagnostics = pytest.importorskip("numpyro.diagnostics")
    noise = draw(6).normal(3, 400, 4)
    draws = [noise[:, 0]]
    for i in range(1, 400):
        draws.append(0.9 * draws[-1] + noise[:, i])
    series = torch.stack(draws, 1)
    expected = [float(diagnostics.effective_sample_size(d.T.numpy())) for d in series]
    torch.testing.assert_close(effective_sample_size(series), torch.tensor(expected).double(), rtol=0.02, atol=0)


def test_chains_start_at_trained_networks():
    rng = draw(1)
    x = rng.normal(1, 64, 2)
    y = (x[..., :1] * 2).sin()
    posterior = MCLMC(
        net=Net(mlp(2, [20], 1)), likelihood=Gaussian(noise_std=0.1), epochs=46, start=40, warmup=1, chains=3
    )
    state = posterior.init(64, 1, rng)
    batch = Batch(x, y)
    before = posterior.density(state.common, batch, state.chains.position)[0]
    for _ in range(40):
        state, _ = posterior.update(state, batch, rng)
    after = posterior.density(state.common, batch, state.chains.position)[0]
    assert (after > before + 1000).all()
    assert len({tuple(z) for z in state.chains.position[0, :, :3].tolist()}) == 3


def test_what_it_does_not_support_is_refused_by_name():
    with pytest.raises(InputError, match="mclmc does not support batch norm"):
        MCLMC(net=Net(nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))), likelihood=Gaussian())
    with pytest.raises(InputError, match="epochs is 280; it must be at least 284"):
        MCLMC(net=Net(nn.Linear(2, 1)), likelihood=Gaussian(), epochs=280)
    for likelihood in (Poisson(), Bernoulli()):
        MCLMC(net=Net(nn.Linear(2, 1)), likelihood=likelihood)


@pytest.mark.slow
def test_steps_on_parts_of_the_data_have_the_mean_and_slightly_wider_draws():
    rng = draw(3)
    x = rng.normal(1, 400, 3)
    y = x @ rng.normal(1, 3, 1) + 0.3 + 0.5 * rng.normal(1, 400, 1)
    posterior = MCLMC(
        net=Net(nn.Linear(3, 1)), likelihood=Gaussian(noise_std=0.5), epochs=200, start=20, warmup=40, chains=16,
        thinning=10, energy_variance=1e-3, step_batch=100,
    )  # fmt: skip
    state, info = last_epoch(posterior, x, y, draw())[2:]
    mean, covariance = oracles.ridge(x, y, 0.5, 1.0)
    samples = oracles.flat(posterior.sample(state, 10**9, draw()))
    deviation = covariance[0].diagonal().sqrt()
    assert ((samples.mean(1) - mean)[0] / deviation).abs().max() < 0.3
    ratio = samples[0].std(0) / deviation
    assert 0.9 < ratio.min() and ratio.max() < 1.6, ratio
    assert (info["undone"] == 0).all()


def test_a_learner_moves_the_chains_on_and_resumes_exactly():
    x, labels = draw().normal(40, 2).numpy(), draw(1).normal(40, 1).numpy()
    settings = {"epochs": 40, "start": 10, "warmup": 20, "thinning": 4, "chains": 2}

    def posterior(labels):
        """A new one with the same settings, as for the commands; with 13 labels, other settings."""
        more = {"chains": 3} if labels == 13 else {}
        return explore.posterior("mclmc", Net(mlp(2, [4], 1)), "gaussian", "small", **settings | more)

    def learner():
        made = explore.ActiveLearner(posterior(0), x, ["epig"], trials=2, posterior_for=posterior)
        made.tell([list(range(10))] * 2, labels[[list(range(10))] * 2])
        return made

    one, epochs = learner(), []
    for _ in range(2):
        epochs.append([epoch.epoch for epoch in one.fit()])
        chosen = one.ask(1).indices
        one.tell(chosen, labels[chosen])
    assert epochs == [list(range(1, 41)), list(range(26, 41))]
    saved = one.state_dict()
    other = learner()
    other.load_state_dict(saved)
    for a, b in zip(tree.tensors(one.fitted.state), tree.tensors(other.fitted.state), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
    scratch = learner()
    scratch.tell(chosen, labels[chosen])
    assert not torch.equal(scratch.fitted.state.chains.position, one.fitted.state.chains.position)
    chosen = one.ask(1).indices
    one.tell(chosen, labels[chosen])
    assert len(list(one.fit())) == 40
