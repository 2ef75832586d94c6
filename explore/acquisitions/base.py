"""What an acquisition rule sees, and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from explore import predict
from explore.errors import InputError
from explore.likelihoods import Likelihood, Noise
from explore.nets import Layer, Net
from explore.rng import Rng


class Choice(NamedTuple):
    """The points to label next, best first, and what the rule thought of them."""

    indices: Int[Tensor, "R k"]
    scores: Float[Tensor, "R k"]


@dataclass(frozen=True)
class View:
    """One arm's replicas at the moment of choosing. No prediction is made before it is asked for.

    Args:
        net: the network.
        likelihood: of the targets.
        x: [R, P, ...] standardised inputs of all points.
        mask: [R, P] which points may be chosen.
        draw: gives the weight samples of these replicas; called at most once, and not at all by a rule that
            needs no prediction.
        noise: the likelihood's expected noise parameter.
        rng: the stream for the rule's own draws.
    """

    net: Net
    likelihood: Likelihood
    x: Tensor
    mask: Bool[Tensor, "R P"]
    draw: Callable[[], tuple[Layer, ...]]
    noise: Noise
    rng: Rng

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """The weight samples, the same for every point.

        Raises:
            InputError: for a single sample, which has no spread.
        """
        layers = self.draw()
        if predict.count(layers) < 2:
            raise InputError("this acquisition needs at least 2 weight samples (or ensemble members)")
        return layers

    def moments(self) -> predict.Moments:
        """Mean and variance of the output at every point."""
        return predict.moments(self.net, self.layers, self.x)

    def chunks(self) -> Iterator[Float[Tensor, "R S b O"]]:
        """Outputs at every point, a chunk of points at a time."""
        return (out for _, out in predict.outputs(self.net, self.layers, self.x))

    def draws(self, indices: Int[Tensor, "R k"]) -> Float[Tensor, "R S k O"]:
        """Outputs at chosen points, jointly over S."""
        rows = torch.arange(len(indices), device=indices.device).unsqueeze(1)
        return torch.cat([out for _, out in predict.outputs(self.net, self.layers, self.x[rows, indices])], 2)


Acquisition = Callable[[View, int], Choice]


def by_spread(alone: Literal["always", "classes"]) -> Callable[[Acquisition], Acquisition]:
    """Marks a rule that goes by how predictions vary over the weights.

    Args:
        alone: when it scores points one by one, so that several at once may lie side by side.
    """

    def mark(rule: Acquisition) -> Acquisition:
        vars(rule).update(needs_spread=True, alone=alone)
        return rule

    return mark


def needs_spread(rule: Acquisition) -> bool:
    """Whether it cannot choose by a single net."""
    return getattr(rule, "needs_spread", False)


def name_of(rule: Acquisition) -> str:
    """The name of a rule of this package, "module:name" of another one."""
    named = rule if hasattr(rule, "__qualname__") else type(rule)
    home, _, file = named.__module__.rpartition(".")
    return file.replace("_", "-") if home == __package__ else f"{named.__module__}:{named.__qualname__}"


def best(scores: Float[Tensor, "R P"], mask: Bool[Tensor, "R P"], k: int) -> Choice:
    """The k allowed points of the highest score; a score that is not finite ranks below every other."""
    lowest = torch.finfo(scores.dtype).min
    ranked = torch.where(mask, torch.where(scores.isfinite(), scores, lowest), -torch.inf).topk(k)
    return Choice(ranked.indices, scores.gather(1, ranked.indices))


class RedundancyWarning(UserWarning):
    """Points that are labelled at once may tell the same."""


def redundancy(rule: Acquisition, likelihood: Likelihood, k: int) -> str:
    """A sentence where a rule scores k points one by one, whatever is chosen with them; else nothing."""
    alone, classes = getattr(rule, "alone", "never"), hasattr(likelihood, "probabilities")
    if k == 1 or not (alone == "always" or (alone == "classes" and classes)):
        return ""
    other = "no rule for classes does, so take fewer at once" if classes else "information-gain does"
    return (
        f"{name_of(rule)} scores points one by one and does not ask what the others tell, so that {k} chosen together "
        f"may be near-duplicates; {other}"
    )


def checked(answer: Any, rule: Acquisition, mask: Bool[Tensor, "R P"], k: int) -> Choice:
    """A rule's answer.

    Raises:
        InputError: where it is not k different points that may be chosen; the message names the rule.
    """
    try:
        indices, scores = answer
        shapes = {tuple(indices.shape), tuple(scores.shape)}
    except (TypeError, ValueError, AttributeError):
        raise InputError(f"the acquisition {name_of(rule)} must answer with indices and scores") from None
    if shapes != {(len(mask), k)} or indices.dtype != torch.int64:
        raise InputError(
            f"the acquisition {name_of(rule)} must answer with indices (int64) and scores, [{len(mask)}, {k}] each"
        )
    for row, free in zip(indices.tolist(), mask.cpu().numpy(), strict=True):
        if len(set(row)) < k or not all(0 <= i < len(free) and free[i] for i in row):
            raise InputError(
                f"the acquisition {name_of(rule)} chose the points {row}; "
                f"it must choose {k} different ones that may be chosen"
            )
    return Choice(indices, scores)
