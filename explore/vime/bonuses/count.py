"""Visit counts of hashed observations (Tang et al. 2017).

Tang, Houthooft, Foote, Stooke, Chen, Duan, Schulman, De Turck, Abbeel: #Exploration, a study of count-based exploration
for deep reinforcement learning. i = 1 / sqrt(n(h(o'))), where the bits of the hash h are the signs of random
projections (SimHash). Here projections have an offset, so that observations in the same direction can differ.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from explore.core.rng import Rng
from explore.vime.bonuses.base import BonusSettings, ScaledBonus


@dataclass(frozen=True, kw_only=True)
class CountSettings(BonusSettings):
    """Settings of visit counts."""

    bits: int = 32  # of the hash; more bits distinguish more observations

    ranges: ClassVar[dict[str, str]] = {"bits": "[1, 62]"}


class Count(ScaledBonus):
    """One over the square root of the number of visits, with the visit that is scored."""

    Settings = CountSettings
    saved = (*ScaledBonus.saved, "directions", "codes", "counts")

    def __init__(self, settings: CountSettings, inputs: int, outputs: int, rng: Rng):
        super().__init__(settings, inputs, outputs, rng)
        self._directions = rng.normal(outputs + 1, settings.bits)
        none = torch.zeros(1, dtype=torch.long, device=rng.device)
        self._codes, self._counts = none - 1, none  # sorted; no code is negative

    def learn(self, inputs: Tensor, following: Tensor, anew: bool, rng: Rng) -> None:
        new, counts = self._hashed(following).unique(return_counts=True)
        if not anew:
            new, inverse = torch.cat([self._codes, new]).unique(return_inverse=True)
            counts = torch.zeros_like(new).index_add_(0, inverse, torch.cat([self._counts, counts]))
        self._codes, self._counts = new, counts

    def score(self, inputs: Tensor, following: Tensor, rng: Rng) -> Float[Tensor, " n"]:
        codes = self._hashed(self.standard(inputs, following)[1])
        at = torch.searchsorted(self._codes, codes).clamp_max(len(self._codes) - 1)
        visits = torch.where(self._codes[at] == codes, self._counts[at], 0)
        return (1 + visits).rsqrt()

    def _hashed(self, observations: Float[Tensor, "n O"]) -> Int[Tensor, " n"]:
        signs = observations @ self._directions[1:] + self._directions[0] > 0
        return (signs << torch.arange(self.settings.bits, device=signs.device)).sum(1)

    def load_state_dict(self, saved: Mapping[str, Tensor]) -> None:
        self._codes, self._counts = (torch.zeros_like(saved[name]) for name in ("codes", "counts"))  # of any length
        super().load_state_dict(saved)
