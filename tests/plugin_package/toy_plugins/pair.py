"""Toy pair: two nets, the smallest ensemble."""

from dataclasses import dataclass

from explore.posteriors.ensemble import Ensemble


@dataclass(frozen=True, kw_only=True)
class ToyPair(Ensemble):
    """An ensemble of two."""

    members: int = 2
