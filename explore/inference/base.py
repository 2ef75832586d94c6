"""What every posterior offers.

A posterior is a frozen record of settings with pure functions on a state; the state is a NamedTuple of tensors.
Each state has a field `common`, of type `Common`, with what all posteriors share.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from explore.core.errors import InputError, check_fields
from explore.core.linalg import over
from explore.core.rng import Rng
from explore.core.shapes import Batch, Info, State, Weights
from explore.execution.turns import Turn
from explore.inference import prior
from explore.inference.norms import NormPolicy, NormState, expand_norms, start_norms
from explore.inference.prior import Prior, Rows
from explore.inference.structures.base import Dampings
from explore.nets.net import Net
from explore.nets.protocols import Layer, Likelihood, Noise, Phi, check_likelihood, count_samples

L = TypeVar("L", bound=Layer)


class Common(NamedTuple):
    """The part of the state that all posteriors share."""

    noise: Phi  # the likelihood's own posterior
    alive: Bool[Tensor, " R"]  # a replica that failed is frozen at its last good state
    step: Int[Tensor, ""]  # updates so far; on the CPU, so that reading it never waits for a device
    taken: Int[Tensor, " R"]  # how many of them each replica took: some posteriors reject steps
    n_data: Float[Tensor, ""]  # N: how many examples the posterior stands for; on the CPU
    norms: NormState  # batch normalisations
    prior: Prior | None = None  # its learned variances; None: they are a setting


@dataclass(frozen=True, kw_only=True)
class Predictive(ABC):
    """Anything that can be trained and gives joint weight samples.

    Args:
        net: the network.
        likelihood: how targets scatter around its output.
        epochs: passes over the data when it is fitted from scratch.
        batch_size: examples a step; n examples are split into round(n / batch_size) near-equal batches,
        min_batches: but into at least so many, lest a few examples get a few steps.
        batch_norm: how scales and shifts of batch normalisations are learnt: not at all, or as point estimates.
        batch_norm_lr: the step of Adam for them.
    """

    net: Net
    likelihood: Likelihood
    epochs: int = 1000
    batch_size: int = 10
    min_batches: int = 1
    batch_norm: NormPolicy = "frozen"
    batch_norm_lr: float = 0.001

    # The interval of each numeric setting; those without one must be positive.
    ranges: ClassVar[dict[str, str]] = {
        "epochs": "[1, 1e6]", "min_batches": "[1, 1e6]", "samples": "[1, 1e4]", "gain_samples": "[1, 1e4]"
    }  # fmt: skip
    whole: ClassVar[bool] = False  # whether every update needs all the data at once
    by_replica: ClassVar[frozenset[str]] = frozenset()  # settings of which replicas may differ, see `candidates`
    partial: ClassVar[bool] = True  # whether it learns from targets of which some are NaN, see `PartialGaussian`
    no_mixture: ClassVar[str] = ""  # why there are no mixtures of it; empty: there are
    only_anew: ClassVar[str] = ""  # why it cannot begin at the weights of a trained module; empty: it can

    @property
    def certain(self) -> bool:
        """Whether there is one net only, of which nothing is uncertain."""
        return False

    def __post_init__(self) -> None:
        if not isinstance(self.net, Net):
            kind = "type" if isinstance(self.net, type) else type(self.net).__name__
            raise InputError(f"net is a {kind}; it must be a Net, which Net(module) makes")
        if self.net.trained and self.only_anew:
            raise InputError(f"{self.only_anew}; leave trained=True out of Net")
        check_likelihood(self.likelihood)
        ranges = {k: v for cls in reversed(type(self).__mro__) for k, v in getattr(cls, "ranges", {}).items()}
        check_fields(self, ranges)
        if getattr(self, "prior_variance", None) == "learned" and self.own_bias_variance is None:
            raise InputError(f"{type(self).__name__} does not learn its prior's variance; prior_variance is a number")

    @property
    def own_bias_variance(self) -> tuple[bool, ...] | None:
        """Of each tensor of coordinates whether its last row, the bias, has a learned prior variance of its own.

        None: the variance of the prior is not learned at all.
        """
        return None

    @abstractmethod
    def init(self, n_data: float, replicas: int, rng: Rng) -> State:
        """The state before any data.

        Args:
            n_data: the number of examples that the posterior will be fitted to (not an integer with an effective
                data size).
            replicas: R.
            rng: the stream for the initial weights.
        """

    @abstractmethod
    def update(self, state: State, batch: Batch, rng: Rng, progress: float = 0.0) -> tuple[State, Info]:
        """The state after one step on a batch; pure.

        Args:
            state: any state of this posterior.
            batch: x [R, B, ...], y [R, B, O] or [R, B].
            rng: the stream of this step's noise.
            progress: the part of the training that is done, in [0, 1]; drives the schedules. Training without an end,
                as VIME's, passes 0 throughout: schedules stay where they start, and nothing may wait for a later part.

        Returns:
            (new state, numbers to log, each [R]).
        """

    def stands_for(self, examples: float) -> float:
        """N, the number of data that so many examples are worth."""
        return examples

    def turn(self, step: int, progress: float) -> Turn:
        """All that an update reads of the number of its step, from 1, and of the progress.

        Updates of one kind do the same operations, but for its numbers with the same constants, and wait for nothing:
        a graph of the first repeats the others. By default there are none.
        """
        return Turn()

    def end_epoch(self, state: State) -> State:
        """The state after a pass over the data, for what is learned once an epoch (the prior's variance).

        `learning.fit` calls it after the last update of each epoch, VIME after those of each batch of experience.
        """
        return state

    def learned(self, state: State) -> Info:
        """What `end_epoch` has learned, to be logged: name -> [R]."""
        return {}

    def initial_curvature_share(self, state: State) -> Float[Tensor, " R"]:
        """The share of the curvature that is still the identity it started from, from 0 to 1."""
        return torch.zeros(len(state.common.alive))

    def start_prior(self, replicas: int, rng: Rng) -> Prior | None:
        """What a fresh state has of the prior; None: its variance is a setting."""
        return None

    def finish(self, state: State, batches: Iterable[Batch], rng: Rng) -> State:
        """The state after the last update of a fit, for what is made of a trained net (a Laplace approximation, SWAG).

        `learning.fit` calls it once, after the last epoch. Training without an end never does, so `sample` and the rest
        must work on every state.

        Args:
            state: after the last update.
            batches: all the data once, in batches as the updates saw them.
            rng: the stream of the fit.
        """
        return state

    @abstractmethod
    def sample(self, state: State, n: int, rng: Rng) -> tuple[Layer, ...]:
        """Joint weight samples: the same weights for every input. At most n of them, where there are fewer.

        They are what `layers` returns, with the state's batch normalisations.
        """

    def layers(self, state: State, weights: Sequence[L], samples: int | None = None) -> tuple[L | Tensor, ...]:
        """The layers of nets with these weights, as `Net` takes them: the state's batch normalisations stand last.

        S, the number of `samples`, is needed only where none of the weights says it.
        """
        return (*weights, *expand_norms(state.common.norms, count_samples(weights, samples)))

    def joint_sample(self, state: State, n: int, rng: Rng) -> tuple[tuple[Layer, ...], Noise]:
        """Weight samples, and the likelihood's noise parameters for each of them (independent, unless it says else).

        Of a single certain net the noise is that expected: one draw of it would be a matter of luck.
        """
        layers = self.sample(state, n, rng)
        if self.certain and n == 1:
            return layers, self.expected_noise(state)
        return layers, self.likelihood.sample_noise(state.common.noise, count_samples(layers), rng)

    def expected_noise(self, state: State) -> Noise:
        """The likelihood's noise parameters at their posterior mean, broadcast over S."""
        return self.likelihood.expected(state.common.noise)

    def with_settings(self, **settings: Any) -> Predictive:
        """The same with other settings."""
        return replace(self, **settings)


@dataclass(frozen=True, kw_only=True)
class Variational(Predictive):
    """A posterior with a density q, trained towards the maximum of E_q[log p(D|w)] - kl_weight * KL(q || prior).

    The density, of any form, is over the weights, or over fewer numbers that the weights are made of: its
    `coordinates`. The prior is N(0, prior_variance) on every one of them.

    A variance that is learned starts from the method's default, and is that of the most likely data: the maximum of the
    bound over it, see `explore.inference.prior`.
    """

    prior_variance: float | Literal["learned"] = 1.0  # eta
    kl_weight: float = 1.0  # lambda; 1 is Bayes' rule
    augmentation: float = 1.0  # rho: how many examples one is worth when it is augmented
    gain_step: float = 0.01  # rho: the size of the step that `gain` measures

    def stands_for(self, examples: float) -> float:
        return self.augmentation * examples

    @property
    def eta(self) -> Any:
        """`prior_variance` as a number, or [R] for candidates; where it is learned, its start: the method's default."""
        default = type(self).prior_variance
        start = 1.0 if isinstance(default, str) else default
        return start if isinstance(self.prior_variance, str) else self.prior_variance

    def start_prior(self, replicas: int, rng: Rng) -> Prior | None:
        own = self.own_bias_variance if self.prior_variance == "learned" else None
        return None if own is None else prior.start(self.eta, self.coordinates, own, replicas, rng)

    def learned(self, state: State) -> Info:
        """`prior_variance_1`, ... of each tensor of coordinates, and `..._bias` where its last row has its own."""
        named: Info = {}
        if state.common.prior is None:
            return named
        for i, (rows, own) in enumerate(zip(self.variances(state), self.own_bias_variance or (), strict=False), 1):
            if isinstance(rows, Tensor):
                named[f"prior_variance_{i}"] = rows[:, 0, 0]
                named |= {f"prior_variance_{i}_bias": rows[:, -1, 0]} if own else {}
        return named

    def variances(self, state: State) -> tuple[Rows, ...]:
        """Eta of each tensor of coordinates."""
        learned: Prior | None = state.common.prior
        return self._all(self.eta) if learned is None else learned.variance

    def gamma(self, shared: Common, weight: float | Tensor | None = None, held: bool = False) -> Dampings:
        """Gamma = lambda / (N eta): a number, or of each tensor of coordinates where eta is learned.

        Args:
            shared: the part of a state that all posteriors share.
            weight: lambda; by default `kl_weight`.
            held: with eta as it was at the last update, for a density that is made with gamma. What is learned at the
                end of an epoch moves such a density with the next update only: else the bound could fall.
        """
        weight, n_data = self.kl_weight if weight is None else weight, float(shared.n_data)
        if shared.prior is None:
            gamma = weight / (n_data * self.eta)
            return self._all(gamma) if isinstance(gamma, Tensor) else gamma
        etas = shared.prior.held if held else shared.prior.variance
        return tuple(over(weight, eta) / (n_data * eta) for eta in etas)

    def _all(self, value: float | Tensor) -> tuple[Rows, ...]:
        """The same for all tensors of coordinates; of each replica's own [R] as [R, 1, 1]."""
        return (value[:, None, None] if isinstance(value, Tensor) else value,) * len(self.coordinates)

    @property
    @abstractmethod
    def coordinates(self) -> tuple[tuple[int, int], ...]:
        """(I, O) of each tensor of coordinates: the weight matrices, where the density is over the weights."""

    @abstractmethod
    def sample_coordinates(self, state: State, n: int, rng: Rng) -> Weights:
        """Coordinates drawn from the density, a tuple of [R, n, I, O]; `sample` makes layers of them."""

    @abstractmethod
    def log_prob(self, state: State, coordinates: tuple[Tensor, ...]) -> Float[Tensor, "R S"]:
        """Log density of coordinates, a tuple of [R, S, I, O]; batch normalisations after them are ignored."""

    @abstractmethod
    def entropy(self, state: State) -> Float[Tensor, " R"]:
        """Differential entropy over all coordinates, in nats."""

    @abstractmethod
    def kl(self, new: State, old: State) -> Float[Tensor, " R"]:
        """KL(new || old) over all coordinates, in nats."""

    @abstractmethod
    def kl_prior(self, state: State) -> Float[Tensor, " R"]:
        """KL(q || prior) over all coordinates, in nats."""

    @abstractmethod
    def gain(self, state: State, batch: Batch, rng: Rng) -> Float[Tensor, "R B"]:
        """Information gained from each example of the batch alone, in nats.

        KL(q' || q), where q' is q after one step of size rho on that example's log-likelihood, q being its prior.
        """

    def divergence(self, state: State) -> Float[Tensor, " R"]:
        """KL(q || prior) over all coordinates and the likelihood's noise, in nats."""
        return self.kl_prior(state) + self.likelihood.kl(state.common.noise)

    def elbo(self, state: State, batch: Batch, rng: Rng, samples: int = 10) -> Float[Tensor, " R"]:
        """Evidence lower bound of all data, whatever `kl_weight` and `augmentation`, in nats.

        It is estimated from a batch, as if this were all the data, and from weight samples.
        """
        examples = float(state.common.n_data) / self.stands_for(1.0)
        return examples * self._log_likelihood(state, batch, rng, samples) - self.divergence(state)

    def objective(self, state: State, batch: Batch, rng: Rng, samples: int = 10) -> Float[Tensor, " R"]:
        """Estimate in the same way what training maximises: no bound, unless `kl_weight` and `augmentation` are 1."""
        fit = float(state.common.n_data) * self._log_likelihood(state, batch, rng, samples)
        return fit - self.kl_weight * self.divergence(state)

    def _log_likelihood(self, state: State, batch: Batch, rng: Rng, samples: int) -> Float[Tensor, " R"]:
        """E[log p(y | x, W)] of an example, in nats."""
        layers = self.sample(state, samples, rng)
        noise = self.likelihood.sample_noise(state.common.noise, samples, rng)
        log_prob = self.likelihood.log_prob(noise, self.net.output(layers, batch.x), batch.y.unsqueeze(1))
        return log_prob.mean((1, 2))


def common(posterior: Predictive, n_data: float, replicas: int, rng: Rng, members: int = 1) -> Common:
    """The shared part of a fresh state; `members` with batch normalisations of their own where they are nets apart."""
    return Common(
        noise=posterior.likelihood.init(posterior.net.outputs, replicas, rng),
        alive=torch.ones(replicas, dtype=torch.bool, device=rng.device),
        step=torch.tensor(0),
        taken=torch.zeros(replicas, dtype=torch.long, device=rng.device),
        n_data=torch.tensor(float(posterior.stands_for(n_data)), dtype=torch.float64),
        norms=start_norms(posterior.net, posterior.batch_norm, replicas, members, rng),
        prior=posterior.start_prior(replicas, rng),
    )
