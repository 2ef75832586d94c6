"""Largest predictive variance of the output (Zhang et al. 2017, Section 5.2).

With equal Gaussian noise at all points, this ranks single points in the same order as `information-gain`, but a batch
may contain near-duplicates. For classes, the score is the variance of the class probabilities, not of the logits.
"""

from jaxtyping import Float
from torch import Tensor

from explore.acquisitions.base import Choice, Needs, View, best


def variances(view: View) -> Float[Tensor, "R C"]:
    """Return the variance of each candidate over the weights, summed over outputs or classes."""
    return view.each(lambda out: view.predictor.moments_of(out).variance.sum(-1))


@Needs(spread=True, alone=True, scores=variances)
def max_variance(view: View, k: int) -> Choice:
    """Choose the k points with the largest variance over the weights, summed over outputs or classes."""
    return best(variances(view), view.mask, k)
