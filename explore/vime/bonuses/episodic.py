"""Bonuses that compare an observation with those seen before in the same episode."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from explore.core import tree
from explore.core.errors import InputError
from explore.core.rng import Rng
from explore.vime.bonuses.base import Bonus, InverseBonus, NetSettings, find
from explore.vime.replay import Replay

__all__ = ["EpisodicBonus", "EpisodicSettings", "Memory"]
Memory = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class EpisodicSettings(NetSettings):
    """Settings of episodic bonuses."""

    lifelong: str | None = None  # another bonus; its standard score s multiplies this one by 1 + s, within [1, 5]


class EpisodicBonus(InverseBonus):
    """A bonus with a memory of the current episode of each copy of the environment."""

    Settings = EpisodicSettings
    episodic = True
    saved = (*InverseBonus.saved, "level", "spread")

    def __init__(self, settings: EpisodicSettings, inputs: int, outputs: int, rng: Rng):
        super().__init__(settings, inputs, outputs, rng)
        self._episodes = torch.zeros(0, dtype=torch.long, device=rng.device)  # whose memory each copy has
        self._memory = self.empty(0)
        self.lifelong: Bonus | None = None
        self._level, self._spread = rng.tensor(0.0), rng.tensor(1.0)  # of the lifelong bonus, in the last batch
        if settings.lifelong is not None:
            cls = find(settings.lifelong)
            if cls.episodic:
                raise InputError(f"lifelong is {settings.lifelong}, which is episodic; choose a bonus that is not")
            own = cls.Settings(capacity=settings.capacity, minimum=settings.minimum)
            self.lifelong = cls(own, inputs, outputs, rng.shard(1))

    @abstractmethod
    def empty(self, copies: int) -> Memory:
        """Return the memories of episodes before their first step, [copies, ...] each."""

    @abstractmethod
    def see(self, features: Float[Tensor, "c F"], memory: Memory) -> tuple[Float[Tensor, " c"], Memory]:
        """Score one step of each of c copies, and return the scores and the memories after it."""

    def score(self, inputs: Tensor, following: Tensor, rng: Rng) -> Float[Tensor, " n"]:
        scores, _ = self.see(self._features(inputs, following), self.empty(len(inputs)))
        return scores * self._factor(inputs, following, rng)

    def follow(
        self, inputs: Tensor, following: Tensor, episodes: Int[Tensor, "n 2"] | None, rng: Rng
    ) -> Float[Tensor, " n"]:
        if episodes is None:
            return self.score(inputs, following, rng)
        features, scores = self._features(inputs, following), torch.zeros_like(inputs[:, 0])
        if (more := int(episodes[:, 0].amax()) + 1 - len(self._episodes)) > 0:
            self._episodes = torch.cat([self._episodes, torch.full((more,), -1, device=self._episodes.device)])
            self._memory = {name: torch.cat([self._memory[name], new]) for name, new in self.empty(more).items()}
        for rows in _steps(episodes[:, 0]):
            copies, numbers = episodes[rows].unbind(1)
            goes_on = self._episodes[copies] == numbers
            memory = tree.where(goes_on, tree.part(self._memory, copies), self.empty(len(copies)))
            scores[rows], memory = self.see(features[rows], memory)
            self._episodes[copies] = numbers
            for name, values in memory.items():
                self._memory[name][copies] = values
        return scores * self._factor(inputs, following, rng)

    def train(self, replay: Replay, rng: Rng) -> None:
        number = replay.total - int(self._total)
        super().train(replay, rng)
        if self.lifelong is not None:
            new = self.lifelong.follow(*replay.last(max(number, 2)), None, rng)
            self._level, self._spread = new.mean(), new.std()
            self.lifelong.train(replay, rng)
            self.alive = self.alive and self.lifelong.alive

    def _features(self, inputs: Tensor, following: Tensor) -> Float[Tensor, "n F"]:
        with torch.no_grad():
            return self.encode(self.standard(inputs, following)[1])

    def _factor(self, inputs: Tensor, following: Tensor, rng: Rng) -> Float[Tensor, " n"] | float:
        if self.lifelong is None:
            return 1.0
        scores = self.lifelong.follow(inputs, following, None, rng)
        return (1 + (scores - self._level) / self._spread.clamp_min(1e-30)).clamp(1, 5)

    def state_dict(self) -> dict[str, Tensor]:
        inner = self.lifelong.state_dict() if self.lifelong is not None else {}
        return super().state_dict() | {f"lifelong/{name}": value for name, value in inner.items()}

    def load_state_dict(self, saved: Mapping[str, Tensor]) -> None:
        inner = {k.removeprefix("lifelong/"): v for k, v in saved.items() if k.startswith("lifelong/")}
        super().load_state_dict({k: v for k, v in saved.items() if not k.startswith("lifelong/")})
        if self.lifelong is not None:
            self.lifelong.load_state_dict(inner)


def _steps(copies: Int[Tensor, " n"]) -> Iterator[Int[Tensor, " c"]]:
    """Yield the rows of the first transition of each copy, then of the second, and so on."""
    numbers = pd.Series(copies.cpu().numpy())
    for rows in numbers.groupby(numbers.groupby(numbers).cumcount().to_numpy()).groups.values():
        yield torch.tensor(rows.to_numpy(), device=copies.device)
