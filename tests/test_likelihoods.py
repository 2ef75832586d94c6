"""The built-in likelihoods against torch.distributions; what each likelihood owes is in tests/contracts."""

import math

import pytest
import torch
from torch import distributions as D

from explore import registry
from explore.core.errors import InputError
from explore.core.rng import Rng
from explore.core.shapes import Batch
from explore.nets.likelihoods import Bernoulli, Categorical, Gamma, Gaussian, PartialGaussian, check_logits
from explore.nets.net import Net, mlp
from tests.oracles import finite_difference

R, S, B, O = 2, 3, 5, 3  # noqa: E741
RNG = Rng(0, dtype=torch.float64)
TAU = 0.5 + RNG.uniform(R, S, O) * torch.tensor([1.0, 50.0, 3.0])
OUT = {
    Gaussian(): RNG.normal(R, S, B, O),
    Categorical(): 2 * RNG.normal(R, S, B, 3),
    Bernoulli(): 2 * RNG.normal(R, S, B, 1),
}
PHI = Gamma(
    torch.tensor([[6.0, 20.0, 3.0], [50.0, 6.0, 9.0]]).double(),
    torch.tensor([[6.0, 11.0, 0.1], [3.0, 100.0, 9.0]]).double(),
)
every = pytest.mark.parametrize("likelihood", OUT, ids=lambda x: type(x).__name__)


def noise(likelihood):
    return TAU if isinstance(likelihood, Gaussian) else None


def distribution(likelihood, out):
    if isinstance(likelihood, Gaussian):
        return D.Independent(D.Normal(out, TAU.unsqueeze(2).rsqrt()), 1)
    return D.Categorical(logits=out) if isinstance(likelihood, Categorical) else D.Bernoulli(logits=out.squeeze(-1))


def targets(likelihood, samples=S):
    """Data targets (samples=1) or one for each weight sample."""
    return likelihood.sample(noise(likelihood), OUT[likelihood], Rng(5, dtype=torch.float64))[:, :samples]


def close(actual, expected, rtol=1e-8):
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=1e-12)


@every
@pytest.mark.parametrize("samples", [1, S])
def test_log_prob(likelihood, samples):
    y, out = targets(likelihood, samples), OUT[likelihood]
    expected = distribution(likelihood, out).log_prob(y.to(out) if isinstance(likelihood, Bernoulli) else y)
    close(likelihood.log_prob(noise(likelihood), out, y), expected)


@every
@pytest.mark.parametrize("samples", [1, S])
def test_score_is_the_gradient_of_log_prob(likelihood, samples):
    y, out = targets(likelihood, samples), OUT[likelihood].clone().requires_grad_()
    (expected,) = torch.autograd.grad(likelihood.log_prob(noise(likelihood), out, y).sum(), out)
    close(likelihood.score(noise(likelihood), out.detach(), y), expected)


@every
def test_fisher_root_squares_to_the_expected_curvature(likelihood):
    """Natural parameters or a mean with known variance: the negative Hessian does not depend on the target."""
    out, root = OUT[likelihood], likelihood.fisher_root(noise(likelihood), OUT[likelihood])
    if isinstance(likelihood, Categorical):  # the targets it may meet, weighted by their probabilities, say the same
        classes = torch.arange(3).view(3, 1, 1, 1).expand(3, R, S, B)
        score = torch.stack([likelihood.score(None, out, y) for y in classes])
        expected = torch.einsum("krsbo,krsbp,krsb->rsbop", score, score, out.softmax(-1).movedim(-1, 0))
    else:
        y = targets(likelihood)
        flat = out.reshape(-1, out.shape[-1])

        def log_prob(rows):
            return likelihood.log_prob(noise(likelihood), rows.view_as(out), y).sum()

        hessian = torch.autograd.functional.hessian(log_prob, flat)
        expected = -torch.einsum("nonp->nop", hessian).view(R, S, B, out.shape[-1], out.shape[-1])
    close(torch.einsum("krsbo,krsbp->rsbop", root, root), expected)


@pytest.mark.parametrize("likelihood", [Categorical(), Bernoulli()])
def test_without_noise_there_is_nothing_to_learn(likelihood):
    phi = likelihood.init(O, R, RNG)
    assert likelihood.sample_noise(phi, S, RNG) is None and likelihood.expected(phi) is None
    assert torch.equal(likelihood.kl(phi), torch.zeros(R, dtype=torch.float64))
    assert likelihood.update(phi, OUT[likelihood], targets(likelihood), 9.0, 1.0) is phi


def test_rare_classes_are_sampled_within_range():
    out = torch.tensor([[[[0.0, -1e4, 0.0]]]]).expand(1, 1, 20000, 3)
    y = Categorical().sample(None, out, Rng(0))
    assert y.unique().tolist() == [0, 2]


# Noise precisions of the Gaussian --------------------------------------------------------------------------


def test_known_noise():
    likelihood = Gaussian(noise_std=0.2)
    phi = likelihood.init(O, R, RNG)
    close(likelihood.sample_noise(phi, S, RNG), torch.full((R, S, O), 25.0, dtype=torch.float64))
    close(likelihood.expected(phi), torch.full((R, 1, O), 25.0, dtype=torch.float64))
    assert likelihood.kl(phi).tolist() == [0, 0]
    assert likelihood.update(phi, OUT[Gaussian()], targets(Gaussian()), 9.0, 1.0) is phi


def test_drawn_precisions_follow_their_gamma():
    likelihood, n = Gaussian(), 20000
    tau = likelihood.sample_noise(PHI, n, Rng(0, dtype=torch.float64))
    mean, std = PHI.shape / PHI.rate, PHI.shape.sqrt() / PHI.rate
    assert ((tau.mean(1) - mean) / std).abs().max() < 5 / n**0.5
    assert (tau.std(1) / std - 1).abs().max() < 0.05  # kurtosis of a Gamma(3): standard error 0.9 %
    correlation = torch.stack([torch.corrcoef(t.T) for t in tau]) - torch.eye(O)
    assert correlation.abs().max() < 5 / n**0.5
    close(likelihood.expected(PHI), mean.unsqueeze(1))


def test_kl_of_the_precisions():
    prior = D.Gamma(torch.tensor(4.0).double(), torch.tensor(3.0).double())
    likelihood = Gaussian(prior_shape=4.0, prior_rate=3.0)
    close(likelihood.kl(PHI), D.kl_divergence(D.Gamma(*PHI), prior).sum(1))
    close(likelihood.kl(likelihood.init(O, R, RNG)), torch.zeros(R, dtype=torch.float64))


@pytest.mark.parametrize("kl_weight", [1.0, 0.4, torch.tensor([1.0, 0.4]).double()])
def test_update_settles_where_the_bound_is_largest(kl_weight):
    """Each output at the Gamma distribution of its own residuals."""
    likelihood, n = Gaussian(rate=0.5), 40.0
    out, y = OUT[Gaussian()], targets(Gaussian(), 1)
    phi = likelihood.init(O, R, RNG)
    for _ in range(60):  # what is left of the start: 2^-60
        phi = likelihood.update(phi, out, y, n, kl_weight)
    weight = torch.as_tensor(kl_weight, dtype=torch.float64).expand(R)
    squares = (y - out).square().mean((1, 2))  # [R, O]
    close(phi.shape, (6 + n / (2 * weight)).unsqueeze(1).expand(R, O))
    close(phi.rate, 6 + n / (2 * weight.unsqueeze(1)) * squares)

    def bound(log_phi):
        q = Gamma(*log_phi.exp())
        e_log, e_tau = torch.digamma(q.shape) - q.rate.log(), q.shape / q.rate
        fit = 0.5 * n * (e_log - math.log(2 * math.pi) - e_tau * squares).sum(1)
        return (fit - weight * likelihood.kl(q)).sum()

    best = torch.stack(tuple(phi)).log()
    slope = finite_difference(bound, best, 1e-5)
    assert slope.abs().max() < 1e-5
    beside = best + torch.tensor([0.0, 0.1]).view(2, 1, 1)
    assert finite_difference(bound, beside, 1e-5).abs().max() > 1


def test_one_update_moves_by_its_rate():
    likelihood, slow = Gaussian(rate=1.0), Gaussian(rate=0.1)
    phi, out, y = likelihood.init(O, R, RNG), OUT[Gaussian()], targets(Gaussian(), 1)
    target = likelihood.update(phi, out, y, 40.0, 1.0)
    close(
        tuple(slow.update(phi, out, y, 40.0, 1.0)), tuple(0.9 * p + 0.1 * t for p, t in zip(phi, target, strict=True))
    )


@pytest.mark.parametrize(
    "settings",
    [{"noise_std": 0.0}, {"noise_std": -1.0}, {"prior_shape": 0.5}, {"prior_rate": 0.0}, {"rate": 0.0}, {"rate": 1.5}],
)
def test_settings_are_checked(settings):
    with pytest.raises(InputError, match=f"likelihood.{next(iter(settings))}|prior_shape, prior_rate"):
        Gaussian(**settings)


class TestPartialGaussian:
    """Targets that are NaN are as if the likelihood had no factor for them."""

    OUT = RNG.normal(R, S, B, 3)
    Y = RNG.normal(R, 1, B, 3)
    GONE = RNG.uniform(R, 1, B, 3) < 0.4
    SEEN = torch.where(GONE, torch.nan, Y)

    def test_log_prob_and_score(self):
        partial = PartialGaussian()
        each = D.Normal(self.OUT, TAU.unsqueeze(2).rsqrt()).log_prob(self.Y)
        close(partial.log_prob(TAU, self.OUT, self.SEEN), each.masked_fill(self.GONE, 0).sum(-1))
        free = self.OUT.clone().requires_grad_()
        (expected,) = torch.autograd.grad(partial.log_prob(TAU, free, self.SEEN).sum(), free)
        assert expected.isfinite().all()
        close(partial.score(TAU, self.OUT, self.SEEN), expected)

    def test_all_measured_is_gaussian(self):
        partial, gaussian, phi = PartialGaussian(), Gaussian(), Gaussian().init(O, R, RNG)
        for name in ("log_prob", "score"):
            close(getattr(partial, name)(TAU, self.OUT, self.Y), getattr(gaussian, name)(TAU, self.OUT, self.Y))
        both = (likelihood.update(phi, self.OUT, self.Y, 40.0, 0.5) for likelihood in (partial, gaussian))
        for mine, other in zip(*both, strict=True):
            close(mine, other)

    @pytest.mark.parametrize("kl_weight", [0.5, torch.tensor([0.5, 2.0], dtype=torch.float64)])
    def test_noise_is_learnt_from_what_is_measured(self, kl_weight):
        """At rate 1 q(tau) of an output is the optimum: a0 + n / (2 lambda) and b0 + E sum r^2 / (2 lambda).

        n are the examples of which it is measured.
        """
        partial = PartialGaussian(prior_shape=2.0, prior_rate=3.0, rate=1.0)
        phi = partial.update(partial.init(O, R, RNG), self.OUT, self.SEEN, float(B), kl_weight)
        measured = (~self.GONE).sum((1, 2)).double()
        squares = (self.Y - self.OUT).square().masked_fill(self.GONE, 0).sum(2).mean(1)
        weight = kl_weight.unsqueeze(1) if isinstance(kl_weight, torch.Tensor) else kl_weight
        close(phi.shape, 2 + measured / (2 * weight))
        close(phi.rate, 3 + squares / (2 * weight))
        known = PartialGaussian(noise_std=0.5)
        phi = known.init(O, R, RNG)
        assert known.update(phi, self.OUT, self.SEEN, 5.0, kl_weight) is phi


def updated(y, fisher):
    """A linear net of three outputs after one update that is Newton's step, and so exact; its inputs and settings."""
    x, std, eta = Rng(3, dtype=torch.float64).normal(1, 40, 2), 0.5, 2.0
    posterior = registry.posterior(
        "full", Net(mlp(2, [], 3)), PartialGaussian(noise_std=std), fisher=fisher, prior_variance=eta, kl_weight=1.0,
        beta=1.0, lr=1.0, momentum=0.0, weight_noise=False, adaptive_damping=False, statistics_interval=1,
        factor_interval=1, extrinsic_damping=0.0, kl_clip=None, trust_region=None,
    )  # fmt: skip
    rng = Rng(0, dtype=torch.float64)
    state, _ = posterior.update(posterior.init(40, 1, rng), Batch(x, y), rng)
    (mean,), factor, scale = posterior.gaussian(state)
    return mean[0], scale * factor.variance()[0][0], torch.cat([x[0], torch.ones(40, 1).double()], 1), std, eta


def test_a_posterior_of_partly_measured_targets_is_the_exact_one():
    """Each output sees its own rows only: dense Bayesian linear regression."""
    rng = Rng(4, dtype=torch.float64)
    y = rng.normal(1, 40, 3)
    y[0, rng.uniform(40, 3) < torch.tensor([0.0, 0.3, 0.7], dtype=torch.float64)] = torch.nan
    mean, variance, design, std, eta = updated(y, "exact")
    for o in range(3):
        there = ~y[0, :, o].isnan()
        a = design[there]
        covariance = (a.mT @ a / std**2 + torch.eye(3, dtype=torch.float64) / eta).inverse()
        close(mean[:, o], covariance @ a.mT @ y[0, there, o] / std**2)
        close(variance[:, o], covariance.diagonal())


@pytest.mark.parametrize("fisher", ["exact", "true", "empirical"])
def test_an_output_without_a_target_keeps_its_prior(fisher):
    y = Rng(4, dtype=torch.float64).normal(1, 40, 3)
    y[..., 1] = torch.nan
    mean, variance, _, _, eta = updated(y, fisher)
    close(variance[:, 1], torch.full((3,), eta, dtype=torch.float64))
    assert mean[:, 1].abs().max() < 1e-12 and (variance[:, [0, 2]] < 0.5 * eta).all()


@pytest.mark.parametrize(
    ("likelihood", "out", "said"),
    [
        (Categorical(), torch.full((1, 1, 4, 3), 1 / 3), "softmax"),
        (Bernoulli(), torch.full((1, 1, 4, 1), 0.5), "sigmoid"),
    ],
)
def test_outputs_that_are_probabilities_are_refused(likelihood, out, said):
    kind = type(likelihood).__name__
    with pytest.raises(InputError, match=f"but {kind} expects logits; remove the final {said}"):
        check_logits(likelihood, out)
    check_logits(likelihood, 2 * out)
    check_logits(Gaussian(), out)
