"""Checks for likelihoods: their methods agree with each other and with samples."""

import dataclasses
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from explore.core import tree
from explore.core.errors import InputError
from explore.nets import protocols
from explore.testing.subject import seeded
from explore.testing.suite import Suite, assert_close, expect_defaults

LIKELIHOODS = Suite()
R, S, B = 2, 3, 4
DRAWS = 4_000
LEVELS = (0.01, 0.2, 0.5, 0.9, 0.999)
N = 30.0  # number of examples for the noise updates


class LikelihoodSubject:
    """A likelihood under test, with noise, targets and network outputs (by default 3, 1 or 6, which it accepts)."""

    def __init__(self, likelihood: Any, outputs: int | None = None, name: Any = ""):
        self.likelihood, self.name = likelihood, name if isinstance(name, str) and name else repr(likelihood)
        self.outputs = outputs or next(filter(self._accepts, (3, 1, 6)))
        self.out = seeded(1).normal(R, S, B, self.outputs)

    def _accepts(self, outputs: int) -> bool:
        try:
            self.likelihood.mean(torch.zeros(1, 1, 1, outputs))
        except InputError:
            return False
        return True

    @cached_property
    def start(self) -> Any:
        """The prior of the noise."""
        return self.likelihood.init(self.outputs, R, seeded(3))

    @cached_property
    def data(self) -> Tensor:
        """Targets, with a sample axis of length 1, as in training data."""
        return self.likelihood.sample(self.likelihood.expected(self.start), self.out[:, :1], seeded(4))

    @cached_property
    def learned(self) -> Any:
        """The posterior of the noise, given `data`."""
        return self.settled(self.out)

    def settled(self, out: Tensor) -> Any:
        """Update the noise posterior on outputs `out` and targets `data` until it converges, and return it."""
        phi, before = self.start, None
        for _ in range(3000):
            if phi is before:  # the noise has no parameters
                break
            before, phi = phi, self.likelihood.update(phi, out, self.data, N, 1.0)
        return phi

    @cached_property
    def noise(self) -> Any:
        """Noise samples from the posterior `learned`."""
        return self.likelihood.sample_noise(self.learned, S, seeded(2))

    @cached_property
    def drawn(self) -> tuple[Tensor, Tensor]:
        """The outputs, each repeated DRAWS times, and a target sampled for each: both [R, S, B * DRAWS, ...]."""
        out = self.out.repeat_interleave(DRAWS, 2)
        return out, self.likelihood.sample(self.noise, out, seeded(5))

    @property
    def counts(self) -> bool:
        """Whether all sampled targets are integers."""
        return bool((self.drawn[1] == self.drawn[1].round()).all())


def numbers(subject: LikelihoodSubject) -> bool:
    return not subject.likelihood.discrete


def _near(actual: Tensor, expected: Tensor, quantity: str, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    assert_close(actual, expected.expand_as(actual), quantity, rtol, atol)


def _frequent(events: Tensor, p: Tensor, quantity: str) -> None:
    """Assert that the frequencies of events [R, S, B, DRAWS, ...] agree with the probabilities `p` of the events."""
    error = (events.double().mean(3) - p).abs()
    assert bool((error <= 6 * (p * (1 - p) / DRAWS).sqrt() + 1e-9).all()), quantity


@LIKELIHOODS.check()
def has_every_part_with_the_shapes_of_the_protocol(subject: LikelihoodSubject) -> None:
    likelihood, out, noise, y = subject.likelihood, subject.out, subject.noise, subject.data
    protocols.check_likelihood(likelihood)
    for name in protocols.PARTS:
        if (name == "entropy") == likelihood.discrete and name != "scaled_noise":  # optional; used for calibration only
            protocols.find_part(likelihood, name)
    if dataclasses.is_dataclass(likelihood):
        expect_defaults(type(likelihood))

    lead, width = [R, S, B], likelihood.mean(out).shape[-1]
    expected = likelihood.expected(subject.start)
    likelihood.log_prob(expected, out, y)  # with S = 1
    shapes = [
        ("mean", likelihood.mean(out), [*lead, width]),
        ("sample", y, [R, 1, B] + [width] * numbers(subject)),
        ("log_prob, which adds up the targets of an example,", likelihood.log_prob(noise, out, y), lead),
        ("score", likelihood.score(noise, out, y), [*lead, subject.outputs]),
        ("fisher_root", likelihood.fisher_root(noise, out)[0], [*lead, subject.outputs]),
        ("kl", likelihood.kl(subject.start), [R]),
        *(("sample_noise", t, [R, S, *t.shape[2:]]) for t in tree.tensors(noise)),
        *(("expected", t, [R, 1, *t.shape[2:]]) for t in tree.tensors(expected)),
    ]
    if numbers(subject):
        variance = likelihood.variance(noise, out)
        shapes.append(("variance", variance.expand(*lead, width), [*lead, variance.shape[-1]]))
        shapes.append(("cdf", likelihood.cdf(noise, out, y), [*lead, width]))
        shapes.append(("quantile", likelihood.quantile(noise, out, 0.5), [*lead, width]))
    for name, tensor, shape in shapes:
        assert list(tensor.shape) == shape, f"{name} has shape {list(tensor.shape)}, expected {shape}"


@LIKELIHOODS.check()
def replicas_know_nothing_of_each_other(subject: LikelihoodSubject) -> None:
    likelihood, every = subject.likelihood, (subject.learned, subject.noise, subject.out, subject.data)

    def values(arguments: tuple[Any, ...], weight: Any) -> dict[str, Any]:
        """Return the methods' results by name; `arguments` are noise posterior, noise samples, outputs and targets."""
        phi, noise, out, y = arguments
        named = {name: getattr(likelihood, name)(noise, out, y) for name in ("log_prob", "score")}
        named["fisher_root"] = likelihood.fisher_root(noise, out).transpose(0, 1)
        named["update"] = likelihood.update(phi, out, y, N, weight)
        return named | ({"cdf": likelihood.cdf(noise, out, y)} if numbers(subject) else {})

    together = values(every, 0.5)
    for r in range(R):
        part, weight = slice(r, r + 1), torch.full((1,), 0.5, dtype=torch.float64)
        alone = values(tree.part(every, part), weight)
        assert_close(alone, tree.part(together, part), "a replica by itself, with kl_weight [R]:", 1e-9, 1e-12)


@LIKELIHOODS.check()
def score_is_the_gradient_of_log_prob(subject: LikelihoodSubject) -> None:
    likelihood, noise, out, y = subject.likelihood, subject.noise, subject.out, subject.data
    for o, step in enumerate(1e-5 * torch.eye(subject.outputs, dtype=torch.float64)):
        above, under = (likelihood.log_prob(noise, out + sign * step, y) for sign in (1, -1))
        slope = (above - under) / 2e-5
        _near(likelihood.score(noise, out, y)[..., o], slope, f"score of output {o} against the slope of log_prob")


@LIKELIHOODS.check()
def fisher_root_squares_to_the_scores_of_samples(subject: LikelihoodSubject) -> None:
    out, y = subject.drawn
    score = subject.likelihood.score(subject.noise, out, y).unflatten(2, (B, DRAWS))
    root = subject.likelihood.fisher_root(subject.noise, subject.out)
    expected = torch.einsum("krsbo,krsbp->rsbop", root, root)
    outer = torch.einsum("rsbno,rsbnp->rsbnop", score, score)
    for values, mean, quantity in (
        (score, torch.zeros_like(score[..., 0, :]), "the mean score of samples is 0"),
        (outer, expected, "the outer product of fisher_root against that of samples' scores"),
    ):
        error = 6 * values.std(3) / DRAWS**0.5 + 1e-9
        assert bool(((values.mean(3) - mean).abs() <= error).all()), f"{quantity}: {values.mean(3)} and {mean}"


@LIKELIHOODS.check(of=lambda subject: not numbers(subject))
def classes_come_as_often_as_they_are_probable(subject: LikelihoodSubject) -> None:
    likelihood, y = protocols.given(subject.likelihood, subject.noise), subject.drawn[1]
    p = likelihood.mean(subject.out)
    classes = range(p.shape[-1])
    _frequent(torch.stack([y == c for c in classes], -1).unflatten(2, (B, DRAWS)), p, "samples against mean")
    every = [torch.full((R, 1, B), c) for c in classes]
    log_p = torch.stack([likelihood.log_prob(subject.noise, subject.out, c) for c in every], -1)
    _near(log_p.exp(), p, "log_prob against mean")
    _near(likelihood.entropy(subject.noise, subject.out), -(p * p.log()).sum(-1), "entropy")


@LIKELIHOODS.check(of=numbers)
def cdf_is_that_of_samples_and_of_log_prob_and_the_inverse_of_quantile(subject: LikelihoodSubject) -> None:
    likelihood, noise, out = subject.likelihood, subject.noise, subject.out
    drawn = subject.drawn[1].unflatten(2, (B, DRAWS))
    y = drawn[:, :, :, 0]
    for level in LEVELS:
        at = likelihood.quantile(noise, out, level)
        share = likelihood.cdf(noise, out, at)
        _frequent(drawn <= at.unsqueeze(3), share, "samples and cdf")
        assert bool((share >= level - 1e-9).all()), f"cdf(quantile({level})) is below that"
        share_before = likelihood.cdf(noise, out, at - 1e-6 * (1 + at.abs()))
        slack = 1e-9 if subject.counts else 1e-4 * (1 + at.abs())
        assert bool((share_before <= level + slack).all()), f"quantile({level}) is not the smallest such number"
        if not subject.counts:
            _near(share, torch.full_like(at, level), "cdf(quantile(level))", 1e-6, 1e-9)
    step, width = (0.5, 1.0) if subject.counts else (1e-5, 2e-5)
    above, under = (likelihood.cdf(noise, out, y + sign * step) for sign in (1, -1))
    mass = ((above - under) / width).log().sum(-1)
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
    assert bool(((likelihood.mean(out) - mean).abs() <= 0.02 * scale).all()), "mean against the quantiles"
    second_moment = ((at - mean.unsqueeze(-1)).square() * weight).sum(-1)
    wrong = variance.isfinite() & ((variance / second_moment - 1).abs() > 0.05)
    assert not bool(wrong.any()), f"variance {variance[wrong]} against the quantiles' {second_moment[wrong]}"
    assert likelihood.scaling == "none" or not subject.counts, "integer targets must not be scaled: scaling = 'none'"
    if hasattr(likelihood, "scaled_noise"):
        factor = torch.tensor([0.25, 4.0], dtype=torch.float64)
        scaled = likelihood.variance(likelihood.scaled_noise(noise, factor), out)
        _near(scaled, factor[:, None, None, None] * likelihood.variance(noise, out), "the variance of scaled_noise")


@LIKELIHOODS.check()
def noise_settles_where_the_bound_is_higher(subject: LikelihoodSubject) -> None:
    likelihood, out, y = subject.likelihood, subject.out, subject.data
    again = likelihood.update(subject.learned, out, y, N, 1.0)
    assert_close(again, subject.learned, "an update after many on the same batch moves", 1e-5, 1e-6)
    start, end = likelihood.kl(subject.start), likelihood.kl(subject.learned)
    _near(start, torch.zeros_like(start), "the divergence of the prior from itself")
    assert bool((end >= -1e-9).all()), "a divergence is not negative"

    centre = out.mean(1, keepdim=True)  # a single sample, so that the ELBO depends on the noise only

    def bound(phi: Any) -> Tensor:
        noise = likelihood.sample_noise(phi, 1000, seeded(6))
        return N * likelihood.log_prob(noise, centre.expand(-1, 1000, -1, -1), y).mean((1, 2)) - likelihood.kl(phi)

    settled = subject.settled(centre)
    assert bool((bound(settled) >= bound(subject.start) - 0.5).all()), "the bound fell as the noise was learnt"
