import sys
from typing import Any

import pytest
import torch
from torch import nn

from explore import registry
from explore.core.errors import InputError
from explore.core.rng import Rng
from explore.core.shapes import unflatten
from explore.inference.draws import split_r_hat
from explore.learning.fit import fit
from explore.nets.likelihoods import Bernoulli, Categorical, Gaussian, Heteroscedastic
from explore.nets.net import Net, mlp
from explore.posteriors.hmc import HMC, _sampler
from explore.testing import oracles
from tests.user_likelihoods import Poisson

# Enough draws for Monte Carlo errors of a few hundredths, and so far apart that they hardly depend on each other.
LONG: dict[str, Any] = {"epochs": 600, "warmup": 100, "thinning": 5, "chains": 4}


def fitted(posterior, x, y):
    *_, last = fit(posterior, x, y, draw())
    return last


def draw(seed=0):
    return Rng(seed, dtype=torch.float64)


def test_linear_gaussian_model_has_the_exact_mean_and_covariance():
    rng = draw(3)
    x = rng.normal(2, 24, 3)
    y = x @ torch.tensor([[1.0], [-2.0], [0.5]], dtype=torch.float64) + 0.3 + 0.5 * rng.normal(2, 24, 1)
    posterior = HMC(net=Net(nn.Linear(3, 1)), likelihood=Gaussian(noise_std=0.5), prior_variance=0.8, **LONG)
    state, info = fitted(posterior, x, y)[2:]
    mean, covariance = oracles.ridge(x, y, 0.5, 0.8)
    samples = oracles.flat(posterior.sample(state, 10**9, draw()))
    n = samples.shape[1]
    white = torch.linalg.solve_triangular(
        torch.linalg.cholesky(covariance), (samples - mean.unsqueeze(1)).mT, upper=False
    )
    assert n == 2000
    assert white.mean(2).abs().max() < 5 / n**0.5
    assert (white @ white.mT / n - torch.eye(4)).abs().max() < 5 * (2 / n) ** 0.5
    assert (info["r_hat"] < 1.02).all() and (info["divergent"] == 0).all()


def test_one_weight_and_unknown_noise_agree_with_numerical_integration():
    rng = draw(4)
    x = rng.normal(1, 6, 1)
    y = 0.7 * x + 0.8 * rng.normal(1, 6, 1)
    likelihood = Gaussian(prior_shape=2.0, prior_rate=1.0)
    posterior = HMC(net=Net(nn.Linear(1, 1, bias=False)), likelihood=likelihood, prior_variance=0.5, **LONG)
    state = fitted(posterior, x, y).state

    w, tau = torch.meshgrid(torch.linspace(-3, 4, 1401), torch.linspace(0.005, 15, 3000), indexing="ij")
    w, tau = w.double(), tau.double()
    squares = (y.flatten() - w.unsqueeze(-1) * x.flatten()).square().sum(-1)
    log = (1 + 3) * tau.log() - tau * (1 + squares / 2) - w**2  # Gam(2, 1), six examples, N(0, 1/2)
    p = (log - log.logsumexp((0, 1))).exp()

    def moments(values):
        mean = (p * values).sum()
        return mean, (p * (values - mean) ** 2).sum()

    weights, n = posterior.sample(state, 10**9, draw())[0].flatten(), 2000
    (mean, variance), (mean_tau, variance_tau) = moments(w), moments(tau)
    assert (weights.mean() - mean).abs() < 5 * (variance / n).sqrt()
    assert (weights.var() / variance - 1).abs() < 5 * (2 / n) ** 0.5
    shape, rate = (t[0, 0] for t in state.common.noise)
    assert (shape / rate - mean_tau).abs() < 0.05 * mean_tau
    assert (shape / rate**2 - variance_tau).abs() < 0.15 * variance_tau

    # The noise is large where the weight fits badly.
    (drawn,), drawn_tau = posterior.joint_sample(state, 10**9, draw())
    far, far_drawn = (w - 0.7).square(), (drawn.flatten() - 0.7).square()
    expected = (p * far * tau).sum() - (p * far).sum() * mean_tau
    found = (far_drawn - far_drawn.mean()) * (drawn_tau.flatten() - drawn_tau.mean())
    assert expected < -0.01 and (found.mean() - expected).abs() < 5 * found.std() / n**0.5 < expected.abs()


NETS = {
    "one output": nn.Linear(2, 1),
    "relu": mlp(2, [3], 2),
    "others, no bias": nn.Sequential(
        nn.Linear(2, 3), nn.Tanh(), nn.Sequential(nn.Linear(3, 2, bias=False), nn.SiLU()), nn.Identity(),
        nn.Linear(2, 2), nn.Sigmoid(),
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("module", "likelihood", "copies"),
    [
        ("relu", Categorical(), 1.0),
        ("one output", Bernoulli(), 2.5),
        ("others, no bias", Gaussian(noise_std=0.5), 3.0),
        ("relu", Gaussian(), 3.0),
        ("relu", Heteroscedastic(noise_std=0.5, resolution=(0.6,)), 3.0),
    ],
)
def test_density_is_that_of_the_library(module, likelihood, copies):
    net, rng = Net(NETS[module]), draw(5)
    sampler = _sampler(HMC(net=net, likelihood=likelihood, prior_variance=0.6))
    x, z = rng.normal(1, 5, 2), rng.normal(1, 6, net.weights)
    y = (x[..., 0] > 0).long() if likelihood.discrete else x.sin()[..., : 2 // likelihood.outputs_per_target]
    with sampler.numbers():
        energy = sampler.potential(x[0].numpy(), y[0].numpy(), copies)
        potential = torch.tensor([float(energy(v)) for v in z[0].numpy()], dtype=torch.float64)

    out = net.output(unflatten(z, net.shapes), x)
    if likelihood == Gaussian():  # its precision is integrated out, on a grid
        tau = torch.linspace(0.001, 20, 4001, dtype=torch.float64)
        half = 0.5 * copies * (y - out).square().sum(2).unsqueeze(3)  # [1, 6, O, 1]
        fit = ((6 + 2.5 * copies - 1) * tau.log() - tau * (6 + half)).logsumexp(3).sum(2)
    else:
        noise = torch.full((1, 6, y.shape[-1]), 4.0).double()
        fit = copies * likelihood.log_prob(noise, out, y.unsqueeze(1)).sum(2)
    difference = potential + (fit - z.square().sum(2) / 1.2).flatten()
    assert potential.std() > 0.5 and (difference - difference.mean()).abs().max() < 1e-9


def test_split_r_hat_is_numpyros():
    numpyro_diagnostics = pytest.importorskip("numpyro.diagnostics")
    draws = draw(6).normal(3, 50, 4).cumsum(1)
    expected = [float(numpyro_diagnostics.split_gelman_rubin(d.T.numpy())) for d in draws]
    torch.testing.assert_close(split_r_hat(draws), torch.tensor(expected).double(), rtol=1e-6, atol=0)


def test_samples_are_draws_kept_and_as_many_as_there_are():
    posterior = HMC(net=Net(mlp(2, [3], 1)), likelihood=Gaussian(), epochs=14, warmup=4)
    state = posterior.init(5, 2, draw())
    (first, second), kept = posterior.sample(state, 7, draw()), state.weights
    assert first.shape == (2, 7, 3, 3) and second.shape == (2, 7, 4, 1)
    same = (first.unsqueeze(2) == kept[0].unsqueeze(1)).flatten(3).all(3)  # [R, 7, 40]
    assert (same.sum(2) == 1).all() and same.any(1).sum(1).tolist() == [7, 7]
    assert posterior.sample(state, 41, draw())[0].shape[1] == 40
    weights, tau = posterior.joint_sample(state, 7, draw())
    assert torch.equal(weights[0], first) and tau.shape == (2, 7, 1)


def test_global_precision_stays_as_it_is():
    jax = pytest.importorskip("jax")
    posterior = HMC(net=Net(nn.Linear(2, 1)), likelihood=Gaussian(), epochs=8, warmup=4)
    posterior.init(5, 2, draw())
    assert jax.numpy.ones(1).dtype == "float32"


@pytest.mark.parametrize("module", ["jax", "numpyro.infer.hmc"])
def test_without_the_extra_one_sentence_says_how_to_get_it(monkeypatch, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InputError, match=r"pip install 'explore-bnn\[reference\]'"):
        registry.posterior("hmc", Net(nn.Linear(3, 1)), Gaussian())


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x):
        return x + self.layer(x)


@pytest.mark.parametrize(
    ("module", "said"), [(Residual(), "Residual"), (nn.Sequential(nn.Linear(2, 2), nn.GELU()), "GELU")]
)
def test_a_net_that_it_cannot_translate_is_refused(module, said):
    with pytest.raises(InputError, match=f"Linear, ReLU.* has a {said}"):
        HMC(net=Net(module), likelihood=Gaussian())


def test_settings_that_contradict_the_method_are_refused():
    net = Net(nn.Linear(2, 1))
    with pytest.raises(InputError, match="batch_size is 10; .* at least 20"):
        HMC(net=net, likelihood=Gaussian(), batch_size=10).init(20, 1, draw())
    with pytest.raises(InputError, match="epochs is 100; it must be at least 104"):
        HMC(net=net, likelihood=Gaussian(), epochs=100)


def test_a_likelihood_that_it_does_not_know_is_refused():
    with pytest.raises(InputError, match="Gaussian, Heteroscedastic, Categorical, Bernoulli"):
        HMC(net=Net(nn.Linear(2, 1)), likelihood=Poisson())
