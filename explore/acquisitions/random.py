"""Uniformly random points: the baseline that any other rule must beat."""

from explore.acquisitions.base import Choice, View, best


def random(view: View, k: int) -> Choice:
    """Draw k points uniformly without replacement, without predictions; scores are random numbers."""
    return best(view.uniform, view.mask, k)
