"""Disagreement of an ensemble of dynamics models (Pathak et al. 2019).

Pathak, Gandhi, Gupta: Self-Supervised Exploration via Disagreement.
"""

from dataclasses import dataclass

from explore.inference.base import Predictive
from explore.vime.bonuses.variance import Variance
from explore.vime.dynamics import DynamicsSettings


@dataclass(frozen=True, kw_only=True)
class DisagreementSettings(DynamicsSettings):
    """Settings of a dynamics model that is an ensemble, if nothing else is chosen."""

    posterior: str | Predictive = "ensemble"
    updates: int = 500
    batch_size: int = 10


class Disagreement(Variance):
    """The variance of the predicted next observation over the members of an ensemble."""

    Settings = DisagreementSettings
