"""EPIG: expected predictive information gain, the information of a label about the labels of the pool.

Bickford Smith, Kirsch, Farquhar, Gal, Foster, Rainforth: Prediction-Oriented Bayesian Active Learning (2023), eq. 7:

    EPIG(x) = E_{x* ~ targets} I(y; y* | x, x*)

The targets x* are the inputs at which the model will be used: the candidates, or the `targets` of the learner.
Information about weights that do not affect any target does not count. Points are chosen one after another, each given
the labels of the pending and previously chosen points; near-duplicates of these rank last.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from explore.acquisitions.base import Choice, Needs, View, best
from explore.acquisitions.conditioning import greedy_given, labels_of
from explore.core.errors import Checked


@Needs(spread=True, aims=True, costs=True)
@dataclass(frozen=True)
class EPIG(Checked):
    """A rule for the k points most informative about the targets' labels; scores in nats, averaged over targets."""

    targets: int = 1000  # maximum number of targets; if there are more, this many are drawn once per batch
    adjusted: bool = True  # subtract the dependence that independent points show in few samples
    label_sets: int = 16  # for classes: maximum number of sets of earlier points' labels; exact if there are no more
    alike: float = 0.01  # near-duplicates: their predictions' difference has less than this share of the variance

    ranges: ClassVar[dict[str, str]] = {"targets": "[1, 1e5]", "label_sets": "[1, 1e4]", "alike": "[0, 1]"}

    def __call__(self, view: View, k: int) -> Choice:
        x, share = self._targets(view)
        labels = labels_of(view, self.label_sets, self.adjusted)
        at_targets = view.outputs_at(x)

        def scores(view: View, knowledge: Any) -> Tensor:
            return view.each(labels.about(knowledge, at_targets, share))

        return greedy_given(view, k, None, scores, labels.condition, self.alike)

    def _targets(self, view: View) -> tuple[Tensor, Float[Tensor, "R T"]]:
        """Return the target inputs [R, T, ...], and the weight of each in the mean over targets."""
        x, present = view.aims
        if x.shape[1] > self.targets:
            drawn = best(view.rng.uniform(*present.shape), present, self.targets).indices
            rows = torch.arange(len(drawn), device=drawn.device).unsqueeze(1)
            x, present = x[rows, drawn], present.gather(1, drawn)
        return x[:, :], present.to(view.uniform) / present.sum(1, keepdim=True)
