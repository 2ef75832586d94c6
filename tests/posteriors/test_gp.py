import math

import pytest
import torch

from explore import registry
from explore.core.errors import InputError
from explore.core.rng import Rng
from explore.inference.predict import Predictor
from explore.learning.fit import last_epoch
from explore.nets.likelihoods import Gaussian
from explore.nets.net import Net, mlp
from explore.posteriors import gp

RNG = Rng(3, dtype=torch.float64)
X = RNG.normal(3, 15, 2)
Y = torch.stack([X.sum(2).sin(), X.prod(2)], 2) + 0.1 * RNG.normal(3, 15, 2)
NEW = 2 * RNG.normal(3, 7, 2)


def build(likelihood=None, **settings):
    return registry.posterior("gp", Net(mlp(2, [3], 2)), likelihood or Gaussian(), **settings)


def fitted(posterior, x=X, y=Y):
    return last_epoch(posterior, x, y, Rng(0, dtype=torch.float64)).state


def dense(kernel, h, a, b):
    """The prior covariance of f, one pair of points at a time."""
    *lengths, s, _ = h.exp()
    r = torch.stack([torch.stack([((p - q) / torch.stack(lengths)).norm() for q in b]) for p in a])
    d = math.sqrt(5) * r
    return s * ((-(r**2) / 2).exp() if kernel == "rbf" else (1 + d + d**2 / 3) * (-d).exp())


def exact(posterior, h, x, y, new):
    """The mean and covariance of f at new points, given one h and one target."""
    noise = posterior._noise(h) + gp.JITTER * h[-2].exp()
    of_targets = dense(posterior.kernel, h, x, x) + noise * torch.eye(len(x))
    across = dense(posterior.kernel, h, new, x) @ torch.linalg.inv(of_targets)
    return across @ y, dense(posterior.kernel, h, new, new) - across @ dense(posterior.kernel, h, x, new)


@pytest.mark.parametrize("kernel", ["matern", "rbf"])
@pytest.mark.parametrize("hyperprior", [True, False])
def test_the_evidence_is_a_normal_density_and_its_gradient_that_of_autograd(kernel, hyperprior, monkeypatch):
    monkeypatch.setattr(gp, "HELD", 2 * 15**2)  # in parts of two
    posterior, h = build(kernel=kernel, hyperprior=hyperprior), RNG.normal(3, 4)
    value, slope = posterior._evidence(h, X, Y[..., 0])
    for r in range(3):
        free = h[r].clone().requires_grad_()
        of_targets = dense(kernel, free, X[r], X[r]) + (free[-1].exp() + gp.JITTER * free[-2].exp()) * torch.eye(15)
        expected = torch.distributions.MultivariateNormal(torch.zeros(15).double(), of_targets).log_prob(Y[r, :, 0])
        if hyperprior:
            mean, deviation = gp.prior(2, X)
            expected = expected - (((free - mean) / deviation) ** 2).sum() / 2
        torch.testing.assert_close(value[r], expected)
        torch.testing.assert_close(slope[r], torch.autograd.grad(expected, free)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("kernel", "noise"), [("matern", None), ("rbf", 0.2)])
def test_drawn_functions_have_the_exact_mean_and_covariance(kernel, noise):
    posterior = build(Gaussian(noise_std=noise), kernel=kernel, draws=3)
    state = fitted(posterior)
    predictor = Predictor.sample(posterior, state, 4002, RNG)
    out = predictor.net.output(predictor.layers, NEW)
    assert out.shape == (3, 4002, 7, 2)
    for r in range(3):
        for m in range(2):
            h = state.draws[r, m].double()
            means, covariances = zip(*(exact(posterior, one, X[r], Y[r, :, m], NEW[r]) for one in h), strict=True)
            mean = torch.stack(means).mean(0)
            between = torch.stack(means) - mean
            expected = torch.stack(covariances).mean(0) + between.T @ between / 3
            torch.testing.assert_close(out[r, :, :, m].mean(0), mean, rtol=1e-6, atol=1e-6)
            scale = expected.diagonal().sqrt()
            error = (out[r, :, :, m].T.cov() - expected) / (scale * scale[:, None])
            assert error.abs().max() < 0.25
    precision = predictor.noise.mean(1)
    torch.testing.assert_close(precision, (1 / posterior._noise(state.draws)).mean(2))


def test_draws_of_h_follow_its_posterior():
    # One input and few examples: the posterior of h is far from Gaussian.
    x, y = X[:, :6, :1], Y[:, :6, :1]
    posterior = registry.posterior("gp", Net(mlp(1, [3], 1)), Gaussian(), draws=4000)
    drawn = fitted(posterior, x, y).draws[:, 0]
    mean, deviation = gp.prior(1, x)
    grid = torch.cartesian_prod(
        *(m + d * torch.linspace(-3.5, 3.5, 25).double() for m, d in zip(mean, deviation, strict=True))
    )
    for r in range(3):
        each = (grid, *(t[r : r + 1].double().expand(len(grid), *t.shape[1:]) for t in (x, y[..., 0])))
        weights = posterior._evidence(*each, False)[0].softmax(0)
        expected = weights @ grid
        spread = (weights @ (grid - expected).square()).sqrt()
        assert ((drawn[r].mean(0) - expected) / spread).abs().max() < 0.15
        assert (drawn[r].std(0) / spread).log().abs().max() < 0.3


def test_systematic_draws_follow_truncated_weights():
    weights = torch.tensor([[0.0, 3.0, 1.0, 4.0], [1.0, 0.0, 0.0, 1.0]], dtype=torch.float64)
    chosen = gp.resampled(weights.log(), 800, RNG)
    # Two times the mean is 4 and 1: no weight is truncated.
    counts = torch.stack([row.bincount(minlength=4) for row in chosen])
    assert counts.tolist() == [[0, 300, 100, 400], [400, 0, 0, 400]]
    one = gp.resampled(torch.tensor([[0.0, -100.0, -100.0, -100.0]]).double(), 800, RNG)
    assert one.unique().tolist() == [0]


def test_what_it_does_not_support_is_refused_by_name():
    with pytest.raises(InputError, match="at most 2000 examples; got 2001"):
        build().init(2001, 1, RNG)
    with pytest.raises(InputError, match="single solution; leave out members"):
        build(members=2)
    missing = Y.clone()
    missing[0, 0, 0] = math.nan
    assert not fitted(build(epochs=2), X, missing).common.alive[0]
