"""Kronecker factors of layers at several positions against the dense Fisher matrix, and the posteriors made of them."""

import pytest
import torch
from torch import nn

from explore import registry
from explore.core.rng import Rng
from explore.core.shapes import Batch, LayerTaps
from explore.inference.structures.kronecker import KroneckerRule, correlation
from explore.inference.updates.steps import Pass, fisher_taps
from explore.nets.likelihoods import Gaussian
from explore.nets.net import Net
from explore.testing.oracles import Matched
from explore.testing.subject import train
from tests import oracles
from tests.pooled import Pooled

R, B, T = 2, 7, 5


class Tokens(nn.Module):
    """Two layers without activation, applied to each token, and how tokens meet."""

    def __init__(self, meet):
        super().__init__()
        self.into, self.out, self.meet = nn.Linear(4, 3), nn.Linear(3, 3), meet

    def forward(self, x):
        return self.meet(self.out(self.into(x)))


class Pixels(nn.Module):
    """A convolution and the mean over its pixels."""

    def __init__(self):
        super().__init__()
        self.into, self.out = nn.Conv2d(2, 5, (3, 2), (2, 1), (1, 2)), nn.Linear(5, 3)

    def forward(self, x):
        return self.out(self.into(x).mean((2, 3)))


MEETINGS = {  # how tokens meet, the correlation of their gradients, and which factors are exact
    "averaged": (lambda h: h.mean(1), 1.0, {"auto", "reduce"}),
    "apart": (lambda h: h.flatten(1), 0.0, {"auto", "expand"}),
    "both": (lambda h: torch.cat([h.flatten(1), h.sum(1)], 1), 0.5, {"auto"}),
    "centred": (lambda h: (h - h.mean(1, keepdim=True)).flatten(1), -1 / (T - 1), {"auto"}),
}


def blocks(module, x):
    """Of each layer the taps of the exact Fisher matrix, and its block of that matrix written out."""
    net, likelihood, rng = Net(module), Gaussian(noise_std=0.5), Rng(0, dtype=torch.float64)
    layers = net.glorot(R, rng, 1)
    out, pullback = net.forward(layers, x)
    noise = likelihood.sample_noise(likelihood.init(out.shape[-1], R, rng), 1, rng)
    taps = fisher_taps("exact", likelihood, Pass(noise, out, out, out, LayerTaps(), pullback), rng)
    jacobian = oracles.jacobians(module.double(), layers, x, net.shapes)[:, 0]
    fisher = 4 * torch.einsum("rbov,rbow->rvw", jacobian, jacobian) / B
    ends = torch.tensor([i * o for i, o in net.shapes]).cumsum(0).tolist()
    parts = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
    return list(taps), [fisher[:, part, part] for part in parts]


def product(taps, sharing):
    """A (x) S."""
    rule, (inputs, outputs) = KroneckerRule(1.0, weight_sharing=sharing), taps.shape
    moments = rule.observe(rule.init(inputs, outputs, R, Rng(1, dtype=torch.float64)), taps, 1.0, 1)
    return torch.stack([torch.kron(a, s) for a, s in zip(*moments, strict=True)])


def check(taps, block, exact):
    for sharing in ("auto", "expand", "reduce"):
        difference = (product(taps, sharing) - block).abs().amax() / block.abs().amax()
        assert difference < 1e-10 if sharing in exact else difference > 0.1, sharing


@pytest.mark.parametrize("meeting", MEETINGS)
def test_factors_of_a_linear_net_at_tokens_are_its_fisher_matrix(meeting):
    meet, c, exact = MEETINGS[meeting]
    x = Rng(2, dtype=torch.float64).normal(R, B, T, 4) + 0.5
    for taps, block in zip(*blocks(Tokens(meet), x), strict=True):
        torch.testing.assert_close(correlation(taps.grads), torch.full((R,), c).double(), rtol=1e-10, atol=1e-12)
        check(taps, block, exact)


def test_factors_of_a_convolution_whose_pixels_are_averaged_are_its_fisher_matrix():
    x = Rng(2, dtype=torch.float64).normal(R, B, 2, 6, 5) + 0.5
    (taps, _), (block, _) = blocks(Pixels(), x)
    assert taps.grads.shape[3] == 24  # positions
    torch.testing.assert_close(taps.mean_inputs(), taps.inputs.mean(3), rtol=1e-10, atol=1e-12)
    check(taps, block, {"auto", "reduce"})


def test_a_layer_without_gradients_has_no_correlation():
    assert torch.equal(correlation(torch.zeros(2, 1, 3, 4, 5)), torch.zeros(2))


@pytest.mark.parametrize(("name", "images"), [("noisy-kfac", True), ("noisy-ekfac", False)])
def test_a_layer_whose_positions_are_averaged_is_regression_on_the_mean_input(name, images):
    rng = Matched(3, dtype=torch.float64)
    module = Pooled(nn.Conv2d(2, 3, (2, 1), (1, 2), (1, 0)) if images else nn.Linear(4, 3))
    x, y = rng.normal(R, 12, *((2, 4, 3) if images else (T, 4))) + 0.5, rng.normal(R, 12, 3)
    means = x.mean(2)
    if images:
        means = nn.functional.unfold(x.flatten(0, 1), (2, 1), 1, (1, 0), (1, 2)).mean(2).unflatten(0, (R, 12))
    mean, covariance = oracles.ridge(means, y, 0.5, 0.8)

    settings = {"lr": 0.2, "beta": 0.05, "fisher": "exact", "prior_variance": 0.8}
    settings |= {"damping": "exact"} if name == "noisy-kfac" else {"omega": 0.05}
    posterior = registry.posterior(name, Net(module), Gaussian(noise_std=0.5), "plain", **settings)
    state = train(posterior, posterior.init(12, R, rng), Batch(x, y), rng, 400)
    found, variance = posterior.gaussian(state)[0][0], posterior.gaussian(state)[1].variance()[0] / 12
    torch.testing.assert_close(found, mean, rtol=1e-5, atol=1e-8)
    torch.testing.assert_close(
        variance, covariance.diagonal(dim1=1, dim2=2).unsqueeze(2).expand_as(variance), rtol=1e-5, atol=0
    )
