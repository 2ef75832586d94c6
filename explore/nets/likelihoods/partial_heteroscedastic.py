"""Gaussian likelihood with input-dependent noise for several real targets, some of which may be missing."""

from dataclasses import dataclass

from explore.nets.likelihoods.heteroscedastic import Heteroscedastic
from explore.nets.likelihoods.partial_gaussian import PartialGaussian


@dataclass(frozen=True)
class PartialHeteroscedastic(PartialGaussian, Heteroscedastic):
    """`Heteroscedastic` for several targets; NaN marks a missing target, which is ignored in training."""
