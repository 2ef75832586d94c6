"""What every posterior offers.

A posterior is a frozen record of settings with pure functions on a state; the state is a NamedTuple of tensors.
Each state has a field `common`, of type `Common`, with what all posteriors share.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from explore import tree
from explore.errors import InputError, check_fields, shown
from explore.likelihoods import Likelihood, Noise, Phi
from explore.nets import Layer, Net, count_samples
from explore.posteriors.norms import NormPolicy, NormState, advance_norms, expand_norms, start_norms
from explore.rng import Rng
from explore.shapes import Batch, Info, NormTaps, State, Weights

L = TypeVar("L", bound=Layer)


class Common(NamedTuple):
    """The part of the state that all posteriors share."""

    noise: Phi  # the likelihood's own posterior
    alive: Bool[Tensor, " R"]  # a replica that failed is frozen at its last good state
    step: Int[Tensor, ""]  # updates so far; on the CPU, so that reading it never waits for a device
    taken: Int[Tensor, " R"]  # how many of them each replica took: some posteriors reject steps
    n_data: Float[Tensor, ""]  # N: how many examples the posterior stands for; on the CPU
    norms: NormState  # batch normalisations


@dataclass(frozen=True, kw_only=True)
class Predictive(ABC):
    """Anything that can be trained and gives joint weight samples.

    Args:
        net: the network.
        likelihood: how targets scatter around its output.
        epochs: passes over the data when it is fitted from scratch.
        batch_size: examples a step; n examples are split into round(n / batch_size) near-equal batches.
        batch_norm: how scales and shifts of batch normalisations are learnt: not at all, or as point estimates.
        batch_norm_lr: the step of Adam for them.
    """

    net: Net
    likelihood: Likelihood
    epochs: int = 1000
    batch_size: int = 10
    batch_norm: NormPolicy = "frozen"
    batch_norm_lr: float = 0.001

    # Where a numeric setting may lie; what no class names must be positive.
    ranges: ClassVar[dict[str, str]] = {"epochs": "[1, 1e6]", "samples": "[1, 1e4]", "gain_samples": "[1, 1e4]"}
    whole: ClassVar[bool] = False  # whether an update takes all the data, so that none can be made with a part

    @property
    def certain(self) -> bool:
        """Whether there is one net only, of which nothing is uncertain."""
        return False

    def __post_init__(self) -> None:
        if not isinstance(self.net, Net):
            raise InputError(f"net is a {type(self.net).__name__}; it must be a Net, which Net(module) makes")
        if isinstance(self.likelihood, type) or not hasattr(self.likelihood, "log_prob"):
            raise InputError(
                f"likelihood is {shown(self.likelihood)}; it must be made by Gaussian, Categorical, Bernoulli "
                "or a class with their methods"
            )
        ranges = {k: v for cls in reversed(type(self).__mro__) for k, v in getattr(cls, "ranges", {}).items()}
        check_fields(self, ranges)

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
            progress: how much of the training is behind, in [0, 1]; drives the schedules.

        Returns:
            (new state, numbers to log, each [R]).
        """

    @abstractmethod
    def sample(self, state: State, n: int, rng: Rng) -> tuple[Layer, ...]:
        """Joint weight samples: the same weights for every input. At most n of them, where there are fewer.

        Behind the matrices stand the batch normalisations, see `with_norms`.
        """

    def joint_sample(self, state: State, n: int, rng: Rng) -> tuple[tuple[Layer, ...], Noise]:
        """Weight samples, and the likelihood's noise parameter for each of them (independent, unless it says else)."""
        layers = self.sample(state, n, rng)
        return layers, self.likelihood.draw(state.common.noise, count_samples(layers), rng)


@dataclass(frozen=True, kw_only=True)
class Variational(Predictive):
    """A posterior with a density, trained towards the maximum of E_q[log p(D|w)] - kl_weight * KL(q || prior).

    The density is over the weights, or over fewer numbers that the weights are made of: its `coordinates`. The prior is
    N(0, prior_variance) on every one of them.
    """

    prior_variance: float = 1.0  # eta
    kl_weight: float = 1.0  # lambda; 1 is Bayes' rule
    gain_step: float = 0.01  # rho: the step of the one-example update that `gain` measures

    @property
    @abstractmethod
    def coordinates(self) -> tuple[tuple[int, int], ...]:
        """(I, O) of each tensor of coordinates: the weight matrices, where the density is over the weights."""

    @abstractmethod
    def sample_coordinates(self, state: State, n: int, rng: Rng) -> Weights:
        """Coordinates drawn from the density, a tuple of [R, n, I, O]; `sample` makes its layers of such a draw."""

    @abstractmethod
    def log_prob(self, state: State, drawn: tuple[Tensor, ...]) -> Float[Tensor, "R S"]:
        """Log density of coordinates, a tuple of [R, S, I, O]; batch normalisations behind them have none."""

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

        KL(q' || q), to second order in rho, where q' is q after one natural-gradient step of size rho on that
        example's log-likelihood, q itself being the prior: dmu = rho Sigma g, dLambda = rho E[g g^T].
        """

    def elbo(self, state: State, batch: Batch, rng: Rng, samples: int = 10) -> Float[Tensor, " R"]:
        """Evidence lower bound of all N examples, estimated from a batch and weight samples, in nats."""
        layers = self.sample(state, samples, rng)
        noise = self.likelihood.draw(state.common.noise, samples, rng)
        log_prob = self.likelihood.log_prob(noise, self.net.output(layers, batch.x), batch.y.unsqueeze(1))
        divergence = self.kl_prior(state) + self.likelihood.kl(state.common.noise)
        return float(state.common.n_data) * log_prob.mean((1, 2)) - self.kl_weight * divergence


def common(posterior: Predictive, n_data: float, replicas: int, rng: Rng, members: int = 1) -> Common:
    """The shared part of a fresh state; `members` with batch normalisations of their own where they are nets apart."""
    return Common(
        noise=posterior.likelihood.init(replicas, rng),
        alive=torch.ones(replicas, dtype=torch.bool, device=rng.device),
        step=torch.tensor(0),
        taken=torch.zeros(replicas, dtype=torch.long, device=rng.device),
        n_data=torch.tensor(float(n_data), dtype=torch.float64),
        norms=start_norms(posterior.net, posterior.batch_norm, replicas, members, rng),
    )


def with_norms(weights: Sequence[L], shared: Common, samples: int) -> tuple[L | Tensor, ...]:
    """Weights for S samples with the batch normalisations behind them, as `Net` takes them."""
    return (*weights, *expand_norms(shared.norms, samples))


def advance(
    shared: Common, posterior: Predictive, out: Tensor, y: Tensor, norms: tuple[NormTaps, ...], kl_weight: float
) -> Common:
    """The shared part after one more update: noise and normalisations have seen the batch, and the step is counted."""
    noise = posterior.likelihood.update(shared.noise, out, y, float(shared.n_data), kl_weight)
    taken, count = shared.taken + 1, (out.shape[1], out.shape[2])
    moved = advance_norms(shared.norms, posterior.net, norms, count, posterior.batch_norm_lr, taken)
    return shared._replace(noise=noise, step=shared.step + 1, taken=taken, norms=moved)


def settle(new: State, old: State, ok: Tensor | None = None) -> State:
    """`new`, but with every replica that failed frozen at `old` and marked as not alive.

    A replica has failed where any number of its state is not finite.

    Args:
        new: the state after a step.
        old: the state before it.
        ok: [R] bool, what else decides.
    """
    alive = old.common.alive if ok is None else old.common.alive & ok
    before = {id(leaf) for _, leaf in tree.leaves(old)}
    changed = [t for _, t in tree.leaves(new) if t.dim() and t.is_floating_point() and id(t) not in before]
    # A sum over all tells as much as a test of each, in fewer small operations.
    alive = alive & torch.stack([t.reshape(len(t), -1).sum(1) for t in changed]).sum(0).isfinite()
    kept = tree.where(alive, new, old)
    return kept._replace(common=kept.common._replace(alive=alive))
