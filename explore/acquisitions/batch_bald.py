"""Mutual information between the labels of a batch, jointly, and the weights: BatchBALD (Kirsch et al. 2019).

BatchBALD: Efficient and Diverse Batch Acquisition for Deep Bayesian Active Learning, eq. 8 and Algorithm 1: greedy in

    I(y_1..y_k; w) = sum_i I(y_i; w | y_1..y_i-1),

whose i-th part is the score of the i-th point. The labels of pending points are given as well.

Numbers, f Gaussian over the weights, noise precision tau: I(y; w | others) = 1/2 log det(I + tau Cov(f | others)).
Classes, p_s [C] by net s: for a set of labels that the others may have, of probability pi_m, net s weighs w_ms, and

    I(y; w | others) = sum_m pi_m (H[sum_s w_ms p_s] - sum_s w_ms H[p_s])

exactly over all C^(i-1) sets while they are at most `label_sets` (batches of up to 10 points for two classes, 4 for
ten), else over as many drawn ones, without bias. The paper estimates the joint entropy instead; this is what a point
adds to it, so that what is common to all candidates need not be estimated. Where labels are noisy, a second label of
nearly the same point may well tell most.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from explore.acquisitions.base import Choice, Needs, View
from explore.acquisitions.conditioning import LabelSets, greedy_given, joint_gain, precision_given, signals
from explore.core.errors import check_fields
from explore.core.linalg import inverse_root
from explore.inference import predict


def gains(view: View) -> Float[Tensor, "R C"]:
    """What the label of each candidate by itself tells about the weights, in nats (BALD)."""
    if view.likelihood.discrete:
        return view.each(lambda out: information_of_classes(_probabilities(view, out)))
    return view.each(lambda out: joint_gain(signals(view.likelihood, view.noise, out), None))


@Needs(spread=True, costs=True, scores=gains)
@dataclass(frozen=True)
class BatchBALD:
    """The k points whose labels tell most about the weights together; scores in nats, each given those before it."""

    label_sets: int = 1000  # of the points before, for classes: so many are averaged over at most

    def __post_init__(self) -> None:
        check_fields(self, {})

    def __call__(self, view: View, k: int) -> Choice:
        return (self._classes if view.likelihood.discrete else self._numbers)(view, k)

    def _numbers(self, view: View, k: int) -> Choice:
        informed = partial(signals, view.likelihood, view.noise)

        def scores(precision: Tensor | None) -> Tensor:
            root = None if precision is None else inverse_root(precision)[0]
            return view.each(lambda out: joint_gain(informed(out), root))

        def told(precision: Tensor | None, out: Tensor) -> Tensor | None:
            return precision_given(precision, informed(out))

        return greedy_given(view, k, None, scores, told, cost=view.cost)

    def _classes(self, view: View, k: int) -> Choice:
        def told(known: LabelSets | None, out: Tensor) -> LabelSets | None:
            p = _probabilities(view, out)
            return (known or LabelSets.none(p)).given(p, self.label_sets, view.rng)

        def scores(known: LabelSets | None) -> Tensor:
            return view.each(lambda out: information_of_classes(_probabilities(view, out), known))

        return greedy_given(view, k, None, scores, told, cost=view.cost)


def information_of_classes(p: Float[Tensor, "R S b C"], known: LabelSets | None = None) -> Float[Tensor, "R b"]:
    """Entropy of the averaged probabilities less the average entropy, over sets of labels of other points, in nats.

    Args:
        p: class probabilities by each net.
        known: the sets; None: no other point has a label.
    """
    mass, weights = known or LabelSets.none(p)
    entropy = torch.special.entr(p).sum(3)  # [R, S, b]
    average = torch.einsum("rm,rms,rsb->rb", mass, weights, entropy)
    parts = p.split(max(1, predict.BUDGET // (mass.numel() * p.shape[3])), 2)  # of points
    joint = (torch.einsum("rms,rsbc->rmbc", weights, part) for part in parts)
    return torch.cat([torch.einsum("rm,rmb->rb", mass, torch.special.entr(q).sum(3)) for q in joint], 1) - average


def _probabilities(view: View, out: Float[Tensor, "R S b O"]) -> Float[Tensor, "R S b C"]:
    return view.likelihood.mean(out).double()  # small differences of entropies
