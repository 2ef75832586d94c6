"""What labels of other points tell of the sampled nets, before anyone knows these labels.

Numbers, f Gaussian over the weights: with S centred samples F of f over sqrt(S - 1), f = F^T z, z ~ N(0, I), has their
covariance, and labels change the precision of z alone, an [S, S] matrix; what they will be does not matter.

Classes: a label y multiplies what net s weighs by p_s(y), so that what is known hangs on the labels. All sets of labels
that the points may have are listed, each with its probability, while they are few; then some of them, drawn by
systematic resampling (Kitagawa 1996), which leaves every average over the sets unbiased.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from explore.acquisitions.base import Choice, View, greedy
from explore.core.rng import Rng
from explore.nets.protocols import Likelihood, Noise

__all__ = ["LabelSets", "alike", "centred", "greedy_given", "joint_gain", "precision_given", "signals"]

Known = TypeVar("Known")


def greedy_given(
    view: View,
    k: int,
    start: Known,
    scores: Callable[[Known], Float[Tensor, "R C"]],
    told: Callable[[Known, Float[Tensor, "R S n O"]], Known],
    behind: Callable[[Known], Bool[Tensor, "R C"]] | None = None,
    cost: Float[Tensor, "R C"] | None = None,
) -> Choice:
    """K points one after another, each the best one given the pending ones and those before it, see `greedy`.

    Args:
        view: what the rule sees.
        k: how many.
        start: what is known before the pending points.
        scores: of all candidates, by what is known.
        told: what is known once the points with these outputs are labelled too.
        behind: which candidates rank below all others, by what is known.
        cost: of each candidate, by which scores are divided.
    """
    if view.pending is not None:
        start = told(start, view.outputs_at(view.pending))
    return greedy(view.mask, k, start, scores, lambda known, chosen: told(known, view.outputs(chosen)), behind, cost)


def centred(out: Float[Tensor, "R S b O"]) -> Float[Tensor, "R S b O"]:
    """Outputs as deviations from their mean over samples, F / sqrt(S - 1): their products add up to the covariance."""
    return (out - out.mean(1, keepdim=True)) / (out.shape[1] - 1) ** 0.5


def signals(likelihood: Likelihood, noise: Noise, out: Float[Tensor, "R S b O"]) -> Float[Tensor, "R S b K"]:
    """V = F G of each point, whose labels tell as much of z as K numbers V^T z with noise of variance 1.

    G G^T is the Fisher information of a label about the output, at its mean: of Gaussian noise the precision of each
    output, so that this is exact; of others as in a generalised linear model.
    """
    root = likelihood.fisher_root(noise, out.mean(1, keepdim=True))  # [K, R, 1, b, O]
    return torch.einsum("rsbo,krbo->rsbk", centred(out), root.squeeze(2))


def precision_given(known: Float[Tensor, "R S S"] | None, v: Float[Tensor, "R S n K"]) -> Float[Tensor, "R S S"]:
    """The precision of z once n points have labels, too.

    Args:
        known: before that; None: no labels, the identity.
        v: `signals` of the points.
    """
    v = v.flatten(2)
    before = torch.eye(v.shape[1], dtype=v.dtype, device=v.device) if known is None else known
    return before + v @ v.mT


def joint_gain(v: Float[Tensor, "R S b K"], root: Tensor | None) -> Float[Tensor, "R b"]:
    """1/2 log det(I + V^T V) of each point, in nats.

    Args:
        v: `signals`.
        root: L^-1 where z has the precision L L^T, [R, S, S]; None: it is N(0, I).
    """
    if root is not None:
        v = torch.einsum("rzs,rsbk->rzbk", root, v)
    covariance = torch.einsum("rsbk,rsbl->rbkl", v, v)
    eye = torch.eye(covariance.shape[-1], dtype=v.dtype, device=v.device)
    return 0.5 * torch.logdet(eye + covariance)


class LabelSets(NamedTuple):
    """Sets of labels that some points may have, and what the nets weigh given each."""

    mass: Float[Tensor, "R M"]  # probability of each set
    weights: Float[Tensor, "R M S"]  # each adds up to 1

    @staticmethod
    def none(like: Float[Tensor, "R S ..."]) -> LabelSets:
        """No point has a label: one set, and all nets weigh the same."""
        replicas, samples = like.shape[:2]
        return LabelSets(like.new_ones(replicas, 1), like.new_full((replicas, 1, samples), 1 / samples))

    def given(self, p: Float[Tensor, "R S n C"], most: int, rng: Rng) -> LabelSets:
        """Those of n more points.

        Args:
            p: class probabilities of the points, by each net.
            most: how many sets to list; of more, so many are drawn, each as often as it is probable, up to one.
            rng: for that.
        """
        known = self
        for each in p.unbind(2):
            known = known._with(each, most, rng)
        return known

    def _with(self, p: Float[Tensor, "R S C"], most: int, rng: Rng) -> LabelSets:
        mass = (self.mass.unsqueeze(2) * (self.weights @ p)).flatten(1)  # [R, M * C]
        replicas, found = mass.shape
        every = torch.arange(min(found, most), device=mass.device).expand(replicas, -1)
        if found > most:
            ends = mass.cumsum(1)
            at = (rng.uniform(replicas, 1).to(mass) + every) / most * ends[:, -1:]
            every = torch.searchsorted(ends, at, right=True).clamp_max(found - 1)
            mass = torch.full_like(at, 1 / most)
        before, label = every // p.shape[2], every % p.shape[2]
        samples = p.shape[1]
        weights = self.weights.gather(1, before.unsqueeze(2).expand(-1, -1, samples))
        weights = weights * p.mT.gather(1, label.unsqueeze(2).expand(-1, -1, samples))
        # A set without probability keeps weights of 0 and counts for nothing.
        return LabelSets(mass, weights / weights.sum(2, keepdim=True).clamp_min(torch.finfo(mass.dtype).tiny))


def alike(view: View, points: Float[Tensor, "R S p O"], share: float) -> Bool[Tensor, "R C"]:
    """Candidates that hardly differ from one of the points: a second measurement of that is all they would be.

    Args:
        view: of the candidates.
        points: outputs at the points.
        share: the difference of two points' predictions varies less over the nets than this share of either's variance.
    """
    others = [view.likelihood.mean(points[:, :, i : i + 1]) for i in range(points.shape[2])]

    def near(out: Tensor) -> Tensor:
        each = view.likelihood.mean(out)
        found = torch.zeros_like(each[:, 0, :, 0], dtype=torch.bool)
        for other in others:
            most = torch.maximum(_variance(each), _variance(other))
            found |= _variance(each - other) < share * most
        return found

    return view.each(near)


def _variance(predictions: Float[Tensor, "R S n M"]) -> Float[Tensor, "R n"]:
    return predictions.var(1).sum(-1)
