"""Smallest margin between the two most likely classes (Scheffer, Decomain and Wrobel 2001).

The score is 1 - (p_1 - p_2), with p_1 and p_2 the largest two of the averaged class probabilities. The score is 1 if
p_1 = p_2, and 0 if one class is certain.
"""

from jaxtyping import Float
from torch import Tensor

from explore.acquisitions.base import Choice, Needs, View, best


def closeness(view: View) -> Float[Tensor, "R C"]:
    """Return 1 minus the margin of each candidate."""
    first, second = view.moments().mean.topk(2).values.unbind(-1)  # [R, C] each
    return 1 - (first - second)


@Needs(targets="classes", alone=True, scores=closeness)
def margin(view: View, k: int) -> Choice:
    """Choose the k points with the smallest margin; scores are 1 minus the margin."""
    return best(closeness(view), view.mask, k)
