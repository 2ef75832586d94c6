"""Requirements on likelihoods: their parts agree with each other and with their samples."""

from __future__ import annotations

import dataclasses
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from explore.core import tree
from explore.core.errors import InputError
from explore.core.rng import Rng
from explore.nets import protocols
from explore.testing.suite import Suite, expect_defaults

LIKELIHOODS = Suite()
R, S, B = 2, 3, 4
DRAWS = 4_000
LEVELS = (0.01, 0.2, 0.5, 0.9, 0.999)
N = 30.0  # examples that the noise is learnt from


class LikelihoodSubject:
    """A likelihood under test, with noise and targets of its own; O outputs, or 3, or 1 where it refuses 3."""

    def __init__(self, likelihood: Any, outputs: int | None = None):
        self.likelihood = likelihood
        self.outputs = outputs or self._outputs()

    def _outputs(self) -> int:
        try:
            self.likelihood.mean(torch.zeros(1, 1, 1, 3))
        except InputError:
            return 1
        return 3

    @cached_property
    def out(self) -> Float[Tensor, "R S B O"]:
        return Rng(1, dtype=torch.float64).normal(R, S, B, self.outputs)

    @cached_property
    def noise(self) -> Any:
        """Noise drawn after the likelihood has learnt from targets."""
        return self.likelihood.sample_noise(self.learned, S, Rng(2, dtype=torch.float64))

    @cached_property
    def start(self) -> Any:
        return self.likelihood.init(self.outputs, R, Rng(3, dtype=torch.float64))

    @cached_property
    def data(self) -> Tensor:
        """Targets with a sample axis of 1, as in data."""
        noise = self.likelihood.expected(self.start)
        return self.likelihood.sample(noise, self.out[:, :1], Rng(4, dtype=torch.float64))

    @cached_property
    def learned(self) -> Any:
        return self.settled(self.out)

    def settled(self, out: Tensor) -> Any:
        """The noise's posterior after updates on the same batch until convergence."""
        phi, before = self.start, None
        for _ in range(3000):
            if phi is before:  # there is nothing to learn
                break
            before, phi = phi, self.likelihood.update(phi, out, self.data, N, 1.0)
        return phi

    @cached_property
    def drawn(self) -> tuple[Tensor, Tensor]:
        """Repeated outputs, and a target drawn at each: [R, S, B * DRAWS, ...]."""
        out = self.out.repeat_interleave(DRAWS, 2)
        return out, self.likelihood.sample(self.noise, out, Rng(5, dtype=torch.float64))

    def spread(self, values: Tensor) -> Tensor:
        """Split the axis into examples and draws."""
        return values.unflatten(2, (B, DRAWS))

    @property
    def counts(self) -> bool:
        return bool((self.drawn[1] == self.drawn[1].round()).all())

    def log_prob(self, out: Tensor) -> Tensor:
        value: Tensor = self.likelihood.log_prob(self.noise, out, self.data)
        return value


def numbers(subject: LikelihoodSubject) -> bool:
    return not subject.likelihood.discrete


def classes(subject: LikelihoodSubject) -> bool:
    return bool(subject.likelihood.discrete)


def _near(actual: Tensor, expected: Tensor, quantity: str, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    expected = expected.expand_as(actual)
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol, msg=lambda text: f"{quantity}: {text}")


@LIKELIHOODS.check()
def has_every_part(subject: LikelihoodSubject) -> None:
    likelihood = subject.likelihood
    protocols.check_likelihood(likelihood)
    for name, one in protocols.PARTS.items():
        if one.classes == likelihood.discrete and name != "scaled_noise":  # without which it is not calibrated
            protocols.find_part(likelihood, name)
    if dataclasses.is_dataclass(likelihood):
        expect_defaults(type(likelihood))


@LIKELIHOODS.check()
def shapes_are_those_of_the_protocol(subject: LikelihoodSubject) -> None:
    likelihood, out, noise, y = subject.likelihood, subject.out, subject.noise, subject.data
    lead, width = [R, S, B], likelihood.mean(out).shape[-1]
    assert list(likelihood.mean(out).shape[:-1]) == lead
    assert list(y.shape) == [R, 1, B] + [width] * numbers(subject)
    assert list(subject.log_prob(out).shape) == lead, "log_prob adds up the targets of an example"
    assert list(likelihood.score(noise, out, y).shape) == [*lead, subject.outputs]
    assert list(likelihood.fisher_root(noise, out).shape[1:]) == [*lead, subject.outputs]
    assert list(likelihood.kl(subject.start).shape) == [R]
    for of, leaves, samples in (
        ("sample_noise", tree.tensors(noise), S),
        ("expected", tree.tensors(likelihood.expected(subject.start)), 1),
    ):
        assert all(list(t.shape[:2]) == [R, samples] for t in leaves), f"tensors of {of} are [R, {samples}, ...]"
    likelihood.log_prob(likelihood.expected(subject.start), out, y)  # with S = 1
    if numbers(subject):
        variance = likelihood.variance(noise, out)
        assert variance.dim() == 4 and variance.expand(*lead, width).shape[-1] == width
        for values in (likelihood.cdf(noise, out, y), likelihood.quantile(noise, out, 0.5)):
            assert list(values.shape) == [*lead, width]


@LIKELIHOODS.check()
def replicas_know_nothing_of_each_other(subject: LikelihoodSubject) -> None:
    likelihood, every = subject.likelihood, (subject.learned, subject.noise, subject.out, subject.data)
    names = ["log_prob", "score", "fisher_root", *(["cdf"] if numbers(subject) else [])]
    for r in range(R):
        phi, noise, out, y = tree.part(every, slice(r, r + 1))
        for name in names:
            arguments = [(n, o) if name == "fisher_root" else (n, o, t) for n, o, t in ((noise, out, y), every[1:])]
            alone, together = (getattr(likelihood, name)(*a) for a in arguments)
            together = together[:, r : r + 1] if name == "fisher_root" else together[r : r + 1]
            _near(alone, together, f"{name} of a replica by itself", 1e-9, 1e-12)
        weights = torch.full((1,), 0.5, dtype=torch.float64)
        both = [tree.tensors(likelihood.update(phi, out, y, N, weight)) for weight in (weights, 0.5)]
        for alone, same in zip(*both, strict=True):
            _near(alone, same, "update with kl_weight as a tensor", 1e-9, 1e-12)


@LIKELIHOODS.check()
def score_is_the_gradient_of_log_prob(subject: LikelihoodSubject) -> None:
    score, step = subject.likelihood.score(subject.noise, subject.out, subject.data), 1e-5
    for o in range(subject.outputs):
        beside = torch.zeros(subject.outputs, dtype=torch.float64)
        beside[o] = step
        slope = (subject.log_prob(subject.out + beside) - subject.log_prob(subject.out - beside)) / (2 * step)
        _near(score[..., o], slope, f"score of output {o} against the slope of log_prob")


@LIKELIHOODS.check()
def fisher_root_squares_to_the_scores_of_samples(subject: LikelihoodSubject) -> None:
    out, y = subject.drawn
    score = subject.spread(subject.likelihood.score(subject.noise, out, y))
    root = subject.likelihood.fisher_root(subject.noise, subject.out)
    expected = torch.einsum("krsbo,krsbp->rsbop", root, root)
    outer = torch.einsum("rsbno,rsbnp->rsbnop", score, score)
    for values, mean, of, quantity in (
        (score, torch.zeros_like(score[..., 0, :]), score, "the mean score of samples is 0"),
        (outer, expected, outer, "the outer product of fisher_root against that of samples' scores"),
    ):
        error = 6 * of.std(3) / DRAWS**0.5 + 1e-9
        assert bool(((values.mean(3) - mean).abs() <= error).all()), f"{quantity}: {values.mean(3)} and {mean}"


@LIKELIHOODS.check(of=classes)
def classes_come_as_often_as_they_are_probable(subject: LikelihoodSubject) -> None:
    likelihood, y = subject.likelihood, subject.spread(subject.drawn[1])
    p = likelihood.mean(subject.out)
    frequency = torch.stack([(y == c).double().mean(3) for c in range(p.shape[-1])], -1)
    assert bool(((frequency - p).abs() <= 6 * (p * (1 - p) / DRAWS).sqrt() + 1e-9).all()), "samples against mean"
    every = [torch.full((R, 1, B), c) for c in range(p.shape[-1])]
    log_p = torch.stack([likelihood.log_prob(subject.noise, subject.out, c) for c in every], -1)
    _near(log_p.exp(), p, "log_prob against mean")
    _near(likelihood.entropy(subject.noise, subject.out), -(p * p.log()).sum(-1), "entropy")


@LIKELIHOODS.check(of=numbers)
def cdf_is_that_of_samples_and_of_log_prob_and_the_inverse_of_quantile(subject: LikelihoodSubject) -> None:
    likelihood, noise, out = subject.likelihood, subject.noise, subject.out
    drawn = subject.spread(subject.drawn[1])
    y = drawn[:, :, :, 0]
    for level in LEVELS:
        at = likelihood.quantile(noise, out, level)
        share = likelihood.cdf(noise, out, at)
        below = (drawn <= at.unsqueeze(3)).double().mean(3)
        assert bool(((below - share).abs() <= 6 * (share * (1 - share) / DRAWS).sqrt() + 1e-9).all()), "samples and cdf"
        assert bool((share >= level - 1e-9).all()), f"cdf(quantile({level})) is below that"
        share_before = likelihood.cdf(noise, out, at - 1e-6 * (1 + at.abs()))
        slack = 1e-9 if subject.counts else 1e-4 * (1 + at.abs())
        assert bool((share_before <= level + slack).all()), f"quantile({level}) is not the least"
        if not subject.counts:
            _near(share, torch.full_like(at, level), "cdf(quantile(level))", 1e-6, 1e-9)
    step = 0.5 if subject.counts else 1e-5
    above, under = (likelihood.cdf(noise, out, y + sign * step) for sign in (1, -1))
    mass = (above - under).log().sum(-1) if subject.counts else ((above - under) / (2 * step)).log().sum(-1)
    _near(likelihood.log_prob(noise, out, y), mass, "log_prob against the steps of cdf", 1e-4, 1e-4)
    for end, value in ((-1e9, 0.0), (1e9, 1.0)):
        far = likelihood.cdf(noise, out, torch.full_like(y, end))
        _near(far, torch.full_like(far, value), f"cdf at {end:g}", 0.0, 1e-3)


@LIKELIHOODS.check(of=numbers)
def mean_and_variance_are_those_of_the_quantiles(subject: LikelihoodSubject) -> None:
    likelihood, noise, out = subject.likelihood, subject.noise, subject.out
    z = torch.linspace(-30, 30, 2001, dtype=torch.float64)
    level, weight = z.sigmoid(), z.sigmoid() * (-z).sigmoid() * (z[1] - z[0])
    at = torch.stack([likelihood.quantile(noise, out, float(p)) for p in level], -1)
    mean = (at * weight).sum(-1)
    variance = likelihood.variance(noise, out).expand_as(mean)
    scale = torch.where(variance.isfinite(), variance, 1.0).sqrt()
    off = (likelihood.mean(out) - mean).abs() / scale
    assert bool((off <= 0.02).all()), "mean against the quantiles"
    second_moment = ((at - mean.unsqueeze(-1)).square() * weight).sum(-1)
    wrong = variance.isfinite() & ((variance / second_moment - 1).abs() > 0.05)
    assert not bool(wrong.any()), f"variance {variance[wrong]} against the quantiles' {second_moment[wrong]}"


@LIKELIHOODS.check(of=numbers)
def scaling_fits_the_targets(subject: LikelihoodSubject) -> None:
    likelihood = subject.likelihood
    assert likelihood.scaling == "none" or not subject.counts, "whole numbers stay as they are: scaling = 'none'"
    if not hasattr(likelihood, "scaled_noise"):
        return
    factor = torch.tensor([0.25, 4.0], dtype=torch.float64)
    before, after = (
        likelihood.variance(noise, subject.out)
        for noise in (subject.noise, likelihood.scaled_noise(subject.noise, factor))
    )
    _near(after, factor[:, None, None, None] * before, "the variance of scaled_noise")


@LIKELIHOODS.check()
def noise_settles_where_the_bound_is_higher(subject: LikelihoodSubject) -> None:
    likelihood, out, y = subject.likelihood, subject.out, subject.data
    again = likelihood.update(subject.learned, out, y, N, 1.0)
    for one, two in zip(tree.tensors(again), tree.tensors(subject.learned), strict=True):
        _near(one, two, "an update after many on the same batch moves nothing")
    start, end = likelihood.kl(subject.start), likelihood.kl(subject.learned)
    _near(start, torch.zeros_like(start), "the divergence of the prior from itself")
    assert bool((end >= -1e-9).all()), "a divergence is not negative"

    centre = out.mean(1, keepdim=True)  # at one sample, so that the bound is of the noise alone
    settled = subject.settled(centre)

    def bound(phi: Any) -> Tensor:
        noise = likelihood.sample_noise(phi, 1000, Rng(6, dtype=torch.float64))
        fit = likelihood.log_prob(noise, centre.expand(-1, 1000, -1, -1), y)
        value: Tensor = N * fit.mean((1, 2)) - likelihood.kl(phi)
        return value

    assert bool((bound(settled) >= bound(subject.start) - 0.5).all()), "the bound fell as the noise was learnt"
