"""Moved to `explore.inference.gaussian`; this name goes with the next release."""

from explore.inference import gaussian
from explore.inference.gaussian import *  # noqa: F403
from explore.inference.gaussian import GaussianPosterior as CoordinateGaussian

__all__ = [*(name for name in vars(gaussian) if not name.startswith("_")), "CoordinateGaussian"]
