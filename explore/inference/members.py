"""Mixtures that pool the samples of k independent fits of one posterior, called members.

    q(w, tau) = 1/k sum_i q_i(w, tau)            tau: the likelihood's noise, estimated separately by each member

Members see the same batches in the same order and are fitted as R k replicas of their posterior. State tensors have a
member axis, [R, k, ...], except `alive` [R] and shared scalars. KL is convex, so the mean KL of the members is an upper
bound on the KL of the mixture. For the KL to the prior, the bound is at most log k too large.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from explore.core import tree
from explore.core.errors import InputError, check_range, describe, fits, shown
from explore.core.rng import Rng
from explore.core.shapes import Batch, Info, State
from explore.inference.base import Predictive, Variational
from explore.inference.gaussian import Functions
from explore.inference.updates.adam import NormPolicy
from explore.nets.protocols import Layer, Likelihood, Network, Noise, count_samples

Drawn = TypeVar("Drawn")


def mixture(posterior: Predictive, members: int) -> Predictive:
    """Return a mixture of independent fits of a posterior, or the posterior itself if `members` is 1."""
    kind: Any = VariationalMixture if isinstance(posterior, Variational) else Mixture
    pooled: Mixture = kind(posterior=posterior, members=members)  # built for one member too, to validate it
    return posterior if members == 1 else pooled


@dataclass(frozen=True, kw_only=True)
class Mixture(Predictive):
    """A mixture of equally weighted members. If a member of a replica fails, all members of this replica are frozen."""

    posterior: Predictive  # posterior of each member, with all other settings
    members: int  # k
    net: Network = field(init=False, repr=False)
    likelihood: Likelihood = field(init=False, repr=False)
    epochs: int = field(init=False, repr=False)
    batch_size: int = field(init=False, repr=False)
    min_batches: int = field(init=False, repr=False)
    batch_norm: NormPolicy = field(init=False, repr=False)
    batch_norm_lr: float = field(init=False, repr=False)
    points_lr: float = field(init=False, repr=False)

    passed_on: ClassVar[tuple[str, ...]] = ("whole", "stands_for", "turn")  # besides settings
    pretrained_error: ClassVar[str] = "mixture members need different initial weights"
    mixture_error: ClassVar[str] = "a mixture cannot be mixed again; set members once"

    def __post_init__(self) -> None:
        if not isinstance(self.posterior, Predictive):
            raise InputError(f"posterior is a {type(self.posterior).__name__}; a mixture needs a posterior")
        if self.posterior.mixture_error:
            raise InputError(self.posterior.mixture_error)
        if self.posterior.net.trained:
            raise InputError(f"{self.pretrained_error}; leave trained=True out of Net")
        if not fits(int, self.members):
            raise InputError(f"members is {shown(self.members)}; it must be {describe(int)}")
        check_range("members", self.members, "[1, 1e4]")
        for name in (*self.passed_on, *(f.name for f in fields(self) if not f.init)):  # validated by the posterior
            object.__setattr__(self, name, getattr(self.posterior, name))

    def with_settings(self, **settings: Any) -> Predictive:
        """Return a copy with changed settings. All except `posterior` and `members` are settings of the members."""
        changed: dict[str, Any] = {name: settings.pop(name) for name in ("posterior", "members") if name in settings}
        return replace(self, **{"posterior": self.posterior.with_settings(**settings), **changed})

    @property
    def certain(self) -> bool:
        return self.members == 1 and self.posterior.certain

    def init(self, n_data: float, replicas: int, rng: Rng) -> State:
        return self._grouped(self.posterior.init(n_data, replicas * self.members, rng))

    def update(self, state: State, batch: Batch, rng: Rng, progress: float = 0.0) -> tuple[State, Info]:
        """Update every member on the same batch; logged values are means over members."""
        new, info = self.posterior.update(_replicas(state), self._each(batch), rng, progress)
        return self._settled(new, state), {name: self._mean(value) for name, value in info.items()}

    def learned(self, state: State) -> Info:
        return {name: self._mean(value) for name, value in self.posterior.learned(_replicas(state)).items()}

    def initial_curvature_share(self, state: State) -> Float[Tensor, " R"]:
        return self._mean(self.posterior.initial_curvature_share(_replicas(state)))

    def finish(self, state: State, batches: Iterable[Batch], rng: Rng) -> State:
        return self._settled(self.posterior.finish(_replicas(state), map(self._each, batches), rng), state)

    def sample(self, state: State, n: int, rng: Rng) -> tuple[Layer, ...]:
        """Return n joint samples: floor(n / k) from each member, and the remainder from randomly chosen members."""
        layers = self.posterior.sample(_replicas(state), -(-n // self.members), rng)
        each = count_samples(layers)
        return self._pooled(layers, each, self._chosen(state, each, n, rng))

    def joint_sample(self, state: State, n: int, rng: Rng) -> tuple[tuple[Layer, ...], Noise]:
        """Return n joint samples of weights and noise, split over members as in `sample`."""
        drawn = self.posterior.joint_sample(_replicas(state), -(-n // self.members), rng)
        each = count_samples(drawn[0])
        return self._pooled(drawn, each, self._chosen(state, each, n, rng))

    def functions(self, state: State, n: int, rng: Rng) -> tuple[Any, tuple[Any, ...], Noise]:
        """Return a network and n joint samples of its layers and noise, split over members as in `sample`."""
        net, layers, noise = self.posterior.functions(_replicas(state), -(-n // self.members), rng)
        each = count_samples(layers)
        chosen = self._chosen(state, each, n, rng)
        if not isinstance(layers[0], Functions):
            return net, *self._pooled((layers, noise), each, chosen)
        each_member = tree.map_tensors(lambda t: t.unflatten(0, (-1, self.members)).flatten(1, 2), layers[0])
        return net, (each_member._replace(chosen=chosen),), self._pooled(noise, each, chosen)

    def expected_noise(self, state: State) -> Noise:
        return tree.map_tensors(self._mean, self.posterior.expected_noise(_replicas(state)))

    def _pooled(self, drawn: Drawn, each: int, chosen: Int[Tensor, "R n"] | None) -> Drawn:
        """Pool the `chosen` samples of all members, [R k, each or 1, ...] -> [R, n, ...]; None: all samples."""

        def pool(t: Tensor) -> Tensor:
            every = t.expand(-1, each, *t.shape[2:]).unflatten(0, (-1, self.members)).flatten(1, 2)
            return every if chosen is None else every[torch.arange(len(every), device=t.device).unsqueeze(1), chosen]

        pooled: Drawn = tree.map_tensors(pool, drawn)
        return pooled

    def _chosen(self, state: State, each: int, n: int, rng: Rng) -> Int[Tensor, "R n"] | None:
        """Return which n of the samples of all members are used; None: all."""
        if n >= self.members * each:
            return None
        last = each * torch.arange(1, self.members + 1, device=rng.device) - 1  # of each member; not all are used
        every = torch.arange(self.members * each, device=rng.device)
        replicas = len(state.common.alive)
        first = every[~torch.isin(every, last)].expand(replicas, -1)
        more = last[rng.permutation(replicas, self.members)[:, : n - first.shape[1]]]
        return torch.cat([first, more], 1)

    def _each(self, batch: Batch) -> Batch:
        """Repeat every replica's examples for each of its members."""
        return Batch(*(t.repeat_interleave(self.members, 0) for t in batch))

    def _mean(self, values: Float[Tensor, "Rk ..."]) -> Float[Tensor, "R ..."]:
        return values.unflatten(0, (-1, self.members)).mean(1)

    def _grouped(self, state: State) -> State:
        """Restore the member axis that `_replicas` flattens; a replica is alive if all its members are alive."""
        new = tree.map_tensors(lambda t: t.unflatten(0, (-1, self.members)) if t.dim() else t, state)
        return new._replace(common=new.common._replace(alive=new.common.alive.all(1)))

    def _settled(self, new: State, old: State) -> State:
        """Restore the member axis of the state `new`, and freeze replicas with a failed member at the state `old`."""
        grouped = self._grouped(new)
        alive = old.common.alive & grouped.common.alive
        settled = tree.where(alive, grouped, old)
        return settled._replace(common=settled.common._replace(alive=alive))


@dataclass(frozen=True, kw_only=True)
class VariationalMixture(Mixture):
    """A mixture of variational posteriors; KL and gain are means over the members."""

    posterior: Variational
    kl_weight: float = field(init=False, repr=False)
    gain_step: float = field(init=False, repr=False)

    passed_on: ClassVar[tuple[str, ...]] = (*Mixture.passed_on, "coordinates")

    def kl_prior(self, state: State) -> Float[Tensor, " R"]:
        """Return the members' mean KL to the prior, which exceeds the KL of the mixture by at most log k nats."""
        return self._mean(self.posterior.kl_prior(_replicas(state)))

    def divergence(self, state: State) -> Float[Tensor, " R"]:
        return self._mean(self.posterior.divergence(_replicas(state)))

    def gain(self, state: State, batch: Batch, rng: Rng) -> Float[Tensor, "R B"]:
        """Return the mean gain over members, in nats, an upper bound on the gain of a mixture with fixed weights."""
        return self._mean(self.posterior.gain(_replicas(state), self._each(batch), rng))


def _replicas(state: State) -> State:
    """Flatten the state of a mixture into the state of R k replicas of the members' posterior."""
    members = state.common.taken.shape[1]
    flat = tree.map_tensors(lambda t: t.flatten(0, 1) if t.dim() > 1 else t, state)
    return flat._replace(common=flat.common._replace(alive=state.common.alive.repeat_interleave(members)))
