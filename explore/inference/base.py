"""What every posterior offers, and what opens and ends each of its updates.

A posterior is a frozen record of settings with pure functions on a state; the state is a NamedTuple of tensors.
Each state has a field `common`, of type `Common`, with what all posteriors share.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from explore import parallel, tree
from explore.errors import InputError, check_fields, shown
from explore.inference import prior
from explore.inference.norms import NormPolicy, NormState, advance_norms, expand_norms, start_norms
from explore.inference.prior import Prior, Rows
from explore.inference.structures import Dampings
from explore.inference.sub_batches import forward_in_parts
from explore.inference.turns import Turn
from explore.linalg import over
from explore.models import Layer, Likelihood, Network, Noise, Phi, Pullback, count_samples
from explore.rng import Rng
from explore.shapes import Batch, Info, LayerTaps, NormTaps, State, Weights

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

    net: Network
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
    no_mixture: ClassVar[str] = ""  # why there are no mixtures of it; empty: there are
    only_anew: ClassVar[str] = ""  # why it cannot begin at the weights of a trained module; empty: it can

    @property
    def certain(self) -> bool:
        """Whether there is one net only, of which nothing is uncertain."""
        return False

    def __post_init__(self) -> None:
        if not isinstance(self.net, Network):
            kind = "type" if isinstance(self.net, type) else type(self.net).__name__
            raise InputError(f"net is a {kind}; it must be a Net, which Net(module) makes")
        if self.net.trained and self.only_anew:
            raise InputError(f"{self.only_anew}; leave trained=True out of Net")
        if isinstance(self.likelihood, type) or not isinstance(self.likelihood, Likelihood):
            raise InputError(
                f"likelihood is {shown(self.likelihood)}; it must be made by Gaussian, Categorical, Bernoulli "
                "or a class with their methods"
            )
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
            n_data: N, the number of examples the posterior will stand for (not an integer with data augmentation
                or an effective data size).
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

    def turn(self, step: int, progress: float) -> Turn:
        """All that an update reads of the number of its step, from 1, and of the progress.

        Updates of one kind do the same operations, but for its numbers with the same constants, and wait for nothing:
        a graph of the first repeats the others. By default there are none.
        """
        return Turn()

    def end_epoch(self, state: State) -> State:
        """The state after a pass over the data, for what is learned once an epoch (the prior's variance).

        `explore.fit` calls it after the last update of each epoch, VIME after those of each batch of experience.
        """
        return state

    def learned(self, state: State) -> Info:
        """What `end_epoch` has learned, to be logged: name -> [R]."""
        return {}

    def start_left(self, state: State) -> Float[Tensor, " R"]:
        """How much of the curvature that the posterior is made of is still its start, from 0 to 1."""
        return torch.zeros(len(state.common.alive))

    def start_prior(self, replicas: int, rng: Rng) -> Prior | None:
        """What a fresh state has of the prior; None: its variance is a setting."""
        return None

    def finish(self, state: State, batches: Iterable[Batch], rng: Rng) -> State:
        """The state after the last update of a fit, for what is made of a trained net (a Laplace approximation, SWAG).

        `explore.fit` calls it once, after the last epoch. Training without an end never does, so `sample` and the rest
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
        """Weight samples, and the likelihood's noise parameter for each of them (independent, unless it says else).

        Of a single certain net the noise is that expected: one draw of it would be a matter of luck.
        """
        layers = self.sample(state, n, rng)
        if self.certain and n == 1:
            return layers, self.expected_noise(state)
        return layers, self.likelihood.sample_noise(state.common.noise, count_samples(layers), rng)

    def expected_noise(self, state: State) -> Noise:
        """The likelihood's noise parameter at its posterior mean, broadcast over S."""
        return self.likelihood.expected(state.common.noise)

    def with_settings(self, **settings: Any) -> Predictive:
        """The same with other settings."""
        return replace(self, **settings)

    def mixture(self, members: int) -> Predictive:
        """K independent fits of this posterior side by side, whose samples are pooled; of one the posterior itself.

        Raises:
            InputError: where there is none of this posterior, or the number is out of range.
        """
        from explore.inference.members import mixture  # which is made of this class

        return mixture(self, members)


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
    gain_step: float = 0.01  # rho: the size of the step that `gain` measures

    @property
    def eta(self) -> float:
        """`prior_variance` as a number: where it is learned what it starts from, the method's default."""
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

    def gamma(self, shared: Common, weight: float | None = None, held: bool = False) -> Dampings:
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
        """Evidence lower bound of all N examples, estimated from a batch and weight samples, in nats."""
        layers = self.sample(state, samples, rng)
        noise = self.likelihood.sample_noise(state.common.noise, samples, rng)
        log_prob = self.likelihood.log_prob(noise, self.net.output(layers, batch.x), batch.y.unsqueeze(1))
        return float(state.common.n_data) * log_prob.mean((1, 2)) - self.kl_weight * self.divergence(state)


def common(posterior: Predictive, n_data: float, replicas: int, rng: Rng, members: int = 1) -> Common:
    """The shared part of a fresh state; `members` with batch normalisations of their own where they are nets apart."""
    return Common(
        noise=posterior.likelihood.init(replicas, rng),
        alive=torch.ones(replicas, dtype=torch.bool, device=rng.device),
        step=torch.tensor(0),
        taken=torch.zeros(replicas, dtype=torch.long, device=rng.device),
        n_data=torch.tensor(float(n_data), dtype=torch.float64),
        norms=start_norms(posterior.net, posterior.batch_norm, replicas, members, rng),
        prior=posterior.start_prior(replicas, rng),
    )


class Pass(NamedTuple):
    """A forward pass over a batch in training mode, with which an update begins."""

    noise: Noise  # the likelihood's parameter at each sample
    out: Float[Tensor, "R S B O"]
    y: Tensor  # targets, with a sample axis of 1
    nll: Float[Tensor, " R"]  # E[-log p(y | x, W)] of an example, in nats
    taps: LayerTaps  # of the log-likelihood of these targets
    pullback: Pullback  # makes the taps of other targets


def train_pass(
    posterior: Predictive,
    state: State,
    weights: Sequence[Layer],
    noise: Noise,
    batch: Batch,
    forward: Callable[..., tuple[Tensor, Pullback]] | None = None,
) -> Pass:
    """What opens an update: the net at S samples of its weights and noise, and the log-likelihood's gradients.

    `forward` takes the place of `net.train_forward`.
    """
    out, pullback = (forward or posterior.net.train_forward)(posterior.layers(state, weights), batch.x)
    y = batch.y.unsqueeze(1)
    nll = parallel.mean(-posterior.likelihood.log_prob(noise, out, y).mean((1, 2)))
    return Pass(noise, out, y, nll, pullback(posterior.likelihood.score(noise, out, y)), pullback)


def train_nll(posterior: Predictive, state: State, weights: Weights, noise: Noise, batch: Batch) -> Float[Tensor, " R"]:
    """The `nll` of such a pass alone; each part of the batch that this process holds has S samples of its own."""
    layers, parts = posterior.layers(state, weights), parallel.world().held
    if parts == 1:
        out = posterior.net.train_output(layers, batch.x)[0]
    else:
        out = forward_in_parts(posterior.net, layers, batch.x, parts)[0]
    return parallel.mean(-posterior.likelihood.log_prob(noise, out, batch.y.unsqueeze(1)).mean((1, 2)))


def end_update(
    posterior: Predictive, seen: Pass, new: State, old: State, kl_weight: float = 1.0, ok: Tensor | None = None
) -> tuple[State, Info]:
    """What ends an update: the new state, with a `common` that has learnt from the pass too, and numbers to log.

    `kl_weight` is lambda in the likelihood's own posterior. Replicas that failed, or are not `ok` [R], are frozen.
    """
    common = advance(old.common, posterior, seen.out, seen.y, seen.taps.norms, kl_weight)
    return settle(new._replace(common=common), old, ok), {"nll": seen.nll}


def advance(
    shared: Common, posterior: Predictive, out: Tensor, y: Tensor, norms: tuple[NormTaps, ...], kl_weight: float
) -> Common:
    """The shared part after one more update: noise and normalisations have seen the batch, and the step is counted."""
    noise = parallel.mean(posterior.likelihood.update(shared.noise, out, y, float(shared.n_data), kl_weight))
    taken, count = shared.taken + 1, (out.shape[1], out.shape[2])
    moved = advance_norms(shared.norms, posterior.net, norms, count, posterior.batch_norm_lr, taken)
    eta = shared.prior and shared.prior._replace(held=shared.prior.variance)
    return shared._replace(noise=noise, step=shared.step + 1, taken=taken, norms=moved, prior=eta)


def settle(new: State, old: State, ok: Tensor | None = None) -> State:
    """`new`, but with every replica that failed frozen at `old` and marked as not alive.

    A replica has failed where any number of its state is not finite.

    Args:
        new: the state after a step.
        old: the state before it.
        ok: [R] bool, what else decides.
    """
    alive = old.common.alive if ok is None else old.common.alive & ok
    before = {id(leaf) for leaf in tree.tensors(old)}
    # What stands in several places is looked at once.
    changed = {id(t): t for t in tree.tensors(new) if t.dim() and t.is_floating_point() and id(t) not in before}
    if changed:
        # A sum is finite only where all its terms are, and takes fewer small operations than a test of each.
        every = list(changed.values())
        if tree.bundled(every) and len({t.dtype for t in every}) == 1:
            total = tree.side_by_side(every).sum(1)
        else:
            total = torch.stack([t.sum(tuple(range(1, t.dim()))) if t.dim() > 1 else t for t in every]).sum(0)
        alive = alive & (total.abs() < math.inf)
    kept = tree.where(alive, new, old)
    return kept._replace(common=kept.common._replace(alive=alive))
