"""Elliptical episodic bonus (E3B): novelty in the episode along directions of learned features (Henaff et al. 2022).

Henaff, Raileanu, Jiang, Rocktaeschel: Exploration via Elliptical Episodic Bonuses. i = f(o')^T C^-1 f(o') with C =
ridge I + the sum of f f^T over the episode so far.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from explore.vime.bonuses.episodic import EpisodicBonus, EpisodicSettings, Memory


@dataclass(frozen=True, kw_only=True)
class E3BSettings(EpisodicSettings):
    """Settings of the elliptical bonus."""

    ridge: float = 0.1  # lambda


class E3B(EpisodicBonus):
    """The squared length of the features of the next observation in the metric of the episode's second moments."""

    Settings = E3BSettings

    def empty(self, copies: int) -> Memory:
        size = self.settings.features
        return {"inverse": torch.eye(size).to(self._mean).expand(copies, size, size) / self.settings.ridge}

    def see(self, features: Float[Tensor, "c F"], memory: Memory) -> tuple[Float[Tensor, " c"], Memory]:
        inverse = memory["inverse"]
        image = (inverse @ features.unsqueeze(2)).squeeze(2)
        scores = (features * image).sum(1)
        change = image.unsqueeze(2) * image.unsqueeze(1) / (1 + scores)[:, None, None]
        return scores, {"inverse": inverse - change}
