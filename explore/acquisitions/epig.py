"""Expected predictive information gain: how much a label tells about the labels of the pool.

Bickford Smith, Kirsch, Farquhar, Gal, Foster, Rainforth: Prediction-Oriented Bayesian Active Learning (2023), eq. 7:

    EPIG(x) = E_{x* ~ targets} I(y; y* | x, x*)

The targets x* are the inputs at which the model will be used: the candidates, or those passed to the learner. What a
label tells about weights on which no target depends counts for nothing. Points are chosen one after another, each given
the labels of those before it and of the pending ones; near-duplicates of these come after all others.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from explore.acquisitions.base import Choice, Needs, View, best
from explore.acquisitions.conditioning import Classes, Numbers, greedy_given, signals
from explore.core.errors import Checked


@Needs(spread=True, aims=True, costs=True)
@dataclass(frozen=True)
class EPIG(Checked):
    """The k points most informative about the targets' labels; scores in nats, averaged over targets."""

    targets: int = 1000  # at most; of more candidates a sample is drawn, the same for a whole batch
    adjusted: bool = True  # less the dependence that independent points have in so few samples
    label_sets: int = 16  # of the points chosen before, for classes; exact where they have no more
    alike: float = 0.01  # points are, whose predictions differ by less than this share of their variance

    ranges: ClassVar[dict[str, str]] = {"targets": "[1, 1e5]", "label_sets": "[1, 1e4]", "alike": "[0, 1]"}

    def __call__(self, view: View, k: int) -> Choice:
        x, share = self._targets(view)
        labels: Any = self._labels(view)
        at_targets = view.outputs_at(x)

        def scores(knowledge: Any) -> Tensor:
            return view.each(labels.about(knowledge, at_targets, share))

        return greedy_given(view, k, None, scores, labels.condition, self.alike)

    def _targets(self, view: View) -> tuple[Tensor, Float[Tensor, "R T"]]:
        """Inputs whose labels matter [R, T, ...], and the share of each in the mean."""
        x, present = view.aims
        if x.shape[1] > self.targets:
            drawn = best(view.rng.uniform(*present.shape), present, self.targets).indices
            rows = torch.arange(len(drawn), device=drawn.device).unsqueeze(1)
            x, present = x[rows, drawn], present.gather(1, drawn)
        return x[:, :], present.to(view.uniform) / present.sum(1, keepdim=True)

    def _labels(self, view: View) -> Numbers | Classes:
        if view.likelihood.discrete:
            return Classes(view.likelihood.mean, self.adjusted, self.label_sets, view.rng)
        return Numbers(partial(signals, view.likelihood, view.noise), self.adjusted)
