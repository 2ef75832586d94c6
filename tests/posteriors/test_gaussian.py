"""The information gain of a Gaussian posterior against the KL of an explicit step."""

import pytest
import torch

from explore.likelihoods import Gaussian
from explore.nets import Net, mlp
from explore.posteriors.bbb import BBB
from explore.posteriors.noisy_kfac import NoisyKFAC
from explore.rng import Rng
from explore.shapes import Batch
from tests import oracles

MODULE = mlp(2, [3], 2).double()
NET = Net(MODULE)
LIKELIHOOD = Gaussian(noise_std=0.5)
SAMPLES = 4


def split_directions(state, layer, gamma):
    """Changes of A and S under the papers' damping, which is rebuilt here from the moments."""
    a, s = (m[0] for m in state.statistics[layer])
    pi = (a.diagonal().mean() / s.diagonal().mean()).sqrt()
    return oracles.kronecker_directions(
        a + pi * gamma**0.5 * torch.eye(len(a)), s + gamma**0.5 / pi * torch.eye(len(s))
    )


def eigen_directions(state, layer, gamma):
    """Changes of the eigenvalues in the eigenbasis of A (x) S."""
    basis = torch.kron(*(torch.linalg.eigh(m[0])[1].contiguous() for m in state.statistics[layer]))
    return torch.einsum("iv,jv->vij", basis, basis)


def diagonal_directions(state, layer, gamma):
    return torch.diag_embed(torch.eye(state.mean[layer][0].numel(), dtype=torch.float64))


@pytest.mark.parametrize(
    ("cls", "settings", "directions", "rho"),
    [
        (NoisyKFAC, {"beta": 0.1}, split_directions, 1e-3),
        (NoisyKFAC, {"beta": 0.1, "damping": "exact"}, eigen_directions, 1e-3),
        (BBB, {"initial_std": 0.1}, diagonal_directions, 1e-2),
    ],
    ids=["split", "exact", "diagonal"],
)
def test_gain_is_the_kl_after_one_step_on_one_example(cls, settings, directions, rho):
    rng = Rng(0, dtype=torch.float64)
    x, y = rng.normal(1, 8, 2), rng.normal(1, 8, 2)
    posterior = cls(net=NET, likelihood=LIKELIHOOD, gain_samples=SAMPLES, **settings)
    state = posterior.init(8, 1, rng)
    for _ in range(10):
        state, _ = posterior.update(state, Batch(x, y), rng)

    # Gradients of every example at the very samples that `gain` draws.
    weights = posterior.sample(state, SAMPLES, Rng(1, dtype=torch.float64))
    score = (y.unsqueeze(1) - oracles.run(MODULE, weights, x)) / 0.25
    g = torch.einsum("rsbo,rsbow->rsbw", score, oracles.jacobians(MODULE, weights, x, NET.shapes))[0]

    mean, covariance = (t[0] for t in oracles.implied_gaussian(posterior, state, 1))
    precision = torch.linalg.inv(covariance)
    gamma = posterior.kl_weight / (8 * posterior.prior_variance)

    def excess(rho):
        """How far the KL of the explicit steps is from the gain, relative to it, [B]."""
        found = []
        for b in range(g.shape[1]):
            change, start = torch.zeros_like(precision), 0
            for layer, (i, o) in enumerate(NET.shapes):
                part = slice(start, start := start + i * o)
                d = g[:, b, part].T @ g[:, b, part] / SAMPLES
                change[part, part] = oracles.squared_projection(
                    d, precision[part, part], directions(state, layer, gamma)
                )[1]
            new = mean + rho * covariance @ g[:, b].mean(0), torch.linalg.inv(precision + rho * change)
            found.append(oracles.kl(*new, mean, covariance))
        own = cls(net=NET, likelihood=LIKELIHOOD, gain_samples=SAMPLES, gain_step=rho, **settings)
        gain = own.gain(state, Batch(x, y), Rng(1, dtype=torch.float64))[0]
        return torch.stack(found) / gain - 1

    coarse, fine = excess(rho), excess(rho / 10)
    assert coarse.abs().max() > 1e-3 and fine.abs().max() < 1e-3
    # What is left is of third order in rho, so relative to the gain it falls as rho.
    torch.testing.assert_close(fine, coarse / 10, rtol=0.1, atol=1e-6)
