"""Largest predictive variance of the output (Zhang et al. 2017, Section 5.2).

With the same Gaussian noise everywhere this ranks single points as the information gain does, but several points may be
near-duplicates. For classes it is the variance of the probabilities, not of the outputs.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from explore.acquisitions.base import Choice, Needs, View, best


def variances(view: View) -> Float[Tensor, "R C"]:
    """Variances, summed over outputs or classes."""
    return view.each(lambda out: view.predictor.moments_of(out).variance.sum(-1))


@Needs(spread=True, alone=True, scores=variances)
def max_variance(view: View, k: int) -> Choice:
    """The k points of the largest variance over the weights, summed over outputs or classes."""
    return best(variances(view), view.mask, k)
