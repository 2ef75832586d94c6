"""Smallest margin between the two likeliest classes (Scheffer, Decomain and Wrobel 2001).

1 - (p_1 - p_2), with the class probabilities averaged over the weights: 1 where two classes are equally likely, 0 where
one is certain. Points are scored one by one.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from explore.acquisitions.base import Choice, Needs, View, best


def closeness(view: View) -> Float[Tensor, "R C"]:
    """One minus the margin of each candidate."""
    first, second = view.moments().mean.topk(2).values.unbind(-1)  # [R, C] each
    return 1 - (first - second)


@Needs(targets="classes", alone=True, scores=closeness)
def margin(view: View, k: int) -> Choice:
    """The k points of the smallest margin; scores are 1 minus the margin."""
    return best(closeness(view), view.mask, k)
