"""The protocol of posteriors, and the part of the state that all of them share.

A posterior is a frozen record of settings with pure functions on a state, a NamedTuple of tensors with a field
`common`.

A learned prior variance is the closed-form maximum of the bound for fixed q = N(M, Sigma): of n coordinates that share
it, eta = (|M|^2 + tr Sigma) / n (Graves, Practical Variational Inference for Neural Networks, 2011), within [1e-4,
1e2]. It is set at the end of each epoch, so that the bound cannot fall there; the density follows with its next update.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from explore.core.context import Turn
from explore.core.errors import InputError, check_fields
from explore.core.linalg import over
from explore.core.rng import Rng
from explore.core.shapes import Batch, Info, NormTaps, State, Weights
from explore.execution import parallel
from explore.inference.structures.base import Dampings
from explore.inference.updates import adam
from explore.nets.protocols import Layer, Likelihood, Network, Noise, Phi, check_likelihood, count_samples

L = TypeVar("L", bound=Layer)
LEAST, MOST = 1e-4, 1e2
NormPolicy = Literal["frozen", "adam"]
"""Scale and shift stay 1 and 0, or Adam trains them on the likelihood alone; the statistics run in either case."""
Rows = float | Float[Tensor, "_R _I 1"]
"""The prior variance of one tensor of coordinates: one for all, or one for each row ([R, 1, 1]: for each replica)."""


class NormState(NamedTuple):
    """The batch normalisations of a net; empty where it has none."""

    values: tuple[Float[Tensor, "R _M 4 _C"], ...]  # scale, shift, running mean, variance; M = 1, or one a member
    moving: adam.Moving  # of scale and shift, where they are trained


class Prior(NamedTuple):
    """Learned variances: for each tensor of coordinates [R, 1, 1], or [R, I, 1] where the bias has a separate one."""

    variance: tuple[Float[Tensor, "R _I 1"], ...]  # eta, of the end of the last epoch
    held: tuple[Float[Tensor, "R _I 1"], ...]  # eta at the last update, where the density itself depends on it


class Common(NamedTuple):
    """The part of the state that all posteriors share."""

    noise: Phi  # the likelihood's own posterior
    alive: Bool[Tensor, " R"]  # a replica that failed is frozen at its last good state
    step: Int[Tensor, ""]  # updates so far; on the CPU, so that reading it never waits for a device
    taken: Int[Tensor, " R"]  # how many of them each replica took: some posteriors reject steps
    n_data: Float[Tensor, ""]  # N, the effective data size; on the CPU
    norms: NormState  # batch normalisations
    prior: Prior | None = None  # its learned variances; None: they are a setting


@dataclass(frozen=True, kw_only=True)
class Predictive(ABC):
    """A model that can be trained and gives joint weight samples."""

    net: Network
    likelihood: Likelihood  # of the targets around the net's output
    epochs: int = 1000  # passes over the data of a fit from scratch
    batch_size: int = 10  # examples a step; n examples are split into round(n / batch_size) near-equal batches ...
    min_batches: int = 1  # ... but into at least so many
    batch_norm: NormPolicy = "frozen"  # whether scales and shifts of batch normalisations are learnt
    batch_norm_lr: float = 0.001  # of Adam for them

    # Intervals of numeric settings; a number without one must be positive.
    ranges: ClassVar[dict[str, str]] = {
        "epochs": "[1, 1e6]", "min_batches": "[1, 1e6]", "samples": "[1, 1e4]", "gain_samples": "[1, 1e4]"
    }  # fmt: skip
    whole: ClassVar[bool] = False  # whether every update needs all the data at once
    by_replica: ClassVar[frozenset[str]] = frozenset()  # settings that may differ by replica, see `candidates`
    partial: ClassVar[bool] = True  # whether it learns from targets with some NaN, see `PartialGaussian`
    mixture_error: ClassVar[str] = ""  # why mixtures of it are refused; empty: they are not
    pretrained_error: ClassVar[str] = ""  # why it cannot start from a trained module's weights; empty: it can

    @property
    def certain(self) -> bool:
        """Whether this is a point estimate, a single net."""
        return False

    def __post_init__(self) -> None:
        if not isinstance(self.net, Network):
            kind = "type" if isinstance(self.net, type) else type(self.net).__name__
            raise InputError(f"net is a {kind}; it must be a Net, such as Net(module)")
        if self.net.trained and self.pretrained_error:
            raise InputError(f"{self.pretrained_error}; leave trained=True out of Net")
        check_likelihood(self.likelihood)
        ranges = {k: v for cls in reversed(type(self).__mro__) for k, v in getattr(cls, "ranges", {}).items()}
        check_fields(self, ranges)
        if getattr(self, "prior_variance", None) == "learned" and self.own_bias_variance is None:
            raise InputError(f"{type(self).__name__} does not learn prior_variance; set it to a number")

    @property
    def own_bias_variance(self) -> tuple[bool, ...] | None:
        """Whether each tensor's bias row learns its own prior variance; None: no variance is learned."""
        return None

    @abstractmethod
    def init(self, n_data: float, replicas: int, rng: Rng) -> State:
        """Return the state of R replicas before any data, for n examples or an effective data size."""

    @abstractmethod
    def update(self, state: State, batch: Batch, rng: Rng, progress: float = 0.0) -> tuple[State, Info]:
        """Return the state after one step on x [R, B, ...] and y [R, B, O] or [R, B], and numbers to log, [R].

        `progress`, the finished share of the training, drives schedules; it is always 0 where training has no end.
        """

    def stands_for(self, examples: float) -> float:
        """Return N, the effective data size of this many examples."""
        return examples

    def turn(self, step: int, progress: float) -> Turn:
        """Return the `Turn` of a step, from 1; updates of one kind differ in its numbers alone."""
        return Turn()

    def end_epoch(self, state: State) -> State:
        """Return the state after an epoch, or in VIME after a batch of experience; learns the prior variance."""
        return state

    def learned(self, state: State) -> Info:
        """Return the values learned by `end_epoch`, for the log: name -> [R]."""
        return {}

    def initial_curvature_share(self, state: State) -> Float[Tensor, " R"]:
        """Return the share of the curvature, in [0, 1], that is still the identity it started from."""
        return torch.zeros(len(state.common.alive))

    def start_prior(self, replicas: int, rng: Rng) -> Prior | None:
        """Return the learned variances of a fresh state; None: the variance is a setting."""
        return None

    def finish(self, state: State, batches: Iterable[Batch], rng: Rng) -> State:
        """Return the state after a fit to all `batches`; for posteriors built on a trained net (Laplace, SWAG).

        Training without an end never calls it: other methods must work on every state.
        """
        return state

    @abstractmethod
    def sample(self, state: State, n: int, rng: Rng) -> tuple[Layer, ...]:
        """Return n joint weight samples, or as many as there are, by `layers`; every input sees the same weights."""

    def layers(self, state: State, weights: Sequence[L], samples: int | None = None) -> tuple[L | Tensor, ...]:
        """Return the layers of nets with these weights, and the state's batch normalisations for S `samples`."""
        return (*weights, *expand_norms(state.common.norms, count_samples(weights, samples)))

    def joint_sample(self, state: State, n: int, rng: Rng) -> tuple[tuple[Layer, ...], Noise]:
        """Return weight samples with a draw of the likelihood's noise for each; a single net has the expected noise."""
        layers = self.sample(state, n, rng)
        if self.certain and n == 1:
            return layers, self.expected_noise(state)
        return layers, self.likelihood.sample_noise(state.common.noise, count_samples(layers), rng)

    def expected_noise(self, state: State) -> Noise:
        """Return the likelihood's noise parameters at their posterior mean, broadcast over S."""
        return self.likelihood.expected(state.common.noise)

    def with_settings(self, **settings: Any) -> Predictive:
        """Return the posterior with other settings."""
        return replace(self, **settings)


@dataclass(frozen=True, kw_only=True)
class Variational(Predictive):
    """A posterior with a density q over `coordinates`, the weights or fewer numbers that weights are made of.

    It is trained to maximise E_q[log p(D|w)] - kl_weight * KL(q || prior), with the prior N(0, prior_variance).
    """

    prior_variance: float | Literal["learned"] = 1.0  # eta
    kl_weight: float = 1.0  # lambda; 1 is Bayes' rule
    augmentation: float = 1.0  # rho: how many examples one is worth when it is augmented
    gain_step: float = 0.01  # rho: the size of the step that `gain` measures

    def stands_for(self, examples: float) -> float:
        return self.augmentation * examples

    @property
    def eta(self) -> Any:
        """`prior_variance` as a number, or [R] for candidates; the method's default where it is learned."""
        default = type(self).prior_variance
        start = 1.0 if isinstance(default, str) else default
        return start if isinstance(self.prior_variance, str) else self.prior_variance

    def start_prior(self, replicas: int, rng: Rng) -> Prior | None:
        biases = self.own_bias_variance if self.prior_variance == "learned" else None
        return None if biases is None else start_prior(self.eta, self.coordinates, biases, replicas, rng)

    def learned(self, state: State) -> Info:
        """Return `prior_variance_1`, ... of each tensor of coordinates, and `..._bias` of separate biases."""
        named: Info = {}
        if state.common.prior is None:
            return named
        for i, (rows, bias) in enumerate(zip(self.variances(state), self.own_bias_variance or (), strict=False), 1):
            if isinstance(rows, Tensor):
                named[f"prior_variance_{i}"] = rows[:, 0, 0]
                named |= {f"prior_variance_{i}_bias": rows[:, -1, 0]} if bias else {}
        return named

    def variances(self, state: State) -> tuple[Rows, ...]:
        """Return eta of each tensor of coordinates."""
        learned: Prior | None = state.common.prior
        return self._all(self.eta) if learned is None else learned.variance

    def gamma(self, shared: Common, weight: float | Tensor | None = None, held: bool = False) -> Dampings:
        """Return gamma = lambda / (N eta), a number or one for each tensor; `held`: eta as of the last update."""
        weight, n_data = self.kl_weight if weight is None else weight, float(shared.n_data)
        if shared.prior is None:
            gamma = weight / (n_data * self.eta)
            return self._all(gamma) if isinstance(gamma, Tensor) else gamma
        etas = shared.prior.held if held else shared.prior.variance
        return tuple(over(weight, eta) / (n_data * eta) for eta in etas)

    def _all(self, value: float | Tensor) -> tuple[Rows, ...]:
        """Repeat a value for all tensors of coordinates; one for each replica, [R], becomes [R, 1, 1]."""
        return (value[:, None, None] if isinstance(value, Tensor) else value,) * len(self.coordinates)

    @property
    @abstractmethod
    def coordinates(self) -> tuple[tuple[int, int], ...]:
        """(I, O) of each tensor of coordinates: the weight matrices if the density is over weights."""

    @abstractmethod
    def sample_coordinates(self, state: State, n: int, rng: Rng) -> Weights:
        """Draw coordinates from the density, a tuple of [R, n, I, O]; `sample` makes layers of them."""

    # Over all coordinates, in nats: the log density at some [R, S, I, O] each, the entropy, KL(new || old),
    # KL(q || prior), and KL(q' || q) after one step of size rho on each example's log-likelihood alone.
    @abstractmethod
    def log_prob(self, state: State, coordinates: tuple[Tensor, ...]) -> Float[Tensor, "R S"]: ...
    @abstractmethod
    def entropy(self, state: State) -> Float[Tensor, " R"]: ...
    @abstractmethod
    def kl(self, new: State, old: State) -> Float[Tensor, " R"]: ...
    @abstractmethod
    def kl_prior(self, state: State) -> Float[Tensor, " R"]: ...
    @abstractmethod
    def gain(self, state: State, batch: Batch, rng: Rng) -> Float[Tensor, "R B"]: ...

    def divergence(self, state: State) -> Float[Tensor, " R"]:
        """Return KL(q || prior) over all coordinates and the likelihood's noise, in nats."""
        return self.kl_prior(state) + self.likelihood.kl(state.common.noise)

    def elbo(self, state: State, batch: Batch, rng: Rng, samples: int = 10) -> Float[Tensor, " R"]:
        """Estimate the evidence lower bound in nats, for `kl_weight` and `augmentation` 1, from a batch of the data."""
        examples = float(state.common.n_data) / self.stands_for(1.0)
        return examples * self._log_likelihood(state, batch, rng, samples) - self.divergence(state)

    def objective(self, state: State, batch: Batch, rng: Rng, samples: int = 10) -> Float[Tensor, " R"]:
        """Estimate the training objective, which is the bound where `kl_weight` and `augmentation` are 1."""
        fit = float(state.common.n_data) * self._log_likelihood(state, batch, rng, samples)
        return fit - self.kl_weight * self.divergence(state)

    def _log_likelihood(self, state: State, batch: Batch, rng: Rng, samples: int) -> Float[Tensor, " R"]:
        """Estimate E[log p(y | x, W)] of an example, in nats."""
        layers = self.sample(state, samples, rng)
        noise = self.likelihood.sample_noise(state.common.noise, samples, rng)
        log_prob = self.likelihood.log_prob(noise, self.net.output(layers, batch.x), batch.y.unsqueeze(1))
        return log_prob.mean((1, 2))


def common(posterior: Predictive, n_data: float, replicas: int, rng: Rng, members: int = 1) -> Common:
    """Return the common part of a fresh state; each of the `members` on the sample axis has its normalisations."""
    return Common(
        noise=posterior.likelihood.init(posterior.net.outputs, replicas, rng),
        alive=torch.ones(replicas, dtype=torch.bool, device=rng.device),
        step=torch.tensor(0),
        taken=torch.zeros(replicas, dtype=torch.long, device=rng.device),
        n_data=torch.tensor(float(posterior.stands_for(n_data)), dtype=torch.float64),
        norms=start_norms(posterior.net, posterior.batch_norm, replicas, members, rng),
        prior=posterior.start_prior(replicas, rng),
    )


def start_norms(net: Network, policy: NormPolicy, replicas: int, members: int, rng: Rng) -> NormState:
    """Return batch normalisations before any data."""
    values = tuple(v.repeat(1, members, 1, 1) for v in net.initial_norms(replicas, rng))
    return NormState(values, adam.start(tuple(v[:, :, :2] for v in values) if policy == "adam" else ()))


def expand_norms(norms: NormState, samples: int) -> tuple[Float[Tensor, "R S 4 _C"], ...]:
    """Return the values for S samples, as `Net` takes them: of the first S members, or the shared ones S times."""
    return tuple(v[:, :samples].expand(-1, samples, -1, -1) for v in norms.values)


def advance_norms(
    norms: NormState,
    net: Network,
    taps: tuple[NormTaps, ...],
    count: tuple[int, int],
    lr: float,
    step: Int[Tensor, " R"],
) -> NormState:
    """Return batch normalisations after a training pass, from its taps; `count` has the samples and the examples."""
    values, gradients = [], []
    for v, t, norm in zip(norms.values, taps, net.norms, strict=True):
        statistics, gradient = t.statistics, t.grads / count[1]
        if v.shape[1] == 1:
            statistics, gradient = statistics.mean(1, keepdim=True), gradient.sum(1, keepdim=True) / count[0]
        statistics, gradient = parallel.mean((statistics, gradient))
        values.append(torch.cat([v[:, :, :2], torch.lerp(v[:, :, 2:], statistics, norm.momentum)], 2))
        gradients.append(-gradient * norm.affine)  # one without scale and shift has nothing to train
    if not norms.moving.first:
        return NormState(tuple(values), norms.moving)
    points = tuple(v[:, :, :2] for v in values)
    points, moving = adam.descend(points, tuple(gradients), norms.moving, adam.rates(lr, step.double()))
    return NormState(tuple(torch.cat([p, v[:, :, 2:]], 2) for p, v in zip(points, values, strict=True)), moving)


def start_prior(
    eta: float, shapes: Sequence[tuple[int, int]], biases: Sequence[bool], replicas: int, rng: Rng
) -> Prior:
    """Return equal variances before any epoch; `biases` says in which tensors the last row has a separate one."""
    variance = tuple(
        torch.full((replicas, inputs if bias else 1, 1), eta, dtype=rng.dtype, device=rng.device)
        for (inputs, _), bias in zip(shapes, biases, strict=True)
    )
    return Prior(variance, variance)
