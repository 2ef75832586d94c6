"""The information gain of a Gaussian posterior against the KL of an explicit step."""

import pytest
import torch

from explore import registry
from explore.core.rng import Rng
from explore.core.shapes import Batch
from explore.nets.likelihoods import Gaussian
from explore.nets.net import Net, mlp
from tests import oracles
from tests.oracles import kronecker_directions, squared_projection

MODULE = mlp(2, [3], 2).double()
NET = Net(MODULE)
LIKELIHOOD = Gaussian(noise_std=0.5)
SAMPLES = 4


def project(directions):
    """How the precision moves along D: each layer's block, projected on what that layer's block can change by."""

    def change(state, precision, d, rho, gamma):
        found, start = torch.zeros_like(precision), 0
        for layer, (i, o) in enumerate(NET.shapes):
            part = slice(start, start := start + i * o)
            found[part, part] = squared_projection(
                d[part, part], precision[part, part], directions(state, layer, gamma)
            )[1]
        return rho * found

    return change


@project
def split(state, layer, gamma):
    """Changes of A and S under the papers' damping, which is rebuilt here from the moments."""
    a, s = (m[0] for m in state.statistics[layer])
    pi = (a.diagonal().mean() / s.diagonal().mean()).sqrt()
    return kronecker_directions(a + pi * gamma**0.5 * torch.eye(len(a)), s + gamma**0.5 / pi * torch.eye(len(s)))


@project
def eigen(state, layer, gamma):
    """Changes of the eigenvalues in the eigenbasis of A (x) S."""
    moments = getattr(state.statistics[layer], "moments", state.statistics[layer])
    basis = torch.kron(*(torch.linalg.eigh(m[0])[1].contiguous() for m in moments))
    return torch.einsum("iv,jv->vij", basis, basis)


@project
def diagonal(state, layer, gamma):
    return torch.diag_embed(torch.eye(state.mean[layer][0].numel(), dtype=torch.float64))


def everything(state, precision, d, rho, gamma):
    return rho * d


def low_rank(state, precision, d, rho, gamma):
    """SLANG's own step: the leading eigenpairs stay, the diagonal takes what they leave."""
    u = oracles.flat(state.precision.columns)[0]
    x = u.T @ u + rho * d
    values, vectors = torch.linalg.eigh(x)
    leading = (vectors[:, -len(u) :] * values[-len(u) :]) @ vectors[:, -len(u) :].T
    return leading + (x - leading).diagonal().diag() - u.T @ u


@pytest.mark.parametrize(
    ("name", "settings", "change", "rho"),
    [
        ("noisy-kfac", {"beta": 0.1, "damped_density": True}, split, 1e-3),
        ("noisy-kfac", {"beta": 0.1}, eigen, 1e-3),
        ("noisy-kfac", {"beta": 0.1, "damping": "exact", "predictive": "linearised"}, eigen, 1e-3),
        ("noisy-ekfac", {"beta": 0.1, "omega": 0.2, "basis_interval": 1}, eigen, 1e-3),
        ("block-tridiagonal", {"beta": 0.1}, everything, 1e-3),
        ("full", {"beta": 0.1}, everything, 1e-3),
        ("slang", {"beta": 0.1, "rank": 3}, low_rank, 1e-2),
        ("bbb", {"initial_std": 0.1}, diagonal, 1e-2),
        ("noisy-adam", {"beta": 0.1}, diagonal, 1e-3),
        ("vogn", {"beta2": 0.1, "damping": 0.1, "prior_variance": 1.0}, diagonal, 1.0),
    ],
)
def test_gain_is_the_kl_after_one_step_on_one_example(name, settings, change, rho):
    cls = registry.find("posteriors", name)
    rng = Rng(0, dtype=torch.float64)
    x, y = rng.normal(1, 8, 2), rng.normal(1, 8, 2)
    settings = {"predictive": "sampled"} | settings
    posterior = cls(net=NET, likelihood=LIKELIHOOD, gain_samples=SAMPLES, **settings)
    state = posterior.init(8, 1, rng)
    for _ in range(10):
        state, _ = posterior.update(state, Batch(x, y), rng)

    # Gradients of every example at the very weights that `gain` uses.
    weights = posterior.sample(state, SAMPLES, Rng(1, dtype=torch.float64))
    if posterior.linearises:
        weights = posterior.at_mean(state)
    score = (y.unsqueeze(1) - oracles.run(MODULE, weights, x)) / 0.25
    g = torch.einsum("rsbo,rsbow->rsbw", score, oracles.jacobians(MODULE, weights, x, NET.shapes))[0]

    mean, covariance = (t[0] for t in oracles.implied_gaussian(posterior, state))
    precision = torch.linalg.inv(covariance)
    gamma = posterior.kl_weight / (8 * posterior.prior_variance)

    def excess(rho):
        """How far the KL of the explicit steps is from the gain, relative to it, [B]."""
        found = []
        for b in range(g.shape[1]):
            d = g[:, b].T @ g[:, b] / len(g)
            moved = precision + change(state, precision, d, rho, gamma)
            new = mean + rho * covariance @ g[:, b].mean(0), torch.linalg.inv(moved)
            found.append(oracles.kl(*new, mean, covariance))
        own = cls(net=NET, likelihood=LIKELIHOOD, gain_samples=SAMPLES, gain_step=rho, **settings)
        gain = own.gain(state, Batch(x, y), Rng(1, dtype=torch.float64))[0]
        return torch.stack(found) / gain - 1

    coarse, fine = excess(rho), excess(rho / 10)
    assert coarse.abs().max() > 1e-3 and fine.abs().max() < 5e-3
    # What is left is of third order in rho, so relative to the gain it falls as rho.
    torch.testing.assert_close(fine, coarse / 10, rtol=0.1, atol=1e-6)
