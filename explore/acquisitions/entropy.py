"""Largest entropy of the predicted class: uncertainty sampling (Shannon 1948; Lewis and Gale 1994).

H[E_q p(y | x, w)] = - sum_c p_c log p_c, with class probabilities p averaged over the weights. Points where classes
overlap score as high as points where the sampled nets disagree; `information-gain` distinguishes them.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from explore.acquisitions.base import Choice, Needs, View, best


def entropies(view: View) -> Float[Tensor, "R C"]:
    """Return the entropy of the predicted class of each candidate, in nats."""
    return torch.special.entr(view.moments().mean).sum(-1)


@Needs(targets="classes", alone=True, scores=entropies)
def entropy(view: View, k: int) -> Choice:
    """Choose the k points with the largest entropy; scores in nats."""
    return best(entropies(view), view.mask, k)
