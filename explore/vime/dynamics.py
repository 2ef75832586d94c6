"""A Bayesian neural network that predicts the next observation."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, cast

import torch
from jaxtyping import Float
from torch import Tensor

from explore import registry
from explore.core.errors import InputError, shown
from explore.core.rng import Rng
from explore.core.shapes import Batch, State
from explore.execution import graphs
from explore.inference.base import Predictive
from explore.inference.predict import Predictor
from explore.inference.presets import recommended_settings
from explore.learning.scaling import Standardiser, bounded
from explore.nets.likelihoods import Gaussian
from explore.nets.net import Net, mlp
from explore.nets.protocols import width
from explore.vime.bonuses.base import Bonus, BonusSettings
from explore.vime.replay import Replay

RECURSION = 16384  # transitions in an update of a recursive posterior
# Units of its hidden layer, and how many there are for each input. With fewer units than inputs, what was seen would
# determine the features of what was not, such as another state of a one-hot code.
LEAST, MOST, UNITS_PER_INPUT = 256, 1024, 2
# Transitions and features by which the relevance of observations is found.
RELEVANCE_ROWS, RELEVANCE_FEATURES = 512, 128
CHECKS = 5  # weight samples that measure the quality of the model


@dataclass(frozen=True, kw_only=True)
class DynamicsSettings(BonusSettings):
    """Settings of the dynamics model. Houthooft et al. (2016) have 500 updates on batches of 10."""

    # A name from `explore list posteriors`, "module:Class", or a posterior whose net maps an observation and an action
    # to an observation. Not "map", which has no uncertainty, and not "hmc", which needs all data at once.
    posterior: str | Predictive = "last-layer"
    preset: str | None = None  # None: "vime" if the posterior has it, else its first
    posterior_settings: Mapping[str, Any] = field(default_factory=dict)  # override the preset's
    # Units of the hidden layers. None: for `last-layer`, two for each input, but 256 to 1024; for others, 32.
    hidden: tuple[int, ...] | None = None
    noise_std: float | None = None  # of standardised transitions; None: learned. Paper: 5
    # N; if fixed, the bonus does not fade. "replay": the number stored. None: "replay" for `last-layer`, else 50.
    n_eff: float | Literal["replay"] | None = None
    target: Literal["next", "difference"] = "next"  # the next observation, or its difference from the current one
    # Whether inputs that tell nothing about the next observation, such as noise, count less; None: for `last-layer`.
    relevance: bool | None = None
    updates: int = 50  # training steps after each batch of experience
    batch_size: int = 100  # transitions per step
    samples: int = 30  # weight samples for "expected-gain" and "variance"

    ranges: ClassVar[dict[str, str]] = {"updates": "[1, 1e7]", "batch_size": "[1, 1e7]", "samples": "[2, 1e4]"}

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.posterior_settings, Mapping):
            raise InputError(f"posterior_settings is {shown(self.posterior_settings)}; it must be a dict of settings")
        if not all(1 <= units <= 10**5 for units in self.hidden or ()):
            raise InputError(f"hidden is {shown(self.hidden)}; every layer must have 1 to 100000 units")

    def resolved(self, inputs: int) -> "DynamicsSettings":
        """Return the settings with the values that None stands for, given the number of inputs."""
        kind: Any = self.posterior
        if named := isinstance(kind, str):
            kind = registry.find("posteriors", kind)
        recursive, learns_relevance = getattr(kind, "recursive", False), hasattr(kind, "relevance")
        for name in ("updates", "batch_size") if recursive else ():
            if getattr(self, name) != getattr(type(self), name):
                raise InputError(f"{name} has no effect: this posterior learns each transition once; leave {name} out")
        if self.relevance and not learns_relevance:
            raise InputError("relevance is only for posteriors that learn it, such as last-layer; leave relevance out")
        hidden = self.hidden
        if named and not hidden:
            hidden = (min(max(LEAST, UNITS_PER_INPUT * inputs), MOST) if recursive else 32,)
        relevance = learns_relevance if self.relevance is None else self.relevance
        n_eff = self.n_eff or ("replay" if recursive else 50.0)
        return replace(self, hidden=hidden, n_eff=n_eff, relevance=relevance)

    def build(self, inputs: int, outputs: int) -> Predictive:
        """Return the posterior over the weights of a network with these numbers of inputs and outputs."""
        if not isinstance(self.posterior, str):
            if not hasattr(self.posterior, "likelihood"):
                raise InputError(f"posterior is a {type(self.posterior).__name__}; it must be a name or a posterior")
            default = DynamicsSettings()
            for name in ("preset", "posterior_settings", "hidden", "noise_std"):
                if getattr(self, name) != getattr(default, name):
                    why = "a posterior object keeps its settings"
                    raise InputError(f"{name} applies to posteriors by name only; leave it out: {why}")
            return self.posterior
        with torch.random.fork_rng(devices=[]):  # PyTorch's layers draw initial weights, which are not used
            net = Net(mlp(inputs, self.hidden or (), outputs))
        cls = registry.find("posteriors", self.posterior)
        preset = self.preset or recommended_settings(cls, consumer="vime").preset
        # A weak prior: the noise may be far below the standard deviation of the observations.
        likelihood = Gaussian(noise_std=self.noise_std, prior_shape=1.0, prior_rate=0.01)
        settings = {k: tuple(v) if isinstance(v, list) else v for k, v in self.posterior_settings.items()}  # from JSON
        return cast(Predictive, registry.posterior(self.posterior, net, likelihood, preset, **settings))


class Dynamics(Bonus):
    """A Bayesian neural network for p(o' | o, a), on data standardised by the means and scales of the last training."""

    Settings = DynamicsSettings
    # Scales that standardise inputs and targets; transitions at the last training, and when scales were computed.
    saved = ("input_mean", "input_scale", "target_mean", "target_scale", "learned", "scaled")

    def __init__(self, settings: DynamicsSettings, inputs: int, outputs: int, rng: Rng):
        self.settings, self._rng = settings.resolved(inputs), rng
        self.posterior = self.settings.build(inputs, outputs)
        _check(self.posterior, settings.posterior, inputs, outputs)
        self._updates: graphs.Updates | None = None
        x, y = torch.zeros(1, 1, inputs), torch.zeros(1, 1, outputs)
        self._input_mean, self._target_mean = map(rng.tensor, (x, y))
        self._input_scale, self._target_scale = map(rng.tensor, (x + 1, y + 1))
        self._learned = self._scaled = torch.tensor(0)
        self.state = self._start(settings.minimum, rng)  # of the posterior

    def batch(self, inputs: Float[Tensor, "n I"], following: Float[Tensor, "n O"]) -> Batch:
        """Return n transitions as standardised data for the network: inputs x [1, n, I] and targets y [1, n, O]."""
        x = (inputs.unsqueeze(0) - self._input_mean) / self._input_scale
        y = (self._target(inputs, following) - self._target_mean) / self._target_scale
        return Batch(bounded(x).to(self._rng.dtype), bounded(y).to(self._rng.dtype))

    def train(self, replay: Replay, rng: Rng) -> None:
        """Recompute the scales, and take `updates` training steps on transitions drawn with replacement.

        A `recursive` posterior learns each new transition once. Its scales are recomputed, and it learns the whole
        replay anew, whenever the number of transitions has doubled.
        """
        if self.posterior.recursive:
            return self._train_recursively(replay, rng)
        rows = (rng.uniform(self.settings.updates, self.settings.batch_size) * len(replay)).long()
        self._rescale(replay, rng)
        state = self._counted(self.state, replay)
        data = self.batch(replay.inputs[rows.flatten()], replay.next[rows.flatten()])
        x, y = (t.view(*rows.shape, -1).unsqueeze(1) for t in data)  # [updates, 1, B, ...]
        if self._updates is None:
            self._updates = graphs.updates(self.posterior, rng)
        self._updates.draw_from(rng)
        for step in zip(x, y, strict=True):
            state, _ = self._updates(state, Batch(*step), 0.0)
        self.state = self._updates.copied(state)

    def _train_recursively(self, replay: Replay, rng: Rng) -> None:
        anew, transitions = replay.unlearned(self._learned, self._scaled)
        if anew:
            self.state, self._scaled = self._start(len(replay), rng), torch.tensor(replay.total)
            self._rescale(replay, rng)
            if self.settings.relevance:
                factors = self._relevance(self.batch(*replay.sample(rng, RELEVANCE_ROWS)), rng)
                self._input_scale = self._input_scale / factors.unsqueeze(1)
        state = self._counted(self.state, replay)
        for part in zip(*(t.split(RECURSION) for t in transitions), strict=True):
            state, _ = self.posterior.update(state, self.batch(*part), rng)
        self.state, self._learned = state, torch.tensor(replay.total)

    def _relevance(self, batch: Batch, rng: Rng) -> Float[Tensor, "1 I"]:
        """Return the factors of inputs by relevance, found with few features for speed; those of actions are 1."""
        inputs, outputs = batch.x.shape[2], batch.y.shape[2]
        finder: Any = self.posterior
        if isinstance(self.settings.posterior, str):
            finder = replace(self.settings, hidden=(RELEVANCE_FEATURES,)).build(inputs, outputs)
        return finder.relevance(finder.init(float(batch.x.shape[1]), 1, rng), batch, outputs)

    def _rescale(self, replay: Replay, rng: Rng) -> None:
        """Recompute the scales."""
        inputs, following = replay.sample(rng)
        scales = (*Standardiser.robust(inputs.unsqueeze(0)), *Standardiser.robust(self._target(inputs, following)))
        moments = (t.to(self._rng.dtype) for t in scales)
        self._input_mean, self._input_scale, self._target_mean, self._target_scale = moments

    def _start(self, stored: int, rng: Rng) -> State:
        """Return the posterior's state before any data, for `n_eff` or this number of transitions."""
        n_eff = self.settings.n_eff
        return self.posterior.init(float(n_eff) if isinstance(n_eff, int | float) else float(stored), 1, rng)

    def _counted(self, state: State, replay: Replay) -> State:
        """Return the posterior's state with the replay's effective data size, if `n_eff` is "replay"."""
        if self.settings.n_eff != "replay":
            return state
        n_data = torch.tensor(self.posterior.stands_for(len(replay)), dtype=torch.float64)
        return state._replace(common=state.common._replace(n_data=n_data))

    @property
    def alive(self) -> bool:  # type: ignore[override]
        return bool(self.state.common.alive.all())

    @property
    def learned(self) -> dict[str, float]:
        """The values of `Predictive.learned`, and the share of the curvature that still comes from initialisation."""
        share = self.posterior.initial_curvature_share(self.state)
        values = self.posterior.learned(self.state) | {"initial_curvature_share": share}
        return {name: float(value) for name, value in values.items()}

    def predictor(self, rng: Rng, samples: int | None = None) -> Predictor:
        """Draw networks from the posterior."""
        return Predictor.sample(self.posterior, self.state, samples or self.settings.samples, rng)

    def quality(self, inputs: Float[Tensor, "n I"], following: Float[Tensor, "n O"], rng: Rng) -> dict[str, float]:
        """Return NLL per transition (nats), RMSE in standardised units, and the coverage of central 95 % intervals."""
        metrics = self.predictor(rng, CHECKS).evaluate(*self.batch(inputs, following), ranked=False)
        return {"nll": -float(metrics["log_likelihood"]), **{k: float(metrics[k]) for k in ("rmse", "coverage_95")}}

    def tree(self) -> dict[str, Any]:
        return super().tree() | {"posterior": self.state}

    def restore(self, values: Mapping[str, Any]) -> None:
        super().restore(values)
        self.state = values["posterior"]

    def _target(self, inputs: Tensor, following: Tensor) -> Float[Tensor, "1 n O"]:
        if self.settings.target == "difference":
            following = following - inputs[:, : following.shape[1]]
        return following.unsqueeze(0)


def _check(posterior: Predictive, asked: Any, inputs: int, outputs: int) -> None:
    """Raise InputError if the posterior supports no bonus; `asked` is the user's choice, a name or an object."""
    if (kind := posterior.likelihood).scaling == "none":
        raise InputError(f"the dynamics model standardises its targets; use Gaussian instead of {type(kind).__name__}")
    net, last = posterior.net, width(posterior.likelihood, posterior.net.outputs)
    first = net.shapes[0][0]
    if (first - net.biases[0], last) != (inputs, outputs):
        sizes = f"{first - net.biases[0]} inputs and {last} outputs"
        raise InputError(f"the posterior's network has {sizes}; this environment needs {inputs} and {outputs}")
    name = asked if isinstance(asked, str) else type(asked).__name__
    if posterior.certain:
        raise InputError(f"{name} is a point estimate; choose a posterior with weight uncertainty")
    if posterior.whole:
        raise InputError(f"{name} needs all data at once, not mini-batches; choose another posterior")
    if getattr(getattr(posterior, "posterior", posterior), "warm_start", 0.0):  # for a mixture, its members'
        has_preset = isinstance(asked, str) and "vime" in registry.presets(registry.find("posteriors", asked))
        hint = ", or use the preset vime" if has_preset else ""
        why = "has no weight noise during warm_start, which the dynamics model never leaves"
        raise InputError(f"{name} {why}; set warm_start=0{hint}")
    if posterior.net.trained:
        raise InputError("the dynamics model standardises its data; use Net without trained=True")
