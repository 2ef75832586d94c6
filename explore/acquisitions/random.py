"""Uniformly random points: the control that any other rule must beat."""

from explore.acquisitions.base import Choice, View, best


def random(view: View, k: int) -> Choice:
    """K points drawn without replacement; no prediction is made."""
    return best(view.uniform, view.mask, k)
