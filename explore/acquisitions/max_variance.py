"""Largest predictive variance of the output (Zhang et al. 2017, Section 5.2).

With the same Gaussian noise everywhere this ranks single points as the information gain does. Several points at once
are the k largest, which may lie side by side; `information-gain` accounts for that. For classes it is the variance of
the probabilities: that of the outputs also counts what the probabilities do not depend on.
"""

import torch

from explore.acquisitions.base import Choice, View, best, by_spread


@by_spread(alone="always")
def max_variance(view: View, k: int) -> Choice:
    """The k points of the largest variance over the weights, summed over outputs or classes."""
    if hasattr(view.likelihood, "probabilities"):
        spread = [view.likelihood.probabilities(out).var(1).sum(-1) for out in view.chunks()]
        return best(torch.cat(spread, 1), view.mask, k)
    return best(view.moments().variance.sum(-1), view.mask, k)
