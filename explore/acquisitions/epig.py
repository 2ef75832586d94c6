"""Expected predictive information gain: how much a label tells about the labels of the pool.

Bickford Smith, Kirsch, Farquhar, Gal, Foster, Rainforth: Prediction-Oriented Bayesian Active Learning (2023), eq. 7:

    EPIG(x) = E_{x* ~ targets} I(y; y* | x, x*)

The targets x* are inputs at which the model will be used: the candidates themselves (the point itself, measured once
more, among them), or those given to the learner; test points never are. What a label tells about weights on which no
target's label depends counts for nothing, so that outliers are not chased as by the variance.

Several points are chosen one after another, each given the labels of those before it and of the pending ones.
`explore/acquisitions/dependence.py` says how, for numbers and for classes. Where noise is large, a second measurement
of the same can tell more than the first one of anything else. But a pool is asked for points and not for repetitions,
so that candidates whose predictions vary with those of a chosen or pending point come after all others.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from explore.acquisitions.base import Choice, Needs, View, best
from explore.acquisitions.conditioning import alike, greedy_given, signals
from explore.acquisitions.dependence import Classes, Numbers
from explore.core.errors import check_fields


class Carry(NamedTuple):
    """What is known of a batch."""

    labels: Any  # of its points and the pending ones, see `Numbers` and `Classes`
    alike: Bool[Tensor, "R C"]  # candidates that are nearly one of these


@Needs(spread=True, aims=True, costs=True)
@dataclass(frozen=True)
class EPIG:
    """The k points whose labels tell most about those of the targets; scores in nats, a mean over targets."""

    targets: int = 1000  # at most; of more candidates so many are drawn, the same for all points of a batch
    adjusted: bool = True  # less the dependence that independent points have in so few samples
    label_sets: int = 16  # of the points chosen before, for classes; exact where they have no more
    alike: float = 0.01  # points are, whose predictions differ by less than this share of their variance

    ranges: ClassVar[dict[str, str]] = {"targets": "[1, 1e5]", "label_sets": "[1, 1e4]", "alike": "[0, 1]"}

    def __post_init__(self) -> None:
        check_fields(self, self.ranges)

    def __call__(self, view: View, k: int) -> Choice:
        x, share = self._targets(view)
        labels, at_targets = self._labels(view), view.outputs_at(x)

        def scores(known: Carry) -> Tensor:
            return view.each(labels.about(known.labels, at_targets, share))

        def given(known: Carry, out: Tensor) -> Carry:
            return Carry(labels.given(known.labels, out), known.alike | alike(view, out, self.alike))

        start = Carry(labels.start(at_targets), torch.zeros_like(view.mask))
        return greedy_given(view, k, start, scores, given, lambda known: known.alike, view.cost)

    def _targets(self, view: View) -> tuple[Tensor, Float[Tensor, "R T"]]:
        """Inputs whose labels matter [R, T, ...], and the share of each in the mean."""
        x, there = view.aims
        if x.shape[1] > self.targets:
            drawn = best(view.rng.uniform(*there.shape), there, self.targets).indices
            rows = torch.arange(len(drawn), device=drawn.device).unsqueeze(1)
            x, there = x[rows, drawn], there.gather(1, drawn)
        return x[:, :], there.to(view.uniform) / there.sum(1, keepdim=True)

    def _labels(self, view: View) -> Numbers | Classes:
        if view.likelihood.discrete:
            return Classes(view.likelihood.mean, self.adjusted, self.label_sets, view.rng)
        return Numbers(partial(signals, view.likelihood, view.noise), self.adjusted)
