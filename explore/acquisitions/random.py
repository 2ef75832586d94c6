"""Uniformly random points: the baseline that any other rule must beat."""

from explore.acquisitions.base import Choice, View, best


def random(view: View, k: int) -> Choice:
    """Draw k points uniformly without replacement; this needs no predictions."""
    return best(view.uniform, view.mask, k)
