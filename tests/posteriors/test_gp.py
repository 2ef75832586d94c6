import functools
import math

import pytest
import torch

from explore import registry
from explore.core import tree
from explore.core.errors import InputError
from explore.core.rng import Rng
from explore.inference import processes
from explore.inference.predict import Predictor
from explore.learning.fit import last_epoch
from explore.nets.likelihoods import Gaussian, Heteroscedastic, PartialHeteroscedastic
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


def dense(kernel, h, a, b_):
    """The prior covariance of f, one pair of points at a time."""
    *lengths, b, s, _ = h.exp()
    r = torch.stack([torch.stack([((p - q) / torch.stack(lengths)).norm() for q in b_]) for p in a])
    d = math.sqrt(5) * r
    of_r = (-(r**2) / 2).exp() if kernel == "rbf" else (1 + d + d**2 / 3) * (-d).exp()
    return s * of_r + b / len(lengths) * a @ b_.T


def exact(posterior, h, x, y, new, s=0.0):
    """The mean and covariance of f at new points, given one h, one target and log deviations s."""
    noise = posterior._noise(h) * (2 * torch.as_tensor(s)).exp() + gp.JITTER * h[-2].exp()
    of_targets = dense(posterior.kernel, h, x, x) + noise * torch.eye(len(x))
    across = dense(posterior.kernel, h, new, x) @ torch.linalg.inv(of_targets)
    return across @ y, dense(posterior.kernel, h, new, new) - across @ dense(posterior.kernel, h, x, new)


@pytest.mark.parametrize("kernel", ["matern", "rbf"])
@pytest.mark.parametrize("hyperprior", [True, False])
def test_the_evidence_is_a_normal_density_and_its_gradient_that_of_autograd(kernel, hyperprior, monkeypatch):
    monkeypatch.setattr(processes, "HELD", 2 * 15**2)  # in parts of two
    posterior, h, s = build(kernel=kernel, hyperprior=hyperprior), RNG.normal(3, 5), RNG.normal(3, 15)
    monkeypatch.setattr(gp.GP, "_deviation", lambda *_: s.unsqueeze(1))  # of the first target alone
    data = posterior.init(15, 3, RNG)._replace(x=X, y=Y[..., :1])
    value, slope = (t[:, 0, 0] for t in posterior._evidences(h[:, None, None], data))
    for r in range(3):
        free = h[r].clone().requires_grad_()
        diagonal = free[-1].exp() * (2 * s[r]).exp() + gp.JITTER * free[-2].exp()
        of_targets = dense(kernel, free, X[r], X[r]) + diagonal.diag()
        expected = torch.distributions.MultivariateNormal(torch.zeros(15).double(), of_targets).log_prob(Y[r, :, 0])
        if hyperprior:
            mean, deviation = gp.prior(2, X)
            expected = expected - (((free - mean) / deviation) ** 2).sum() / 2
        torch.testing.assert_close(value[r], expected)
        torch.testing.assert_close(slope[r], torch.autograd.grad(expected, free)[0], rtol=1e-5, atol=1e-6)


def mixture(of, h):
    """The mean and covariance of a mixture of Gaussians, one for each h."""
    means, covariances = map(torch.stack, zip(*map(of, h), strict=True))
    between = means - means.mean(0)
    return means.mean(0), covariances.mean(0) + between.T @ between / len(h)


def check_draws(out, mean, covariance):
    torch.testing.assert_close(out.mean(0), mean, rtol=1e-5, atol=1e-5)
    scale = covariance.diagonal().sqrt()
    assert ((out.T.cov() - covariance) / (scale * scale[:, None])).abs().max() < 0.25


@pytest.mark.parametrize(("kernel", "noise", "varies"), [("matern", None, True), ("rbf", 0.2, False)])
def test_drawn_functions_have_the_exact_mean_and_covariance(kernel, noise, varies):
    likelihood, outputs = (Heteroscedastic(spread=0.7), 4) if varies else (Gaussian(noise_std=noise), 2)
    posterior = registry.posterior(
        "gp", Net(mlp(2, [3], outputs)), likelihood, kernel=kernel, draws=3, frequencies=2000
    )
    state = fitted(posterior)
    state.draws[..., -2].clamp_(max=0)  # errors of Fourier features are proportional to s
    predictor = Predictor.sample(posterior, state, 4002, RNG)
    out = predictor.net.output(predictor.layers, NEW)
    assert out.shape == (3, 4002, 7, outputs)
    deviation, x, y = posterior._deviation(state), state.x, state.y  # in the order of a batch
    for r in range(3):
        for m in range(2):
            of = functools.partial(exact, posterior, x=x[r], y=y[r, :, m], new=NEW[r], s=deviation[r, m])
            check_draws(out[r, :, :, m], *mixture(of, state.draws[r, m].double()))
            if not varies:
                continue
            noise_of = [t[r, m].double() for t in state.noise[1:]]

            def of_noise(k, r=r, parts=noise_of):
                h, pull, weight = (part[k] for part in parts)
                across, observed = (dense(kernel, h, at, x[r]) for at in (NEW[r], x[r]))
                inverse = torch.linalg.inv(observed + (1 / weight).diag())
                return across @ pull, dense(kernel, h, NEW[r], NEW[r]) - across @ inverse @ across.T

            check_draws(out[r, :, :, 2 + m], *mixture(of_noise, range(3)))
    precision = predictor.noise.mean(1)
    torch.testing.assert_close(precision, (1 / posterior._noise(state.draws)).mean(2))


def test_a_noise_process_is_at_the_mode_of_its_density():
    x, level, rate = X[0], torch.tensor([0.3]).double(), 1.4
    prior = dense("matern", torch.tensor([0.2, -0.1, -1.0, 0.4, 0.0]).double(), x, x)
    fixed, squares = RNG.uniform(15), RNG.normal(15).square() * (1 + 3 * x[:, 0].square())
    found = processes.noise_mode(prior, squares, fixed, level, rate)
    g = found.mode.clone().requires_grad_()
    deviation = (fixed + level * (rate * g).exp()).sqrt()
    density = torch.distributions.Normal(0.0, deviation).log_prob(squares.sqrt()).sum()
    joint = density + torch.distributions.MultivariateNormal(torch.zeros(15).double(), prior).log_prob(g)
    torch.testing.assert_close(torch.autograd.grad(joint, g)[0], torch.zeros(15).double(), atol=1e-6, rtol=0)
    torch.testing.assert_close(prior @ found.pull, found.mode)
    share = level * (rate * found.mode).exp() / deviation.detach() ** 2
    torch.testing.assert_close(found.weight, (rate * share) ** 2 / 2)
    half = torch.logdet(torch.linalg.inv(prior) + found.weight.diag()) / 2
    laplace = joint.detach() - half + 15 * math.log(2 * math.pi)  # density is without its constant, and so is g's
    torch.testing.assert_close(found.evidence, laplace)
    targets = RNG.normal(15, 2)
    expected = torch.linalg.solve(prior + (1 / found.weight).diag(), targets)
    torch.testing.assert_close(processes.noise_solved(prior, found.weight, targets), expected)


def test_noise_that_depends_on_the_input_is_found_and_no_other():
    rng = Rng(5, dtype=torch.float64)
    x, new = 4 * rng.uniform(2, 150, 2) - 2, 4 * rng.uniform(2, 300, 2) - 2
    for grows in (True, False):
        deviation, at_new = ((0.05 + 0.3 * grows * (t[..., 0] + 2).square() / 4) for t in (x, new))
        y = (x.sum(2).sin() + deviation * rng.normal(2, 150))[..., None]
        posterior = registry.posterior("gp", Net(mlp(2, [3], 2)), Heteroscedastic())
        predictor = Predictor.sample(posterior, fitted(posterior, x, y), 100, rng)
        found = predictor.label_moments(new).noise[..., 0].sqrt()
        assert (found / at_new).log().abs().mean() < 0.25


def test_missing_targets_have_no_influence():
    y = Y.clone()
    y[:, 9:, 1] = math.nan
    posterior = registry.posterior("gp", Net(mlp(2, [3], 4)), PartialHeteroscedastic(), draws=2)
    state = fitted(posterior, X, y)
    out = Predictor.sample(posterior, state, 4, RNG)
    found = out.net.output(out.layers, NEW).mean(1)[..., 1]
    for r in range(3):
        seen = state.missing[r, 1] == 0
        assert seen.sum() == 9
        parts = state.x[r, seen], state.y[r, seen, 1], NEW[r], posterior._deviation(state)[r, 1, seen]
        means = [exact(posterior, h, *parts)[0] for h in state.draws[r, 1].double()]
        torch.testing.assert_close(found[r], torch.stack(means).mean(0), rtol=1e-3, atol=1e-4)
    assert (state.noise.at_examples[:, 1][state.missing[:, 1] > 0].abs() < 2).all()


def test_draws_of_h_follow_its_posterior():
    # One input and few examples: the posterior of h is far from Gaussian.
    x, y = X[:, :6, :1], Y[:, :6, :1]
    posterior = registry.posterior("gp", Net(mlp(1, [3], 1)), Gaussian(), draws=4000)
    state = fitted(posterior, x, y)
    drawn = state.draws[:, 0]
    mean, deviation = gp.prior(1, x)
    grid = torch.cartesian_prod(
        *(m + d * torch.linspace(-3.5, 3.5, 17).double() for m, d in zip(mean, deviation, strict=True))
    )
    for r in range(3):
        data = tree.part(state, slice(r, r + 1))
        weights = posterior._evidences(grid[None, None], data, False)[0][0, 0].softmax(0)
        expected = weights @ grid
        spread = (weights @ (grid - expected).square()).sqrt()
        assert ((drawn[r].mean(0) - expected) / spread).abs().max() < 0.15
        assert (drawn[r].std(0) / spread).log().abs().max() < 0.3


def test_systematic_draws_follow_truncated_weights():
    weights = torch.tensor([[0.0, 3.0, 1.0, 4.0], [1.0, 0.0, 0.0, 1.0]], dtype=torch.float64)
    chosen = processes.resampled(weights.log(), 800, RNG)
    # Two times the mean is 4 and 1: no weight is truncated.
    counts = torch.stack([row.bincount(minlength=4) for row in chosen])
    assert counts.tolist() == [[0, 300, 100, 400], [400, 0, 0, 400]]
    one = processes.resampled(torch.tensor([[0.0, -100.0, -100.0, -100.0]]).double(), 800, RNG)
    assert one.unique().tolist() == [0]


def test_what_it_does_not_support_is_refused_by_name():
    with pytest.raises(InputError, match="at most 2000 examples; got 2001"):
        build().init(2001, 1, RNG)
    with pytest.raises(InputError, match="single solution; leave out members"):
        build(members=2)
    missing = Y.clone()
    missing[0, 0, 0] = math.nan
    assert not fitted(build(epochs=2), X, missing).common.alive[0]
