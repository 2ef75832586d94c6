"""Mutual information between the label and the weights (MacKay 1992; BALD, Houlsby et al. 2011).

I(y; w) = H[E_q p(y | w)] - E_q H[p(y | w)]. Batches are chosen by `batch-bald` with its default settings.
"""

from explore.acquisitions.base import Choice, Needs, View
from explore.acquisitions.batch_bald import BatchBALD, gains


@Needs(spread=True, costs=True, scores=gains)
def information_gain(view: View, k: int) -> Choice:
    """Choose the k points with the largest joint information gain; scores in nats, given earlier points' labels."""
    return BatchBALD()(view, k)
