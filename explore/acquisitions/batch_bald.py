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

import torch
from jaxtyping import Float
from torch import Tensor

from explore.acquisitions.base import Choice, Needs, View
from explore.acquisitions.conditioning import LabelSets, greedy_given, joint_gain, precision_given, signals
from explore.core.errors import check_fields
from explore.core.linalg import inverse_root
from explore.inference import predict


def gains(view: View) -> Float[Tensor, "R C"]:
    """Score each candidate: mutual information of its label and the weights, in nats (BALD)."""
    return _class_gains(view, None) if view.likelihood.discrete else _number_gains(view, None)


@Needs(spread=True, costs=True, scores=gains)
@dataclass(frozen=True)
class BatchBALD:
    """The k points whose labels tell most about the weights together; scores in nats, each given those before it."""

    label_sets: int = 1000  # of the points before, for classes: the most to average over

    def __post_init__(self) -> None:
        check_fields(self, {})

    def __call__(self, view: View, k: int) -> Choice:
        def number_update(precision: Tensor | None, out: Tensor) -> Tensor | None:
            return precision_given(precision, signals(view.likelihood, view.noise, out))

        def class_update(sets: LabelSets | None, out: Tensor) -> LabelSets | None:
            p = _probabilities(view, out)
            return (sets or LabelSets.none(p)).given(p, self.label_sets, view.rng)

        if view.likelihood.discrete:
            return greedy_given(view, k, None, lambda sets: _class_gains(view, sets), class_update)
        return greedy_given(view, k, None, lambda precision: _number_gains(view, precision), number_update)


def _number_gains(view: View, precision: Tensor | None) -> Float[Tensor, "R C"]:
    root = None if precision is None else inverse_root(precision)[0]
    return view.each(lambda out: joint_gain(signals(view.likelihood, view.noise, out), root))


def _class_gains(view: View, sets: LabelSets | None) -> Float[Tensor, "R C"]:
    return view.each(lambda out: information_of_classes(_probabilities(view, out), sets))


def information_of_classes(p: Float[Tensor, "R S b C"], sets: LabelSets | None = None) -> Float[Tensor, "R b"]:
    """Entropy of the mean probabilities minus their mean entropy, in nats, over sets of other points' labels."""
    mass, weights = sets or LabelSets.none(p)
    entropy = torch.special.entr(p).sum(3)  # [R, S, b]
    average = torch.einsum("rm,rms,rsb->rb", mass, weights, entropy)
    parts = p.split(max(1, predict.BUDGET // (mass.numel() * p.shape[3])), 2)  # of points
    joint = (torch.einsum("rms,rsbc->rmbc", weights, part) for part in parts)
    return torch.cat([torch.einsum("rm,rmb->rb", mass, torch.special.entr(q).sum(3)) for q in joint], 1) - average


def _probabilities(view: View, out: Float[Tensor, "R S b O"]) -> Float[Tensor, "R S b C"]:
    return view.likelihood.mean(out).double()  # small differences of entropies
