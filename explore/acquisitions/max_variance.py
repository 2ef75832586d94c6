"""Largest predictive variance of the output (Zhang et al. 2017, Section 5.2).

With the same Gaussian noise everywhere this ranks single points as the information gain does. Several points at once
are the k largest, which may lie side by side; `information-gain` accounts for that.
"""

from explore.acquisitions.base import Choice, View, best


def max_variance(view: View, k: int) -> Choice:
    """The k points of the largest variance over the weights, summed over outputs."""
    return best(view.moments().variance.sum(-1), view.mask, k)
