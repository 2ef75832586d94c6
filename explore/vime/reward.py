"""The intrinsic reward: how much information a transition gives about the environment's dynamics.

Houthooft, Chen, Duan, Schulman, De Turck, Abbeel: VIME, Variational Information Maximizing Exploration (2016). After
every batch of experience, these steps follow (q is the posterior over the weights of the dynamics model):

    r'_t = r_t + eta * min(KL(q' || q) / d, 100)   q: before the batch; q': after a small step on transition t alone
    d    = this batch's median KL
    the batch joins the replay, and q is trained on it

In the paper, d is the mean of the last 10 batch medians (`normalise="median"`), and nothing is clipped (`clip=None`).
The authors' code clips the KL itself, at 1000.
"""

import warnings
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from jaxtyping import Bool, Float
from torch import Tensor

from explore.core import tree
from explore.core.errors import Checked, Failure, InputError, check_known
from explore.core.rng import Rng
from explore.vime.bonuses import base as bonuses
from explore.vime.bonuses.base import Bonus
from explore.vime.replay import Replay
from explore.vime.spaces import Array, Encoder, Vectors

QUEUE = 10  # number of batches over which the divisor is averaged
CHECKED = 2**13  # about the most numbers on which the quality of the model is measured, in at least 64 transitions
LARGEST = float(torch.finfo(torch.float32).max)  # placeholder for a bonus that overflows
MOST = 1e12  # maximum bonus; squared returns stay finite in single precision
ETA = 0.001  # the largest automatic weight, relative to the largest reward
SHARE = 0.2  # with an automatic weight, the most bonus of a mean episode, relative to the largest reward
RECENT = 0.9  # factor on the counts of steps and episodes after each batch
FORMAT = 6  # of a saved state
COUNTERS = ("batches", "dropped", "restarts")
OBSERVED = ("_largest", "_multiple", "_steps", "_ends")  # for an automatic weight


@dataclass(frozen=True, kw_only=True)
class RewardSettings(Checked):
    """Settings of the bonus: its kind, scale and weight."""

    # The weight of the bonus. "auto": ETA times the largest absolute reward of a step so far, or 1; but less if a mean
    # episode's bonus would exceed SHARE times that reward, so that it does not outbid the environment.
    eta: float | Literal["auto"] = "auto"
    eta_decay: float = 1.0  # factor on eta after each batch
    bonus: str = "expected-gain"  # a name from `explore list bonuses`, or "module:Class"
    # The divisor of the bonus. "first": the median of the first paid batch, so that the bonus fades as the model
    # learns; "latest": that of the latest batch, so that the median bonus is always eta; "median": the mean of the last
    # 10 batch medians, as in the paper; "rms": the root mean square of the last 10 batches.
    normalise: Literal["first", "latest", "median", "rms", "none"] = "latest"
    clip: float | None = 100.0  # clips a bonus at this multiple of the divisor; None: no clipping, as in the paper
    interval: int = 5000  # transitions per batch, if experience arrives step by step

    ranges: ClassVar[dict[str, str]] = {"eta": "[0, inf)", "eta_decay": "(0, 1]", "interval": "[1, inf)"}


class Reward(NamedTuple):
    """The bonuses of n transitions before and after scaling, [n] each."""

    raw: Array  # in the unit of the bonus; in nats for "kl" and "expected-gain"
    scaled: Array  # eta * raw / divisor, added to the environment's reward


class Transitions(NamedTuple):
    """A batch of n steps of an environment, as vectors."""

    observations: Array  # [n, O]
    actions: Array  # [n, A]
    following: Array  # [n, O], the next observations; at the end of an episode its last one, not the one after reset
    # [n, 2], for episodic bonuses: the copy of the environment, and the number of its episode. None: each transition is
    # the first of an episode.
    episodes: Array | None = None


class IntrinsicReward:
    """An intrinsic reward, which scores transitions, stores them, and trains the model of the bonus on them.

    Transitions with NaN or infinity are dropped. A bonus that overflows is clipped (to at most 1e12) and does not enter
    the divisor. A model that diverges is restarted once and trained on all stored transitions.

    Args:
        observation_space: observation space of one environment.
        action_space: action space of one environment.
        seed: root of the random numbers.
        device: device of the model.
        encoder: a function that converts observations to vectors, see `Vectors`.
        settings: any fields of `RewardSettings` and of the bonus's own `Settings` (with a posterior:
            `DynamicsSettings`).
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        *,
        seed: int = 0,
        device: str | torch.device = "cpu",
        encoder: Encoder | str | None = None,
        **settings: Any,
    ):
        settings = {k: tuple(v) if isinstance(v, list) else v for k, v in settings.items()}  # JSON has no tuples
        self._kind = bonuses.find(settings.get("bonus", RewardSettings.bonus))
        bonus, model = ({f.name for f in fields(kind)} for kind in (RewardSettings, self._kind.Settings))
        check_known("setting", sorted(settings), bonus | model)
        self.settings = RewardSettings(**{k: v for k, v in settings.items() if k in bonus})
        self.model_settings = self._kind.Settings(**{k: v for k, v in settings.items() if k in model})
        self.observations = Vectors(observation_space, "observations", encoder)
        self.actions = Vectors(action_space, "actions")
        self._device = device
        self.seed(seed)
        self.model_settings = self.model.settings  # with the values that None stands for

    def seed(self, seed: int) -> None:
        """Start over with this seed, an empty replay and an untrained model."""
        self.rng = Rng(seed, self._device)
        self.model: Any = self._fresh()  # of type `Bonus`
        self.replay = Replay(self.model_settings.capacity, *self._sizes, self._device)
        self.metrics: dict[str, float] = {}  # of the last finished batch, by TensorBoard tag
        self.batches = self.dropped = self.restarts = 0  # finished batches, dropped transitions, restarts of the model
        self.paid = False  # whether any bonus was not 0, before its weight eta
        self.temperature = 1.0  # a further factor on the weight, see `MaxInfoSAC`
        self._largest = 1.0  # the largest absolute reward so far, or 1
        self._steps = self._ends = 0.0  # recent steps, and ends of episodes
        self._multiple = 0.0  # the mean of `multiples` in the latest batch
        self._trained = False
        self._levels: deque[float] = deque(maxlen=QUEUE)  # one per batch; the divisor is computed from them
        self._open: list[Array] = []  # raw bonuses of the steps in the unfinished batch ...
        self._begin = 0  # ... and the number of transitions before it

    @property
    def eta(self) -> float:
        """The current weight of the bonus, after decay."""
        eta = self.settings.eta
        if eta == "auto":
            episode = self._multiple * self._steps  # the sum of `multiples` in `_ends` episodes
            eta = self._largest * (min(ETA, SHARE * self._ends / episode) if self._ends and episode else ETA)
        return eta * self.settings.eta_decay**self.batches * self.temperature

    def saw(self, rewards: Float[Array, "*n"], ends: Bool[Array, "*n"]) -> None:
        """Take note of rewards of the environment, and of the steps that ended an episode, for `eta="auto"`."""
        self._largest = float(np.max(np.abs(rewards), where=np.isfinite(rewards), initial=self._largest))
        self._steps, self._ends = self._steps + np.size(ends), self._ends + float(np.sum(ends))

    @property
    def divisor(self) -> float | None:
        """The current divisor of the bonus, or None if there is none yet."""
        if self.settings.normalise == "none":
            return 1.0
        if not self._levels:
            return None
        if self.settings.normalise in ("first", "latest"):
            return self._levels[-1]
        mean = float(np.mean(self._levels))
        return mean if self.settings.normalise == "median" else mean**0.5

    def score(self, transitions: Transitions) -> Float[Array, " n"]:
        """Return the raw bonus under the current model (0 if untrained), without storing transitions or training."""
        finite, inputs, following, _ = self._finite(transitions)
        return _spread(self._raw(0, inputs, following), finite)

    def scaled(self, raw: Float[Array, " n"]) -> Float[Array, " n"]:
        """Return eta * `multiples`, but at most 1e12."""
        self.paid |= bool(self.divisor) and bool(raw.any())
        return np.minimum(self.eta * self.multiples(raw), MOST)

    def multiples(self, raw: Float[Array, " n"]) -> Float[Array, " n"]:
        """Return min(raw / divisor, `clip`); return 0 while the divisor is None or 0."""
        if not self.divisor:
            return np.zeros_like(raw)
        return np.minimum(raw / self.divisor, LARGEST if self.settings.clip is None else self.settings.clip)

    def batch(self, transitions: Transitions) -> Reward:
        """Return the bonus of a whole batch, then train. The divisor includes this batch, as in the paper."""
        finite, inputs, following, episodes = self._finite(transitions)
        raw = self._raw(0, inputs, following, episodes)
        self._store(finite, inputs, following)
        if self._trained:
            self._add_level(raw)
        reward = Reward(_spread(raw, finite), _spread(self.scaled(raw), finite))
        self._learn(raw)
        return reward

    def step(self, transitions: Transitions) -> Reward:
        """Return the bonus of new transitions, scaled by earlier batches. Train after every `interval` transitions."""
        finite, inputs, following, episodes = self._finite(transitions)
        raw = self._raw(len(self._open) + 1, inputs, following, episodes)
        reward = Reward(_spread(raw, finite), _spread(self.scaled(raw), finite))
        self._store(finite, inputs, following)
        self._open.append(raw)
        if self.replay.total - self._begin >= self.settings.interval:
            raws, self._open, self._begin = np.concatenate(self._open), [], self.replay.total
            if self._trained:
                self._add_level(raws)
            self._learn(raws)
            if self._trained and not self._levels and not self.model.episodic:
                self._add_level(self._raw(0, *self.replay.last(len(raws))))
        return reward

    def state_dict(self) -> dict[str, Tensor]:
        """Return model, replay and counters as tensors by name; a bonus with equal settings can resume identically."""
        reward = {
            "format": torch.tensor(FORMAT),
            "seed": torch.tensor(self.rng.seed),
            "trained": torch.tensor(self._trained),
            **{name: torch.tensor(getattr(self, name), dtype=torch.float64) for name in OBSERVED},
            **{name: torch.tensor(getattr(self, name)) for name in COUNTERS},
            "levels": torch.tensor(list(self._levels), dtype=torch.float64),
            "open": torch.from_numpy(np.concatenate([*self._open, np.zeros(0)])),
            "calls": torch.tensor([len(raw) for raw in self._open]),
            "meaning": tree.from_plain(self._meaning()),
        }
        parts = {"replay": self.replay.state_dict(), "dynamics": self.model.state_dict(), "reward": reward}
        return {f"{part}/{name}": value for part, values in parts.items() for name, value in values.items()}

    def load_state_dict(self, saved: Mapping[str, Tensor]) -> None:
        """Resume from a `state_dict`. Raise InputError, and change nothing, if model, settings or version differ."""
        before = dict(vars(self))
        try:
            self._restore(saved)
        except (LookupError, RuntimeError, InputError) as error:
            vars(self).update(before)
            raise InputError(f"cannot continue from this saved bonus: {error}") from error

    def _restore(self, saved: Mapping[str, Tensor]) -> None:
        parts: dict[str, dict[str, Tensor]] = {"replay": {}, "dynamics": {}, "reward": {}}
        for name, value in saved.items():
            part, _, rest = name.partition("/")
            parts[part][rest] = value
        reward = parts["reward"]
        if not {"format", "meaning"} <= reward.keys() or int(reward["format"]) != FORMAT:
            raise InputError("it was saved by another version of explore; use that version, or start over")
        before, now = tree.to_plain(reward["meaning"]), self._meaning()
        if different := next((name for name in now if before.get(name) != now[name]), None):
            values = f"{different}={before.get(different)!r}, but this bonus has {now[different]!r}"
            raise InputError(f"it was saved with {values}; use the same setting, or start over")
        self.seed(int(reward["seed"]))
        self.model.load_state_dict(parts["dynamics"])
        self.replay.load_state_dict(parts["replay"])
        self._trained = bool(reward["trained"])
        vars(self).update({name: int(reward[name]) for name in COUNTERS})
        vars(self).update({name: float(reward[name]) for name in OBSERVED})
        self._levels.extend(reward["levels"].tolist())
        ends = reward["calls"].cumsum(0)[:-1].numpy()
        self._open = np.split(reward["open"].numpy(), ends) if len(reward["calls"]) else []
        self._begin = self.replay.total - len(reward["open"])

    def _meaning(self) -> dict[str, Any]:
        """Return the settings that must match when a saved state is loaded."""
        bonus, model = self.settings, self.model_settings
        own = {name: getattr(model, name) for name in ("target", "n_eff") if hasattr(model, name)}
        return {"bonus": bonus.bonus, "normalise": bonus.normalise, **own}

    def _raw(self, call: int, inputs: Tensor, following: Tensor, episodes: Tensor | None = None) -> Float[Array, " n"]:
        if not (self._trained and len(inputs)):
            return np.zeros(len(inputs))
        raw = self.model.follow(inputs, following, episodes, self.rng.stream("acquire", self.batches, call))
        return np.nan_to_num(raw.double().cpu().numpy(), nan=LARGEST, posinf=LARGEST, neginf=LARGEST)

    def _add_level(self, raw: Float[Array, " n"]) -> None:
        exact = raw[raw < LARGEST]  # placeholders of overflows would dominate a mean
        if len(exact) and not (self.settings.normalise == "first" and self.divisor):
            self._levels.append(float(np.mean(exact**2) if self.settings.normalise == "rms" else np.median(exact)))
        self._multiple = float(self.multiples(exact).mean()) if len(exact) else 0.0

    def _learn(self, raw: Float[Array, " n"]) -> None:
        """Train on the replay, whose last transitions are the finished batch with bonuses `raw`; set `metrics`."""
        inputs, following = self.replay.last(len(raw))
        metrics = {"vime/eta": self.eta, "vime/dropped": float(self.dropped)}
        if len(exact := raw[raw < LARGEST]):
            values = {"bonus_mean": exact.mean(), "bonus_median": np.median(exact), "bonus_max": raw.max()}
            metrics |= {f"vime/{name}": float(value) for name, value in values.items()}
        if self.divisor is not None:
            metrics["vime/kl_divisor"] = self.divisor
        if self._trained and len(raw):  # the model was not trained on these transitions yet
            metrics |= self._quality(inputs, following, "before")
        if len(self.replay) >= self.model_settings.minimum:
            self._train()
            if len(raw):
                metrics |= self._quality(inputs, following, "after")
            metrics |= {f"vime/{name}": value for name, value in self.model.learned.items()}
        self.metrics = metrics | {"vime/restarts": float(self.restarts)}
        self.batches += 1
        self._steps, self._ends = RECENT * self._steps, RECENT * self._ends

    def _train(self) -> None:
        self.model.train(self.replay, self.rng.stream("fit", self.batches))
        if not self.model.alive and not self.restarts:
            count = len(self.replay)
            warnings.warn(f"the dynamics model diverged and was restarted on {count} stored transitions", stacklevel=2)
            self.restarts = 1
            self._levels.clear()  # they are of the old model
            self.model = self._fresh(1)
            self.model.train(self.replay, self.rng.stream("fit", self.batches, 1))
        if not self.model.alive:
            raise Failure("the dynamics model diverged again after a restart; change lr, damping or the posterior")
        self._trained = True

    def _quality(self, inputs: Tensor, following: Tensor, when: str) -> dict[str, float]:
        rng, step = self.rng.stream("test", self.batches), -(-len(inputs) // max(CHECKED // following.shape[1], 64))
        inputs, following = inputs[::step], following[::step]
        return {f"vime/dyn_{name}_{when}": value for name, value in self.model.quality(inputs, following, rng).items()}

    def _fresh(self, *index: int) -> Bonus:
        return self._kind(self.model_settings, *self._sizes, self.rng.stream("init", *index))

    @property
    def _sizes(self) -> tuple[int, int]:
        """The sizes of the model's inputs (observation and action) and outputs (next observation)."""
        return self.observations.size + self.actions.size, self.observations.size

    def _store(self, finite: Bool[Array, " n"], inputs: Tensor, following: Tensor) -> None:
        dropped = int((~finite).sum())
        if dropped and not self.dropped:
            warnings.warn("ignored a transition with NaN or infinity; vime/dropped counts them", stacklevel=2)
        self.dropped += dropped
        if self.dropped:  # even if all are dropped, and no batch is ever full
            self.metrics = self.metrics | {"vime/dropped": float(self.dropped)}
        self.replay.add(inputs, following)

    def _finite(self, transitions: Transitions) -> tuple[Bool[Array, " n"], Tensor, Tensor, Tensor | None]:
        """Return which transitions are finite in single precision; and inputs, next observations, episodes of these."""
        inputs, following = self.tensors(transitions)
        finite = inputs.isfinite().all(1) & following.isfinite().all(1)
        mask, episodes = finite.cpu().numpy(), transitions.episodes
        return mask, inputs[finite], following[finite], None if episodes is None else self.rng.tensor(episodes[mask])

    def tensors(self, transitions: Transitions) -> tuple[Tensor, Tensor]:
        inputs = np.concatenate([transitions.observations, transitions.actions], 1)
        return self.rng.tensor(inputs), self.rng.tensor(transitions.following)


def _spread(values: Float[Array, " _m"], where: Bool[Array, " n"]) -> Float[Array, " n"]:
    """Return an array [n] with the m `values` where the mask `where` is True, and 0 elsewhere."""
    spread = np.zeros(len(where))
    spread[where] = values
    return spread
