"""Requirements on acquisition rules."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator

import torch
from torch import Tensor

from explore import registry
from explore.acquisitions.base import Acquisition, Choice, View, check, checked, needs_of
from explore.core import tree
from explore.core.errors import InputError
from explore.core.rng import Rng
from explore.core.shapes import Batch
from explore.inference.predict import Predictor
from explore.nets.likelihoods import Bernoulli, Categorical, Gaussian
from explore.nets.net import Net, mlp
from explore.nets.protocols import Likelihood
from explore.testing.oracles import Lone
from explore.testing.suite import Suite

RULES = Suite()
R, S, C = 3, 8, 12
COUNTS = (3, 12, 9)  # candidates of each replica; the first has as many as are asked for at most
OUTPUTS: tuple[tuple[Likelihood, int], ...] = ((Gaussian(), 2), (Gaussian(), 1), (Categorical(), 3), (Bernoulli(), 1))


class RuleSubject:
    """A rule under test, with a likelihood's targets and a net that it can predict."""

    def __init__(self, name: str, rule: Acquisition, likelihood: Likelihood, outputs: int):
        self.name, self.rule, self.likelihood = name, rule, likelihood
        rng = Rng(0, dtype=torch.float64)
        self.posterior = registry.posterior("bbb", Net(mlp(2, [5], outputs)), likelihood)
        state = self.posterior.init(C, R, rng)
        noise = likelihood.sample_noise(state.common.noise, S, rng)
        self.predictor = Predictor(self.posterior.net, likelihood, self.posterior.net.glorot(R, rng, S), noise)
        mask = torch.arange(C) < torch.tensor(COUNTS).unsqueeze(1)
        x = rng.normal(R, C, 2)
        x = torch.where(mask.unsqueeze(2), x, x[:, :1])
        targets = likelihood.sample(noise, rng.normal(R, S, 4, outputs), rng)[:, 0]
        self.whole = View(
            posterior=self.posterior, state=state, labelled=Batch(rng.normal(R, 4, 2), targets), candidates=x,
            mask=mask, sample=lambda: self.predictor, uniform=rng.uniform(R, C), rng=rng.stream("acquire"),
        )  # fmt: skip

    def view(self, part: slice = slice(None), pending: Tensor | None = None) -> View:
        """The view of all replicas, or of one with its own numbers of a fresh stream."""
        cut, v, nets, seed = functools.partial(tree.part, replicas=part), self.whole, self.predictor, 1
        rng = Rng(seed, dtype=torch.float64) if part.start is None else Lone(part.start, R, seed, dtype=torch.float64)
        predictor = dataclasses.replace(nets, layers=cut(nets.layers), noise=cut(nets.noise))
        return View(
            posterior=v.posterior, state=cut(v.state), labelled=cut(v.labelled), candidates=cut(v.x), mask=cut(v.mask),
            sample=lambda: predictor, uniform=cut(v.uniform), rng=rng, pending=cut(pending),
        )  # fmt: skip

    def choice(self, k: int, part: slice = slice(None), pending: Tensor | None = None) -> Choice:
        """The rule's choice of k points, or of its maximum."""
        view, most = self.view(part, pending), needs_of(self.rule).most
        k = k if most is None else min(k, most)
        return checked(self.rule(view, k), self.rule, view.mask, k)


def subjects(name: str, rule: Acquisition) -> Iterator[tuple[str, RuleSubject]]:
    """The rule with each kind of targets that it does not refuse.

    Raises:
        AssertionError: where it refuses all of them.
    """
    refused = []
    for likelihood, outputs in OUTPUTS:
        subject = RuleSubject(name, rule, likelihood, outputs)
        try:
            check(rule, subject.posterior, S)
        except InputError as error:
            refused.append(str(error))
        else:
            yield f"{name}-{type(likelihood).__name__}-{outputs}", subject
    assert len(refused) < len(OUTPUTS), f"{name} refuses all targets: {refused[0]}"


@RULES.check(cases={"1": 1, "3": 3})
def it_chooses_different_candidates(subject: RuleSubject, k: int) -> None:
    try:
        scores = subject.choice(k).scores
    except InputError as error:
        raise AssertionError(str(error)) from None
    assert scores.isfinite().all(), f"{subject.name} gives scores that are not finite: {scores}"


@RULES.check(cases={"1": 1, "3": 3})
def it_chooses_beside_pending_points(subject: RuleSubject, p: int) -> None:
    x = Rng(2, dtype=torch.float64).normal(R, p, 2)
    try:
        beside, copies = (subject.choice(3, pending=points).scores for points in (x, x[:, :1].expand_as(x)))
    except InputError as error:
        raise AssertionError(str(error)) from None
    assert beside.isfinite().all() and copies.isfinite().all(), f"{subject.name}'s scores are not finite: {beside}"


@RULES.check()
def it_chooses_the_same_in_the_same_view(subject: RuleSubject) -> None:
    before = tree.save((subject.whole.state, subject.whole.x, subject.whole.mask, subject.whole.labelled))
    one, two = subject.choice(2), subject.choice(2)
    after = tree.save((subject.whole.state, subject.whole.x, subject.whole.mask, subject.whole.labelled))
    assert all(map(torch.equal, before.values(), after.values())), f"{subject.name} changes its view in place"
    same = torch.equal(one.indices, two.indices) and torch.equal(one.scores, two.scores)
    assert same, f"{subject.name} chooses {two} after {one}; what is random must come from view.uniform or view.rng"


@RULES.check()
def it_tells_candidates_apart(subject: RuleSubject) -> None:
    chosen = {tuple(row) for row in subject.choice(2).indices[1:].tolist()}
    assert chosen != {(0, 1)}, f"{subject.name} chooses the first candidates of every replica"


@RULES.check()
def replicas_choose_for_themselves(subject: RuleSubject) -> None:
    whole = subject.choice(2)
    for r in range(R):
        alone = subject.choice(2, slice(r, r + 1))
        assert torch.equal(alone.indices[0], whole.indices[r]), (
            f"{subject.name} chooses {whole.indices[r].tolist()} in a replica beside others, and alone "
            f"{alone.indices[0].tolist()}"
        )
        torch.testing.assert_close(alone.scores[0], whole.scores[r], rtol=1e-9, atol=1e-12)
