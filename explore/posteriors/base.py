"""Moved to `explore.inference.base` and `explore.inference.updates.steps`; this name goes with the next release."""

from explore.inference import base
from explore.inference.base import *  # noqa: F403
from explore.inference.norms import expand_norms
from explore.inference.updates import steps
from explore.inference.updates.steps import *  # noqa: F403


def with_norms(weights, shared, samples):  # type: ignore[no-untyped-def]
    """Now `Predictive.layers`."""
    return (*weights, *expand_norms(shared.norms, samples))


__all__ = [*(name for name in {**vars(base), **vars(steps)} if not name.startswith("_")), "with_norms"]
