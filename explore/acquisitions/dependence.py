"""What the labels of two points tell about each other, by sampled nets, given labels of other points.

Numbers, f Gaussian over the weights and noise of variance v for each output: with W = (V^T V + 1)^-1/2 V^T, V = F
v^-1/2 of F the centred samples of a point, [S, O] over sqrt(S - 1), I = -1/2 log det(1 - M M^T), M = W W*^T, for one
output the correlation of y and y*. Of other likelihoods V is what `signals` makes it.

Classes: the mutual information of the table p(y, y*) = sum_s w_s p_s(y) p_s(y*), w_s what net s weighs, on average
over the labels that other points may have. `explore/acquisitions/conditioning.py` says what these labels change.

Samples of points that have nothing in common show E |M|^2 = tr(W W^T) tr(W* W*^T) / (S - 1), and I would be too large.
`adjusted`, that is taken off |M|^2, in the way of Ezekiel's R^2 (1930), and dependence that is no larger counts for
nothing. For classes W = (p_s - p) / sqrt(p), so that |M|^2 is twice the information to second order, and S is the
effective number of samples, 1 / sum_s w_s^2 (Kish 1965).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from explore.acquisitions.conditioning import LabelSets, precision_given
from explore.core.linalg import inverse_root
from explore.core.rng import Rng
from explore.inference import predict

__all__ = ["Classes", "Numbers"]

TINY = 1e-12  # a probability below this is as good as none
Information = Callable[[Tensor], Float[Tensor, "R b"]]


@dataclass(frozen=True)
class Numbers:
    """Labels that are numbers.

    Args:
        signals: V of points with these outputs.
        adjusted: less what chance shows.
    """

    signals: Callable[[Tensor], Float[Tensor, "R S b K"]]
    adjusted: bool

    def start(self, out: Float[Tensor, "R S n O"]) -> None:
        """No label is known: the precision of z is the identity."""

    def given(self, known: Float[Tensor, "R S S"] | None, out: Float[Tensor, "R S p O"]) -> Float[Tensor, "R S S"]:
        """The precision of z when points with these outputs have their labels too."""
        return precision_given(known, self.signals(out))

    def about(
        self, known: Tensor | None, targets: Float[Tensor, "R S T O"], share: Float[Tensor, "R T"]
    ) -> Information:
        """What gives, of outputs [R, S, b, O], the information of their labels about those of the targets."""
        root, share = None if known is None else inverse_root(known)[0], share.unsqueeze(2)
        other = self._whitened(targets, root)
        outputs, samples = other.shape[2:]
        pairs = _of_one_output if outputs == 1 else _of_outputs
        adjusted = self.adjusted and samples > outputs + 1

        def information(out: Tensor) -> Tensor:
            parts = _parts(self._whitened(out, root), 1, other.shape[1] * outputs * outputs)
            return torch.cat([(pairs(w, other, adjusted) @ share).squeeze(2) for w in parts], 1)

        return information

    def _whitened(self, out: Float[Tensor, "R S b O"], root: Tensor | None) -> Float[Tensor, "R b K S"]:
        """W of each point, given what is known."""
        v = self.signals(out) if root is None else torch.einsum("rzs,rsbk->rzbk", root, self.signals(out))
        v = v.movedim(1, 3)
        if v.shape[2] == 1:
            return v * (v.square().sum(-1, keepdim=True) + 1).rsqrt()
        eye = torch.eye(v.shape[2], dtype=v.dtype, device=v.device)
        return inverse_root(v @ v.mT + eye)[0] @ v


def _of_one_output(
    one: Float[Tensor, "R b 1 S"], other: Float[Tensor, "R T 1 S"], adjusted: bool
) -> Float[Tensor, "R b T"]:
    """-1/2 log(1 - rho^2) of each pair."""
    one, other = one.squeeze(2), other.squeeze(2)
    squares = (one @ other.mT).square_()
    if adjusted:
        _beyond_chance(squares, one.square().sum(2), other.square().sum(2), one.shape[2], 1)
    return squares.clamp_(max=1 - torch.finfo(squares.dtype).eps).neg_().log1p_().mul_(-0.5)


def _of_outputs(
    one: Float[Tensor, "R b O S"], other: Float[Tensor, "R T O S"], adjusted: bool
) -> Float[Tensor, "R b T"]:
    """-1/2 log det(1 - M M^T) of each pair; what chance shows is taken off every direction by the same factor."""
    m = torch.einsum("rbos,rtps->rbtop", one, other)
    gram = m @ m.mT
    if adjusted:
        squares = m.square().sum((3, 4))
        spread = one.square().sum((2, 3)), other.square().sum((2, 3))
        kept = _beyond_chance(squares.clone(), *spread, one.shape[3], m.shape[3])
        gram = gram * (kept / squares.clamp_min(TINY)).clamp(max=1)[..., None, None]
    eye = torch.eye(m.shape[3], dtype=m.dtype, device=m.device)
    return inverse_root(eye - gram)[0].diagonal(dim1=-2, dim2=-1).log().sum(-1)


def _beyond_chance(
    squares: Float[Tensor, "R b T"],
    one: Float[Tensor, "R b"],
    other: Float[Tensor, "R T"],
    samples: int | Tensor,
    directions: int,
) -> Float[Tensor, "R b T"]:
    """|M|^2 less what points without anything in common show, in place, which takes a quarter of the time.

    It is scaled so that all of a whole dependence is kept.
    """
    left = torch.as_tensor(samples - 1 - directions).to(squares).clamp_min(1)
    squares.mul_((samples - 1) / left)
    return squares.addcmul_(one.unsqueeze(2) / left, other.unsqueeze(1), value=-1).clamp_(min=0)


@dataclass(frozen=True)
class Classes:
    """Labels that are classes.

    Args:
        probabilities: of the classes, from outputs.
        adjusted: less what chance shows.
        label_sets: how many M grows to.
        rng: draws sets when there are more.
    """

    probabilities: Callable[[Tensor], Tensor]
    adjusted: bool
    label_sets: int
    rng: Rng

    def start(self, out: Float[Tensor, "R S n O"]) -> LabelSets:
        """No label is known, and every net weighs the same."""
        return LabelSets.none(out)

    def given(self, known: LabelSets, out: Float[Tensor, "R S p O"]) -> LabelSets:
        """What may be known when points with these outputs have their labels too."""
        return known.given(self.probabilities(out), self.label_sets, self.rng)

    def about(self, known: LabelSets, targets: Float[Tensor, "R S T O"], share: Float[Tensor, "R T"]) -> Information:
        """What gives, of outputs [R, S, b, O], the information of their labels about those of the targets."""
        p, share = self.probabilities(targets).movedim(3, 2), share.unsqueeze(2)  # [R, S, C, T]
        others = [Weighted.of(p, weights) for weights in known.weights.unbind(1)]
        adjusted = self.adjusted and p.shape[1] > p.shape[2]

        def information(out: Tensor) -> Tensor:
            blocks = []
            for part in _parts(self.probabilities(out).movedim(3, 2), 3, p.shape[2] * p.shape[2] * p.shape[3]):
                each = torch.zeros(len(part), part.shape[3], 1, dtype=part.dtype, device=part.device)
                for mass, weights, other in zip(known.mass.unbind(1), known.weights.unbind(1), others, strict=True):
                    pairs = _of_classes(Weighted.of(part, weights), other, weights, adjusted)
                    each += mass.view(-1, 1, 1) * (pairs @ share)
                blocks.append(each.squeeze(2))
            return torch.cat(blocks, 1)

        return information


class Weighted(NamedTuple):
    """Class probabilities of n points by weighted nets."""

    mean: Float[Tensor, "R C n"]
    deviations: Float[Tensor, "R S C n"]  # from the mean of all nets alike, which rounds least
    shift: Float[Tensor, "R C n"]  # mean of the deviations by weight
    spread: Float[Tensor, "R n"]  # tr(W W^T)

    @staticmethod
    def of(p: Float[Tensor, "R S C n"], weights: Float[Tensor, "R S"]) -> Weighted:
        centre = p.mean(1)
        deviations = p - centre.unsqueeze(1)
        shift = torch.einsum("rs,rscn->rcn", weights, deviations)
        mean = (centre + shift).clamp_min(TINY)
        variance = torch.einsum("rs,rscn->rcn", weights, deviations.square()) - shift.square()
        return Weighted(mean, deviations, shift, (variance / mean).sum(1))


def _of_classes(one: Weighted, other: Weighted, weights: Tensor, adjusted: bool) -> Float[Tensor, "R b T"]:
    """Sum over classes of p(y, y*) log(p(y, y*) / p(y) p(y*)), by how much the table differs from that of strangers."""
    left = (one.deviations * weights[:, :, None, None]).flatten(2).mT
    classes, b = one.mean.shape[1:]
    both = (left @ other.deviations.flatten(2)).view(len(left), classes, b, *other.mean.shape[1:])  # [R, C, b, C, T]
    both -= one.shift[..., None, None] * other.shift[:, None, None]
    alone = one.mean[..., None, None] * other.mean[:, None, None]
    ratio = (both / alone).clamp_min_(-1)
    information = ((torch.special.xlog1py(1 + ratio, ratio) - ratio) * alone).sum((1, 3))
    if not adjusted:
        return information
    squares = (both * ratio).sum((1, 3))
    samples = 1 / weights.square().sum(1).view(-1, 1, 1)
    kept = _beyond_chance(squares.clone(), one.spread, other.spread, samples, classes - 1)
    return information * (kept / squares.clamp_min(TINY)).clamp(max=1)


def _parts(features: Tensor, axis: int, width: int) -> tuple[Tensor, ...]:
    """Along the axis of the points, such that `width` numbers of every point stay within the budget."""
    return features.split(max(1, predict.BUDGET // (len(features) * width)), axis)
