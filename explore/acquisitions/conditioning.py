"""Mutual information between unobserved labels and the sampled nets, and among unobserved labels.

Numbers: let f be Gaussian over the weights, and F its S centred samples over sqrt(S - 1), so that f = mean + F^T z
with z ~ N(0, I). Labels change only the precision of z, [S, S]. Let V be the `signals` of a point,
W = (V^T V + 1)^-1/2 V^T, and M = W W*^T for two points. Their labels have the mutual information
I = -1/2 log det(1 - M M^T).

Classes: a label y multiplies the weight of net s by p_s(y). If points have few possible sets of labels, all sets
are enumerated. Otherwise, sets are drawn by systematic resampling (Kitagawa 1996), which is unbiased. I is the mutual
information of the joint distribution p(y, y*) = sum_s w_s p_s(y) p_s(y*).

With S samples, even independent points have E |M|^2 = tr(W W^T) tr(W* W*^T) / (S - 1). `adjusted` subtracts this bias,
like Ezekiel's adjusted R^2 (1930). For classes, W = (p_s - p) / sqrt(p) with the mean p of p_s, so that |M|^2 is twice
the information to second order, and S is the effective number of samples, 1 / sum_s w_s^2 (Kish 1965).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from explore.acquisitions.base import SHORTLIST, Choice, View, greedy, shortlist
from explore.core.linalg import identity, inverse_root
from explore.core.rng import Rng
from explore.inference import predict
from explore.nets.protocols import Likelihood, Noise

__all__ = ["Classes", "Numbers", "centred", "greedy_given", "joint_gain", "labels_of", "root_of", "signals"]

TINY = 1e-12  # probabilities below this count as 0
Knowledge = TypeVar("Knowledge")
Information = Callable[[Tensor], Float[Tensor, "R b"]]
Pairs = Float[Tensor, "R b T"]  # a number for each pair of a point and a target


def greedy_given(
    view: View,
    k: int,
    start: Knowledge,
    scores: Callable[[View, Knowledge], Float[Tensor, "R C"]],
    update: Callable[[Knowledge, Float[Tensor, "R S n O"]], Knowledge],
    apart: float | None = None,
) -> Choice:
    """Choose k points one after another, each the best given the pending points and the points chosen before.

    `start` is the knowledge about the nets without these points' labels. `scores` maps a view and knowledge to scores
    of all candidates. `update` maps knowledge and the outputs at further points to the knowledge after their labels.
    With `apart`, near-duplicates of pending or chosen points rank last; `alike` finds them, with `share` = `apart`.
    More than `SHORTLIST` candidates are scored only before the first choice, see `shortlist`.
    """
    none = torch.zeros_like(view.mask)

    def condition(state: tuple[Knowledge, Tensor], out: Tensor) -> tuple[Knowledge, Tensor]:
        knowledge, near = state
        return update(knowledge, out), near if apart is None else near | alike(view, out, apart)

    state = (start, none) if view.pending is None else condition((start, none), view.outputs_at(view.pending))
    if k > 1 and view.mask.shape[1] > (most := max(SHORTLIST, 2 * k)):
        candidates = shortlist(view, scores(view, state[0]), most, state[1])
        choice = greedy_given(candidates.view, k, start, scores, update, apart)
        return Choice(candidates.places.gather(1, choice.indices), choice.scores)
    return greedy(
        view.mask, k, state,
        lambda state: scores(view, state[0]),
        lambda state, chosen: condition(state, view.outputs(chosen)),
        None if apart is None else lambda state: state[1],
        view.cost,
    )  # fmt: skip


def centred(out: Float[Tensor, "R S b O"]) -> Float[Tensor, "R S b O"]:
    """Subtract the mean over samples and divide by sqrt(S - 1), so that products sum to the covariance."""
    return (out - out.mean(1, keepdim=True)) / (out.shape[1] - 1) ** 0.5


def signals(likelihood: Likelihood, noise: Noise, out: Float[Tensor, "R S b O"]) -> Float[Tensor, "R S b K"]:
    """Return V = F G, with F = `centred(out)` and G G^T a label's Fisher information about the output, at its mean."""
    root = likelihood.fisher_root(noise, out.mean(1, keepdim=True))  # [K, R, 1, b, O]
    return torch.einsum("rsbo,krbo->rsbk", centred(out), root.squeeze(2))


def joint_gain(v: Float[Tensor, "R S b K"], root: Tensor | None) -> Float[Tensor, "R b"]:
    """Return 1/2 log det(I + V^T P^-1 V) for each point, in nats; V is `v`, and P^-1 is `root`^T `root` (None: I)."""
    if root is not None:
        v = torch.einsum("rzs,rsbk->rzbk", root, v)
    covariance = torch.einsum("rsbk,rsbl->rbkl", v, v)
    return 0.5 * torch.logdet(identity(v.shape[3], v) + covariance)


def root_of(precision: Float[Tensor, "R S S"] | None) -> Float[Tensor, "R S S"] | None:
    """Return L^-1 for the precision L L^T; None, as argument or result, stands for the identity."""
    return None if precision is None else inverse_root(precision)[0]


class LabelSets(NamedTuple):
    """Possible sets of labels for some points, and the weights of the nets given each set."""

    mass: Float[Tensor, "R M"]  # probability of each set
    weights: Float[Tensor, "R M S"]  # sum to 1 over S

    @staticmethod
    def none(like: Float[Tensor, "R S ..."]) -> LabelSets:
        """Return the label sets before any label: a single empty set, which gives all nets the same weight."""
        replicas, samples = like.shape[:2]
        return LabelSets(like.new_ones(replicas, 1), like.new_full((replicas, 1, samples), 1 / samples))

    def condition(self, p: Float[Tensor, "R S n C"], most: int, rng: Rng) -> LabelSets:
        """Return the label sets extended by n points with class probabilities p; draw `most` sets if there are more."""
        (mass, weights), (samples, classes) = self, (p.shape[1], p.shape[3])
        for point in p.unbind(2):  # [R, S, C]
            mass = (mass.unsqueeze(2) * (weights @ point)).flatten(1)  # [R, M * C]
            replicas, count = mass.shape
            every = torch.arange(min(count, most), device=mass.device).expand(replicas, -1)
            if count > most:
                ends = mass.cumsum(1)
                at = (rng.uniform(replicas, 1).to(mass) + every) / most * ends[:, -1:]
                every = torch.searchsorted(ends, at, right=True).clamp_max(count - 1)
                mass = torch.full_like(at, 1 / most)
            before, label = every // classes, every % classes
            weights = weights.gather(1, before.unsqueeze(2).expand(-1, -1, samples))
            weights = weights * point.mT.gather(1, label.unsqueeze(2).expand(-1, -1, samples))
            # The weights of a set with probability 0 stay 0, so it has no effect.
            weights = weights / weights.sum(2, keepdim=True).clamp_min(torch.finfo(mass.dtype).tiny)
        return LabelSets(mass, weights)


def information_of_classes(p: Float[Tensor, "R S b C"], sets: LabelSets | None = None) -> Float[Tensor, "R b"]:
    """Return the entropy of the mean probabilities minus the mean entropy over nets, in nats, averaged over `sets`."""
    mass, weights = sets or LabelSets.none(p)
    average = torch.einsum("rm,rms,rsb->rb", mass, weights, torch.special.entr(p).sum(3))
    joint = (torch.einsum("rms,rsbc->rmbc", weights, part) for part in _parts(p, 2, mass.shape[1] * p.shape[3]))
    return torch.cat([torch.einsum("rm,rmb->rb", mass, torch.special.entr(q).sum(3)) for q in joint], 1) - average


def alike(view: View, points: Float[Tensor, "R S p O"], share: float) -> Bool[Tensor, "R C"]:
    """Return which candidates are near-duplicates of one of the points.

    Two points are near-duplicates if the variance over nets of the difference of their predictions is less than `share`
    times the larger of the two variances of predictions.
    """
    references = [view.likelihood.mean(points[:, :, i : i + 1]) for i in range(points.shape[2])]

    def near(out: Tensor) -> Tensor:
        predictions = view.likelihood.mean(out)
        result = torch.zeros_like(predictions[:, 0, :, 0], dtype=torch.bool)
        for reference in references:
            most = torch.maximum(_variance(predictions), _variance(reference))
            result |= _variance(predictions - reference) < share * most
        return result

    return view.each(near)


def _variance(predictions: Float[Tensor, "R S n M"]) -> Float[Tensor, "R n"]:
    return predictions.var(1).sum(-1)


@dataclass(frozen=True)
class Numbers:
    """Mutual information for real-valued labels; knowledge from labels is the precision of z (None: the identity)."""

    signals: Callable[[Tensor], Float[Tensor, "R S b K"]]  # maps outputs of points to their V
    adjusted: bool = False  # subtract the dependence expected for independent points

    def condition(self, precision: Tensor | None, out: Float[Tensor, "R S p O"]) -> Float[Tensor, "R S S"]:
        """Return the precision of z once points with the outputs `out` are labelled too."""
        v = self.signals(out).flatten(2)
        return v @ v.mT + (identity(v.shape[1], v) if precision is None else precision)

    def gain(self, precision: Float[Tensor, "R S S"] | None) -> Information:
        """Return a function that maps outputs [R, S, b, O] to the mutual information of labels and weights."""
        root = root_of(precision)
        return lambda out: joint_gain(self.signals(out), root)

    def about(
        self, precision: Tensor | None, targets: Float[Tensor, "R S T O"], share: Float[Tensor, "R T"]
    ) -> Information:
        """Return a function that maps outputs [R, S, b, O] to the mutual information with the targets' labels.

        `targets` are the outputs at the targets. The information is averaged over targets with the weights `share`.
        """
        root, share = root_of(precision), share.unsqueeze(2)
        other = self._whitened(targets, root)
        outputs, samples = other.shape[2:]
        pairs = {1: _of_one_output, 2: _of_two_outputs}.get(outputs, _of_outputs)
        adjusted = self.adjusted and samples > outputs + 1

        def information(out: Tensor) -> Tensor:
            parts = _parts(self._whitened(out, root), 1, other.shape[1] * outputs * outputs)
            return torch.cat([(pairs(w, other, adjusted) @ share).squeeze(2) for w in parts], 1)

        return information

    def _whitened(self, out: Float[Tensor, "R S b O"], root: Tensor | None) -> Float[Tensor, "R b K S"]:
        """Return W (see the module) for points with outputs `out`; z has precision L L^T, `root` is L^-1 (None: I)."""
        v = self.signals(out) if root is None else torch.einsum("rzs,rsbk->rzbk", root, self.signals(out))
        v = v.movedim(1, 3)
        if v.shape[2] == 1:
            return v * (v.square().sum(-1, keepdim=True) + 1).rsqrt()
        return inverse_root(v @ v.mT + identity(v.shape[2], v))[0] @ v


def _of_one_output(one: Float[Tensor, "R b 1 S"], other: Float[Tensor, "R T 1 S"], adjusted: bool) -> Pairs:
    """Return -1/2 log(1 - rho^2) for each pair of points with one output, given their W; rho is the number M."""
    one, other = one.squeeze(2), other.squeeze(2)
    squares = (one @ other.mT).square_()
    if adjusted:
        _beyond_chance(squares, one.square().sum(2), other.square().sum(2), one.shape[2], 1)
    return squares.clamp_(max=1 - torch.finfo(squares.dtype).eps).neg_().log1p_().mul_(-0.5)


def _of_two_outputs(one: Float[Tensor, "R b 2 S"], other: Float[Tensor, "R T 2 S"], adjusted: bool) -> Pairs:
    """Return the same as `_of_outputs`, with the determinant written out: factors of many small matrices are slow."""
    (a, b), (c, d) = ([u @ v.mT for v in other.unbind(2)] for u in one.unbind(2))  # M = [[a, b], [c, d]]
    first, second, across = a.square() + b.square(), c.square() + d.square(), (a * c).addcmul_(b, d)
    if adjusted:
        squares = first + second
        spread = one.square().sum((2, 3)), other.square().sum((2, 3))
        factor = _beyond_chance(squares.clone(), *spread, one.shape[3], 2).div_(squares.clamp_min_(TINY)).clamp_(max=1)
        first, second, across = first * factor, second * factor, across * factor
    determinant = ((1 - first) * (1 - second)).addcmul_(across, across, value=-1)
    return determinant.clamp_(min=torch.finfo(a.dtype).eps).log_().mul_(-0.5)


def _of_outputs(one: Float[Tensor, "R b O S"], other: Float[Tensor, "R T O S"], adjusted: bool) -> Pairs:
    """Return -1/2 log det(1 - M M^T) for each pair of points, given their W; `adjusted` scales M M^T by a factor."""
    m = torch.einsum("rbos,rtps->rbtop", one, other)
    gram = m @ m.mT
    if adjusted:
        squares = m.square().sum((3, 4))
        spread = one.square().sum((2, 3)), other.square().sum((2, 3))
        adjusted_squares = _beyond_chance(squares.clone(), *spread, one.shape[3], m.shape[3])
        gram = gram * (adjusted_squares / squares.clamp_min(TINY)).clamp(max=1)[..., None, None]
    return inverse_root(identity(m.shape[3], m) - gram)[0].diagonal(dim1=-2, dim2=-1).log().sum(-1)


def _beyond_chance(
    squares: Pairs, one: Float[Tensor, "R b"], other: Float[Tensor, "R T"], samples: int | Tensor, directions: int
) -> Pairs:
    """Subtract the mean for independent points from `squares` (|M|^2) in place, and rescale the result.

    The rescaling keeps the value for full dependence. `one` and `other` are tr(W W^T) of the points. `samples` is the
    (effective) number of samples, and `directions` the number of outputs or, for C classes, C - 1.
    """
    freedom = torch.as_tensor(samples - 1 - directions).to(squares).clamp_min(1)
    squares.mul_((samples - 1) / freedom)
    return squares.addcmul_(one.unsqueeze(2) / freedom, other.unsqueeze(1), value=-1).clamp_(min=0)


@dataclass(frozen=True)
class Classes:
    """Mutual information for class labels, as in `Numbers`; knowledge from labels is a `LabelSets` (None: none)."""

    probabilities: Callable[[Tensor], Tensor]  # maps outputs to class probabilities
    adjusted: bool  # subtract the dependence expected for independent points
    label_sets: int  # maximum number of sets; if there are more, this many are drawn
    rng: Rng  # for these draws

    def condition(self, sets: LabelSets | None, out: Float[Tensor, "R S p O"]) -> LabelSets:
        p = self.probabilities(out)
        return (sets or LabelSets.none(p)).condition(p, self.label_sets, self.rng)

    def gain(self, sets: LabelSets | None) -> Information:
        return lambda out: information_of_classes(self.probabilities(out), sets)

    def about(
        self, sets: LabelSets | None, targets: Float[Tensor, "R S T O"], share: Float[Tensor, "R T"]
    ) -> Information:
        p, share = self.probabilities(targets).movedim(3, 2), share.unsqueeze(2)  # [R, S, C, T]
        sets = sets or LabelSets.none(p)
        at_targets = [Weighted.of(p, weights) for weights in sets.weights.unbind(1)]
        adjusted = self.adjusted and p.shape[1] > p.shape[2]

        def information(out: Tensor) -> Tensor:
            blocks = []
            for part in _parts(self.probabilities(out).movedim(3, 2), 3, p.shape[2] * p.shape[2] * p.shape[3]):
                total = torch.zeros(len(part), part.shape[3], 1, dtype=part.dtype, device=part.device)
                for mass, weights, other in zip(sets.mass.unbind(1), sets.weights.unbind(1), at_targets, strict=True):
                    pairs = _of_classes(Weighted.of(part, weights), other, weights, adjusted)
                    total += mass.view(-1, 1, 1) * (pairs @ share)
                blocks.append(total.squeeze(2))
            return torch.cat(blocks, 1)

        return information


def labels_of(view: View, label_sets: int, adjusted: bool = False, double: bool = False) -> Any:
    """Return the `Numbers` or `Classes` of a view; with `double`, class probabilities are in double precision."""
    mean, rng = view.likelihood.mean, view.rng
    if view.likelihood.discrete:
        return Classes((lambda out: mean(out).double()) if double else mean, adjusted, label_sets, rng)
    return Numbers(partial(signals, view.likelihood, view.noise), adjusted)


class Weighted(NamedTuple):
    """Class probabilities of n points for nets with given weights."""

    mean: Float[Tensor, "R C n"]
    deviations: Float[Tensor, "R S C n"]  # from the unweighted mean, which has the smallest rounding errors
    shift: Float[Tensor, "R C n"]  # weighted mean of the deviations
    spread: Float[Tensor, "R n"]  # tr(W W^T)

    @staticmethod
    def of(p: Float[Tensor, "R S C n"], weights: Float[Tensor, "R S"]) -> Weighted:
        centre = p.mean(1)
        deviations = p - centre.unsqueeze(1)
        shift = torch.einsum("rs,rscn->rcn", weights, deviations)
        mean = (centre + shift).clamp_min(TINY)
        variance = torch.einsum("rs,rscn->rcn", weights, deviations.square()) - shift.square()
        return Weighted(mean, deviations, shift, (variance / mean).sum(1))


def _of_classes(one: Weighted, other: Weighted, weights: Tensor, adjusted: bool) -> Pairs:
    """Sum p(y, y*) log(p(y, y*) / p(y) p(y*)) over classes, for each pair of points; accurate near independence."""
    weighted = (one.deviations * weights[:, :, None, None]).flatten(2)
    shape = len(weights), *one.mean.shape[1:], *other.mean.shape[1:]  # [R, C, b, C, T]
    both = (weighted.mT @ other.deviations.flatten(2)).view(shape)
    both -= one.shift[..., None, None] * other.shift[:, None, None]
    alone = one.mean[..., None, None] * other.mean[:, None, None]
    ratio = (both / alone).clamp_min_(-1)
    information = ((torch.special.xlog1py(1 + ratio, ratio) - ratio) * alone).sum((1, 3))
    if not adjusted:
        return information
    squares = (both * ratio).sum((1, 3))
    samples = 1 / weights.square().sum(1).view(-1, 1, 1)
    adjusted_squares = _beyond_chance(squares.clone(), one.spread, other.spread, samples, shape[1] - 1)
    return information * (adjusted_squares / squares.clamp_min(TINY)).clamp(max=1)


def _parts(features: Tensor, axis: int, width: int) -> tuple[Tensor, ...]:
    """Split features along the axis of points so that an intermediate of `width` numbers per point fits into memory."""
    return features.split(max(1, predict.BUDGET // (len(features) * width)), axis)
