"""Episodic novelty: the distance to the nearest observations of the episode, times a lifelong bonus (NGU).

Badia, Sprechmann, Vitvitskyi, Guo, Piot, Kapturowski, Tieleman, Arjovsky, Pritzel, Bolt, Blundell: Never Give Up
(2020). i = 1 / (sqrt(the sum of K(f(o'), f_i) over the nearest neighbours) + c) with K = e / (d^2 / d_m^2 + e), where
d is the distance of features and d_m^2 the running mean of its square; 0 if the root is above 8.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from explore.core.rng import Rng
from explore.vime.bonuses.episodic import EpisodicBonus, EpisodicSettings, Memory

CLUSTER, PSEUDO, KERNEL, MOST = 0.008, 0.001, 0.001, 8.0  # xi, c, epsilon and s_m of the paper


@dataclass(frozen=True, kw_only=True)
class NoveltySettings(EpisodicSettings):
    """Settings of episodic novelty."""

    lifelong: str | None = "rnd"
    neighbours: int = 10  # k
    memory: int = 1000  # most recent observations of an episode that are kept

    ranges: ClassVar[dict[str, str]] = {"neighbours": "[1, 1e4]", "memory": "[1, 1e6]"}


class Novelty(EpisodicBonus):
    """Novelty in the episode by nearest neighbours, times the lifelong bonus."""

    Settings = NoveltySettings
    saved = (*EpisodicBonus.saved, "distance")

    def __init__(self, settings: NoveltySettings, inputs: int, outputs: int, rng: Rng):
        super().__init__(settings, inputs, outputs, rng)
        self._distance = rng.tensor([0.0, 0.0])  # sum of mean squared distances of neighbours, and their number

    def empty(self, copies: int) -> Memory:
        seen = self._mean.new_zeros(copies, self.settings.memory, self.settings.features)
        return {"seen": seen, "number": torch.zeros(copies, dtype=torch.long, device=seen.device)}

    def see(self, features: Float[Tensor, "c F"], memory: Memory) -> tuple[Float[Tensor, " c"], Memory]:
        seen, number = memory["seen"], memory["number"]
        filled = torch.arange(seen.shape[1], device=seen.device) < number.unsqueeze(1)
        squares = torch.where(filled, (seen - features.unsqueeze(1)).square().sum(2), torch.inf)
        near = squares.topk(min(self.settings.neighbours, seen.shape[1]), largest=False).values  # [c, k]
        known = near.isfinite()
        self._distance = self._distance + torch.stack([near[known].sum(), known.sum()])
        mean = (self._distance[0] / self._distance[1].clamp_min(1)).clamp_min(1e-30)
        ratio = (near / mean - CLUSTER).clamp_min(0)
        similarity = torch.where(known, KERNEL / (ratio + KERNEL), 0.0).sum(1).sqrt() + PSEUDO
        rows = torch.arange(len(seen), device=seen.device)
        seen = seen.clone()
        seen[rows, number % seen.shape[1]] = features
        return torch.where(similarity > MOST, 0.0, 1 / similarity), {"seen": seen, "number": number + 1}
