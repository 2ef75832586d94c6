"""BatchBALD: mutual information between a batch's labels and the weights (Kirsch et al. 2019, eq. 8).

Algorithm 1, greedy in I(y_1..y_k; w) = sum_i I(y_i; w | y_1..y_i-1), whose i-th part is the score of the i-th point.
Labels of pending points are given as well.

Numbers, f Gaussian over the weights, noise precision tau: I(y; w | others) = 1/2 log det(I + tau Cov(f | others)).
Classes, p_s [C] by net s: for a set of labels of the others, of probability pi_m, net s has the weight w_ms, and

    I(y; w | others) = sum_m pi_m (H[sum_s w_ms p_s] - sum_s w_ms H[p_s]).

The sum is exact over all C^(i-1) sets while they are at most `label_sets` (up to 10 points for two classes, 4 for ten);
beyond that as many are drawn, without bias. The paper estimates the joint entropy instead. Where labels are noisy, a
second label of nearly the same point may tell most.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from jaxtyping import Float
from torch import Tensor

from explore.acquisitions.base import Choice, Needs, View
from explore.acquisitions.conditioning import Classes, Numbers, greedy_given, signals
from explore.core.errors import Checked


def gains(view: View) -> Float[Tensor, "R C"]:
    """Score each candidate: mutual information of its label and the weights, in nats (BALD)."""
    return view.each(_labels(view, 1).gain(None))


@Needs(spread=True, costs=True, scores=gains)
@dataclass(frozen=True)
class BatchBALD(Checked):
    """The k points whose labels tell most about the weights together; scores in nats, each given those before it."""

    label_sets: int = 1000  # of the points before, for classes: the most to average over

    def __call__(self, view: View, k: int) -> Choice:
        labels = _labels(view, self.label_sets)
        return greedy_given(view, k, None, lambda knowledge: view.each(labels.gain(knowledge)), labels.condition)


def _labels(view: View, label_sets: int) -> Any:
    if view.likelihood.discrete:  # in double precision, for small differences of entropies
        return Classes(lambda out: view.likelihood.mean(out).double(), False, label_sets, view.rng)
    return Numbers(partial(signals, view.likelihood, view.noise))
