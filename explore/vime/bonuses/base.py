"""The interface of bonuses, and what bonuses without a posterior share.

A bonus is a model that scores transitions and learns from those in the replay. `explore.vime.IntrinsicReward` stores
transitions, scales the scores and saves the model. A new bonus is a subclass of `Bonus` in a file of its own.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from explore import registry
from explore.core import tree
from explore.core.errors import Checked, InputError, shown
from explore.core.rng import Rng
from explore.learning.scaling import Standardiser, bounded
from explore.nets.net import mlp
from explore.vime.replay import Replay

__all__ = ["Bonus", "BonusSettings", "InverseBonus", "NetBonus", "NetSettings", "ScaledBonus", "find", "network"]
CHUNK = 1024  # transitions scored at once


@dataclass(frozen=True, kw_only=True)
class BonusSettings(Checked):
    """Settings of every bonus."""

    capacity: int = 100_000  # maximum number of transitions in the replay
    minimum: int = 500  # transitions stored before the first training

    ranges: ClassVar[dict[str, str]] = {"capacity": "[1, 1e7]", "minimum": "[1, 1e7]"}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.capacity < self.minimum:
            raise InputError(f"capacity is {self.capacity}; it must be at least minimum, {self.minimum}")


class Bonus(ABC):
    """A model that scores transitions and learns from them.

    Its I `inputs` are the observation (first O numbers) and the action; `following` is the next observation, O numbers.
    """

    Settings: ClassVar[type[BonusSettings]] = BonusSettings
    episodic: ClassVar[bool] = False  # whether scores depend on the episode so far
    saved: ClassVar[tuple[str, ...]] = ()  # names of learned tensors, or trees of tensors, without the _
    alive = True  # whether training has not diverged
    settings: Any  # an instance of `Settings`

    @abstractmethod
    def __init__(self, settings: Any, inputs: int, outputs: int, rng: Rng): ...

    @abstractmethod
    def score(self, inputs: Float[Tensor, "n I"], following: Float[Tensor, "n O"], rng: Rng) -> Float[Tensor, " n"]:
        """Return the bonuses before scaling. An episodic bonus takes each transition as the first of an episode."""

    @abstractmethod
    def train(self, replay: Replay, rng: Rng) -> None:
        """Learn from the replay, whose last transitions are new."""

    def tree(self) -> dict[str, Any]:
        """Return the tree of all learned tensors."""
        return {name: getattr(self, f"_{name}") for name in self.saved}

    def restore(self, values: Mapping[str, Any]) -> None:
        """Take the values of a `tree`."""
        vars(self).update({f"_{name}": values[name] for name in self.saved})

    def state_dict(self) -> dict[str, Tensor]:
        """Return all that was learned as tensors by name; the memory of unfinished episodes is not saved."""
        return tree.save(self.tree())

    def load_state_dict(self, saved: Mapping[str, Tensor]) -> None:
        """Resume from the `state_dict` of a model with the same settings."""
        self.restore(tree.restore(self.tree(), saved))

    def follow(
        self, inputs: Float[Tensor, "n I"], following: Float[Tensor, "n O"], episodes: Int[Tensor, "n 2"] | None,
        rng: Rng,
    ) -> Float[Tensor, " n"]:  # fmt: skip
        """Score transitions, from oldest to newest, of these copies of the environment and their `episodes`."""
        chunks = zip(inputs.split(CHUNK), following.split(CHUNK), strict=True)
        # Every chunk restarts the stream: all transitions are scored with the same weights.
        return torch.cat([self.score(*chunk, rng.shard()) for chunk in chunks])

    def quality(self, inputs: Tensor, following: Tensor, rng: Rng) -> dict[str, float]:
        """Return measures of the model's predictions of these transitions, by name."""
        return {}

    @property
    def learned(self) -> dict[str, float]:
        """Learned values to log, by name."""
        return {}


def find(name: str) -> type[Bonus]:
    """Return a bonus by name or "module:Class". Raise InputError for what is no bonus."""
    cls = registry.find("bonuses", name)
    if not (isinstance(cls, type) and issubclass(cls, Bonus)):
        raise InputError(f"bonus is {shown(name)}; its class must be a subclass of explore.vime.Bonus")
    return cls


class ScaledBonus(Bonus):
    """A bonus that learns each transition once, on robust scales that are recomputed when their number has doubled."""

    saved: ClassVar[tuple[str, ...]] = ("mean", "scale", "total", "scaled")

    def __init__(self, settings: BonusSettings, inputs: int, outputs: int, rng: Rng):
        self.settings, self.inputs, self.outputs = settings, inputs, outputs
        self._mean, self._scale = rng.tensor([[0.0] * inputs]), rng.tensor([[1.0] * inputs])
        self._total = self._scaled = torch.tensor(0)  # transitions at the last training, and when scales were computed

    @abstractmethod
    def learn(self, inputs: Float[Tensor, "n I"], following: Float[Tensor, "n O"], anew: bool, rng: Rng) -> None:
        """Learn standardised transitions: the new ones or, if the scales are new (`anew`), the whole replay."""

    def train(self, replay: Replay, rng: Rng) -> None:
        anew, transitions = replay.unlearned(self._total, self._scaled)
        if anew:
            self._mean, self._scale = Standardiser.robust(replay.sample(rng)[0])
            self._scaled = torch.tensor(replay.total)
        self.learn(*self.standard(*transitions), anew, rng)
        self._total = torch.tensor(replay.total)

    def standard(self, inputs: Float[Tensor, "n I"], following: Float[Tensor, "n O"]) -> tuple[Tensor, Tensor]:
        """Return transitions in standard scores of the inputs."""
        next_mean, next_scale = self._mean[:, : self.outputs], self._scale[:, : self.outputs]
        return bounded((inputs - self._mean) / self._scale), bounded((following - next_mean) / next_scale)


@dataclass(frozen=True, kw_only=True)
class NetSettings(BonusSettings):
    """Settings of bonuses from neural networks."""

    units: int = 64  # of hidden layers
    features: int = 32  # that the networks compute of an observation
    lr: float = 0.003  # of Adam
    batch_size: int = 50  # transitions per step

    ranges: ClassVar[dict[str, str]] = {"units": "[1, 1e5]", "features": "[1, 1e5]", "batch_size": "[1, 1e7]"}


class NetBonus(ScaledBonus):
    """A bonus from neural networks, which see each new transition once."""

    Settings = NetSettings

    def __init__(self, settings: NetSettings, inputs: int, outputs: int, rng: Rng):
        super().__init__(settings, inputs, outputs, rng)
        self.nets = nn.ModuleDict(self.build(rng))
        self._optimiser = torch.optim.Adam(self.nets.parameters(), settings.lr)
        for p in self.nets.parameters():  # so that there is a state to save before the first step
            moments = {name: torch.zeros_like(p) for name in ("exp_avg", "exp_avg_sq")}
            self._optimiser.state[p] = {"step": torch.tensor(0.0), **moments}

    @abstractmethod
    def build(self, rng: Rng) -> dict[str, nn.Module]:
        """Return the networks by name, as made by `network`."""

    @abstractmethod
    def loss(self, inputs: Float[Tensor, "n I"], following: Float[Tensor, "n O"]) -> Float[Tensor, " n"]:
        """Return the loss of each standardised transition."""

    def learn(self, inputs: Tensor, following: Tensor, anew: bool, rng: Rng) -> None:
        for rows in rng.permutation(1, len(inputs))[0].split(self.settings.batch_size):
            self._optimiser.zero_grad()
            self.loss(inputs[rows], following[rows]).mean().backward()
            self._optimiser.step()
        self.alive = all(bool(p.isfinite().all()) for p in self.nets.parameters())

    def tree(self) -> dict[str, Any]:
        nets, adam = dict(self.nets.state_dict()), self._optimiser.state_dict()["state"]
        return super().tree() | {"nets": nets, "adam": adam}

    def restore(self, values: Mapping[str, Any]) -> None:
        super().restore(values)
        self.nets.load_state_dict(values["nets"])
        groups = self._optimiser.state_dict()["param_groups"]
        self._optimiser.load_state_dict({"state": values["adam"], "param_groups": groups})


class InverseBonus(NetBonus):
    """A bonus on features f(o), learned together with an inverse model that predicts the action from f(o) and f(o')."""

    def build(self, rng: Rng) -> dict[str, nn.Module]:
        s = self.settings
        encoder = network(rng, self.outputs, (s.units,), s.features)
        return {"encoder": encoder, "inverse": network(rng, 2 * s.features, (s.units,), self.inputs - self.outputs)}

    def encode(self, observations: Float[Tensor, "n O"]) -> Float[Tensor, "n F"]:
        return self.nets["encoder"](observations)

    def loss(self, inputs: Tensor, following: Tensor) -> Float[Tensor, " n"]:
        both = self.encode(inputs[:, : self.outputs]), self.encode(following)
        return self.inverse_loss(*both, inputs[:, self.outputs :])

    def inverse_loss(self, before: Tensor, after: Tensor, actions: Tensor) -> Float[Tensor, " n"]:
        """Return the mean squared error of predicted actions, in standard scores."""
        return (self.nets["inverse"](torch.cat([before, after], 1)) - actions).square().mean(1)


def network(rng: Rng, inputs: int, hidden: tuple[int, ...], outputs: int) -> nn.Module:
    """Build a ReLU network with random orthogonal weights of gain sqrt(2) and no biases, as Burda et al. (2018) do."""
    with torch.random.fork_rng(devices=[]):  # PyTorch's layers draw initial weights, which are not used
        net = mlp(inputs, hidden, outputs).to(rng.device)
    for layer in net.modules():
        if isinstance(layer, nn.Linear):
            nn.init.orthogonal_(layer.weight, 2**0.5, generator=rng.generator)
            nn.init.zeros_(layer.bias)
    return net
