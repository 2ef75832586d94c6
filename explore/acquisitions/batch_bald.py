"""BatchBALD: mutual information between a batch's labels and the weights (Kirsch et al. 2019, eq. 8).

Algorithm 1: greedy maximisation of I(y_1..y_k; w) = sum_i I(y_i; w | y_1..y_i-1). The i-th term is the score of the
i-th point. All terms are also conditioned on the labels of pending points.

For numbers, I(y; w | others) = 1/2 log det(I + tau Cov(f | others)), with noise precision tau and f Gaussian over the
weights. For classes, net s predicts the probabilities p_s [C]. The m-th set of labels of the other points has the
probability pi_m, and gives net s the weight w_ms. With the entropy H,

    I(y; w | others) = sum_m pi_m (H[sum_s w_ms p_s] - sum_s w_ms H[p_s]).

The sum is over all C^(i-1) sets if there are at most `label_sets` (up to 10 points for two classes, 4 for ten classes);
otherwise over `label_sets` random sets, which is unbiased. The paper estimates the joint entropy instead. If labels
are noisy, the most informative label may be a second label of nearly the same point.
"""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from explore.acquisitions.base import Choice, Needs, View
from explore.acquisitions.conditioning import greedy_given, labels_of
from explore.core.errors import Checked


def gains(view: View) -> Float[Tensor, "R C"]:
    """Score each candidate by the mutual information between its label and the weights, in nats (BALD)."""
    return view.each(labels_of(view, 1, double=True).gain(None))


@Needs(spread=True, costs=True, scores=gains)
@dataclass(frozen=True)
class BatchBALD(Checked):
    """A rule for the k points with the largest joint information gain; scores in nats, given earlier points' labels."""

    label_sets: int = 1000  # for classes: maximum number of sets of earlier points' labels to average over

    def __call__(self, view: View, k: int) -> Choice:
        labels = labels_of(view, self.label_sets, double=True)  # for small differences of entropies
        return greedy_given(view, k, None, lambda v, knowledge: v.each(labels.gain(knowledge)), labels.condition)
