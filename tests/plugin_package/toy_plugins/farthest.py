"""Farthest: the points that lie farthest from the origin of the standardised inputs."""

from explore.acquisitions.base import Choice, View, best


def farthest(view: View, k: int) -> Choice:
    """The k points of the largest norm; no prediction is made."""
    return best(view.x.flatten(2).norm(dim=2), view.mask, k)
