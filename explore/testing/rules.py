"""Checks for acquisition rules."""

import dataclasses
from collections.abc import Iterator

import torch
from torch import Tensor

from explore import registry
from explore.acquisitions.base import Acquisition, Choice, View, check, checked, name_of, needs_of
from explore.core import tree
from explore.core.errors import InputError
from explore.core.shapes import Batch
from explore.inference.predict import Predictor
from explore.nets.likelihoods import Bernoulli, Categorical, Gaussian
from explore.nets.net import Net, mlp
from explore.nets.protocols import Likelihood
from explore.testing.oracles import Lone
from explore.testing.subject import seeded
from explore.testing.suite import Suite, assert_close, assert_same_bits

RULES = Suite()
R, S, C = 3, 8, 12
COUNTS = (3, 12, 9)  # candidates of each replica; the first has only as many as the largest request
OUTPUTS: tuple[tuple[Likelihood, int], ...] = ((Gaussian(), 2), (Gaussian(), 1), (Categorical(), 3), (Bernoulli(), 1))


class RuleSubject:
    """An acquisition rule under test, with a likelihood, a network and a pool of candidates."""

    def __init__(self, rule: Acquisition, likelihood: Likelihood, outputs: int):
        self.name = f"{name_of(rule)}-{type(likelihood).__name__}-{outputs}"
        self.rule, self.likelihood = rule, likelihood
        rng = seeded(0)
        self.posterior = registry.posterior("bbb", Net(mlp(2, [5], outputs)), likelihood)
        self.state = self.posterior.init(C, R, rng)
        noise = likelihood.sample_noise(self.state.common.noise, S, rng)
        self.predictor = Predictor(self.posterior.net, likelihood, self.posterior.net.glorot(R, rng, S), noise)
        self.mask = torch.arange(C) < torch.tensor(COUNTS).unsqueeze(1)
        x = rng.normal(R, C, 2)
        self.x = torch.where(self.mask.unsqueeze(2), x, x[:, :1])
        targets = likelihood.sample(noise, rng.normal(R, S, 4, outputs), rng)[:, 0]
        self.labelled, self.uniform = Batch(rng.normal(R, 4, 2), targets), rng.uniform(R, C)

    def choice(self, k: int, part: slice = slice(None), pending: Tensor | None = None) -> Choice:
        """Return the rule's choice of k points for the replicas in `part`; k is capped at the rule's maximum."""
        rng = seeded(1) if part.start is None else Lone(part.start, R, 1, dtype=torch.float64)
        nets = self.predictor
        layers, noise = tree.part((nets.layers, nets.noise), part)
        predictor = dataclasses.replace(nets, layers=layers, noise=noise)
        fields = {
            "state": self.state, "labelled": self.labelled, "candidates": self.x, "mask": self.mask,
            "uniform": self.uniform, "pending": pending,
        }  # fmt: skip
        view = View(posterior=self.posterior, sample=lambda: predictor, rng=rng, **tree.part(fields, part))
        k = min(k, needs_of(self.rule).most or k)
        return checked(self.rule(view, k), self.rule, view.mask, k)


def subjects(rule: Acquisition) -> Iterator[RuleSubject]:
    """Yield a subject for each type of targets that the rule accepts; assert that there is one."""
    refused = []
    for likelihood, outputs in OUTPUTS:
        subject = RuleSubject(rule, likelihood, outputs)
        try:
            check(rule, subject.posterior, S)
        except InputError as error:
            refused.append(str(error))
        else:
            yield subject
    assert len(refused) < len(OUTPUTS), f"{name_of(rule)} refuses all targets: {refused[0]}"


@RULES.check("1", "3")
def it_chooses_different_candidates(subject: RuleSubject, count: str) -> None:
    x = seeded(2).normal(R, int(count), 2)
    asked: tuple[tuple[int, Tensor | None], ...] = ((int(count), None), (3, x), (3, x[:, :1].expand_as(x)))
    for k, pending in asked:
        try:
            scores = subject.choice(k, pending=pending).scores
        except InputError as error:
            raise AssertionError(str(error)) from None
        assert scores.isfinite().all(), f"{subject.name} returns scores that are not finite: {scores}"


@RULES.check()
def it_chooses_the_same_in_the_same_view(subject: RuleSubject) -> None:
    arguments = subject.state, subject.x, subject.mask, subject.labelled
    before = tree.save(arguments)
    one, two = subject.choice(2), subject.choice(2)
    assert_same_bits(tree.save(arguments), before, f"{subject.name} changes its view in place")
    assert_same_bits(two, one, "random numbers must come from view.uniform or view.rng")
    chosen = {tuple(row) for row in one.indices[1:].tolist()}
    assert chosen != {(0, 1)}, f"{subject.name} chooses the first candidates of every replica"


@RULES.check()
def replicas_choose_for_themselves(subject: RuleSubject) -> None:
    together = subject.choice(2)
    for r in range(R):
        part = slice(r, r + 1)
        alone, expected = subject.choice(2, part), tree.part(together, part)
        assert torch.equal(alone.indices, expected.indices), (
            f"{subject.name} chooses {expected.indices.tolist()} in a replica among others, but "
            f"{alone.indices.tolist()} in the same replica alone"
        )
        assert_close(alone.scores, expected.scores, "scores", rtol=1e-9, atol=1e-12)
