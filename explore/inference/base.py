"""The base classes of posteriors, and the part of the state that all posteriors share.

A posterior is a frozen dataclass of settings. Its methods are pure functions of a state, a NamedTuple of tensors with a
field `common`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, TypeVar, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from explore.core import tree
from explore.core.context import Number, Turn
from explore.core.errors import Checked, InputError
from explore.core.rng import Rng
from explore.core.shapes import Batch, Info, State, Weights
from explore.inference.updates import adam
from explore.inference.updates.adam import NormPolicy, Trained
from explore.nets.protocols import Layer, Likelihood, Network, Noise, Phi, check_likelihood, count_samples

L = TypeVar("L", bound=Layer)
Rows = float | Float[Tensor, "_R _I 1"]
"""The prior variance of one coordinate tensor: a scalar, one per replica ([R, 1, 1]) or one per row ([R, I, 1])."""


class Common(NamedTuple):
    """The part of the state that all posteriors share."""

    noise: Phi  # the posterior over the noise of the likelihood
    alive: Bool[Tensor, " R"]  # False for failed replicas, which are frozen at their last valid state
    step: Int[Tensor, ""]  # updates so far; on the CPU, so that reading it never waits for a GPU
    taken: Int[Tensor, " R"]  # accepted updates of each replica: some posteriors reject steps
    n_data: Float[Tensor, ""]  # N, the effective data size; on the CPU
    norms: Trained  # batch-norm layers: scale, shift, running mean and variance [R, M, 4, C]
    points: Trained = Trained()  # point estimates


@dataclass(frozen=True, kw_only=True)
class Predictive(Checked, ABC):
    """The base class of all posteriors: models that can be trained and return joint weight samples."""

    net: Network
    likelihood: Likelihood  # of the targets given the output of the network
    epochs: int = 1000  # passes over the data in a fit from scratch
    batch_size: int = 10  # examples per step; n examples are split into round(n / batch_size) near-equal batches ...
    min_batches: int = 1  # ... but at least this many
    batch_norm: NormPolicy = "frozen"  # whether to train the scales and shifts of batch-norm layers
    batch_norm_lr: float = 0.001  # Adam's learning rate for scales and shifts
    points_lr: float = 0.001  # Adam's learning rate for other parameters of the network that are point estimates

    # Allowed intervals of numeric settings; settings without an interval must be positive.
    ranges: ClassVar[dict[str, str]] = {
        "epochs": "[1, 1e6]", "min_batches": "[1, 1e6]", "samples": "[1, 1e4]", "gain_samples": "[1, 1e4]"
    }  # fmt: skip
    whole: ClassVar[bool] = False  # whether every update needs all the data at once
    partial: ClassVar[bool] = True  # whether targets may be partly NaN (missing), see `PartialGaussian`
    classifies: ClassVar[bool] = True  # whether targets may be classes
    of_weights: ClassVar[bool] = True  # whether `sample` returns weights of `net`; if not, only `functions` predicts
    weighs_gradients: ClassVar[bool] = True  # whether training uses the `training_weights` of a likelihood
    ignores: ClassVar[frozenset[str]] = frozenset()  # settings of the likelihood that have no effect
    recursive: ClassVar[bool] = False  # whether updates with each example once, in any batches, are all that it needs
    double: ClassVar[frozenset[str]] = frozenset()  # parts of the state that are always in double precision
    mixture_error: ClassVar[str] = ""  # why mixtures of this posterior are not allowed; empty: they are
    prior_error: ClassVar[str] = ""  # why weights that no data determine may not keep the prior; empty: they do
    pretrained_error: ClassVar[str] = ""  # why it cannot start from the weights of a trained module; empty: it can

    @property
    def certain(self) -> bool:
        """Whether this is a point estimate: a single network without weight uncertainty."""
        return False

    def __post_init__(self) -> None:
        if not isinstance(self.net, Network):
            kind = "type" if isinstance(self.net, type) else type(self.net).__name__
            raise InputError(f"net is a {kind}; it must be a Net, such as Net(module)")
        if self.net.trained and self.pretrained_error:
            raise InputError(f"{self.pretrained_error}; leave trained=True out of Net")
        check_likelihood(self.likelihood)
        super().__post_init__()

    @abstractmethod
    def init(self, n_data: float, replicas: int, rng: Rng) -> State:
        """Return the initial state of R replicas, before any data; `n_data` is the number of training examples."""

    @abstractmethod
    def update(self, state: State, batch: Batch, rng: Rng, progress: float = 0.0) -> tuple[State, Info]:
        """Take one step on a batch. Return the new state, and a dict name -> [R] of values to log.

        The batch is x [R, B, ...] and y [R, B, O] or [R, B]. `progress` is the completed fraction of training, for
        schedules. In online training, `progress` is always 0.
        """

    def stands_for(self, examples: float) -> float:
        """Return the effective data size N for this number of examples; the two differ under data augmentation."""
        return examples

    def turn(self, step: int, progress: float) -> Turn:
        """Return the `Turn` of a step (from 1): its scheduled `numbers`, and as `kind` the code branches it takes."""
        return Turn()

    def learned(self, state: State) -> Info:
        """Return values to log at the end of a fit: a dict name -> [R]."""
        return {}

    def initial_curvature_share(self, state: State) -> Float[Tensor, " R"]:
        """Return the share of the curvature estimate, in [0, 1], that still comes from its initial identity matrix."""
        return torch.zeros(len(state.common.alive))

    def finish(self, state: State, batches: Iterable[Batch], rng: Rng) -> State:
        """Finalise the state after a fit, with a pass over all `batches`; for post-hoc posteriors (Laplace, SWAG).

        Online training, as in VIME, never calls this, so all other methods must also work on unfinished states.
        """
        return state

    def carried(self, state: State) -> Any:
        """Return what a fit to more examples starts from (see `MCLMC.continued`); None: it starts from scratch."""

    @abstractmethod
    def sample(self, state: State, n: int, rng: Rng) -> tuple[Layer, ...]:
        """Return layers with n joint weight samples, or all if there are fewer. All inputs share these samples."""

    def layers(self, state: State, weights: Sequence[L], samples: int | None = None) -> tuple[L | Tensor, ...]:
        """Return `weights`, and then batch norm and point estimates for their S samples (default: `samples`)."""
        count, shared = count_samples(weights, samples), state.common
        # From the first S members, or shared by all samples.
        return (*weights, *(v[:, :count] for v in (*shared.norms.values, *shared.points.values)))

    def sample_modules(self, state: State, n: int, rng: Rng) -> list[nn.Module]:
        """Return n copies of the module of `net`, each with one sample of its weights; the state has one replica."""
        layers = self._of_one(state, self.sample(state, n, rng))
        return [self.net.module(layers, i) for i in range(count_samples(layers))]

    def write_back(self, state: State, module: nn.Module | None = None) -> nn.Module:
        """Write the mean weights into `module`, by default a copy of the module of `net`, and return it."""
        if not self.certain and not hasattr(self, "at_mean"):
            raise InputError(f"{type(self).__name__} has no mean weights; use sample_modules")
        layers = self.sample(state, 1, Rng(0)) if self.certain else cast(Any, self).at_mean(state)
        return self.net.module(self._of_one(state, layers), into=module)

    def state_dict(self, state: State) -> dict[str, Tensor]:
        """Return a state as tensors on the CPU, by name; `torch.load` reads them back with weights_only=True."""
        return {name: leaf.cpu() for name, leaf in tree.save(state).items()}

    def load_state(self, saved: Mapping[str, Tensor], device: str | torch.device = "cpu") -> State:
        """Restore a state from its `state_dict`; raise InputError if it does not fit this posterior."""
        real = [t.dtype for t in saved.values() if t.dim() and t.is_floating_point()]
        if not real or not {"common.n_data", "common.alive"} <= saved.keys():
            raise InputError("not a saved state. Pass the result of state_dict()")
        replicas, rng = len(saved["common.alive"]), Rng(0, device, real[0])
        return tree.restore(self.init(float(saved["common.n_data"]), replicas, rng), saved)

    def _of_one(self, state: State, layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
        if not self.of_weights or len(state.common.alive) > 1:
            raise InputError("only the weights of one replica of a network can be written into a module")
        return layers

    def joint_sample(self, state: State, n: int, rng: Rng) -> tuple[tuple[Layer, ...], Noise]:
        """Return n weight samples, with one noise draw each. A point estimate with n = 1 uses the expected noise."""
        layers = self.sample(state, n, rng)
        if self.certain and n == 1:
            return layers, self.expected_noise(state)
        return layers, self.likelihood.sample_noise(state.common.noise, count_samples(layers), rng)

    def functions(self, state: State, n: int, rng: Rng) -> tuple[Any, tuple[Any, ...], Noise]:
        """Return a network, n samples of its layers and one noise draw for each, from which predictions are made."""
        return self.net, *self.joint_sample(state, n, rng)

    def expected_noise(self, state: State) -> Noise:
        """Return the noise parameters of the likelihood at their posterior mean, with a sample axis S of length 1."""
        return self.likelihood.expected(state.common.noise)

    def with_settings(self, **settings: Any) -> Predictive:
        return replace(self, **settings)


@dataclass(frozen=True, kw_only=True)
class Variational(Predictive):
    """A posterior with a density q over `coordinates`: the weights, or fewer variables from which weights are built.

    Training maximises E_q[log p(D|w)] - kl_weight * KL(q || prior), with the prior N(0, prior_variance).
    """

    prior_variance: float = 1.0  # eta
    kl_weight: float = 1.0  # lambda; 1 for Bayes' rule
    augmentation: float = 1.0  # rho: the effective number of examples per example under data augmentation
    gain_step: float = 0.01  # rho: the step size in `gain`

    def stands_for(self, examples: float) -> float:
        return self.augmentation * examples

    def variances(self, state: State) -> tuple[Rows, ...]:
        """Return the prior variance eta of each coordinate tensor."""
        return (self.prior_variance,) * len(self.coordinates)

    def gamma(self, shared: Common, weight: Number | None = None) -> Number:
        """Return gamma = lambda / (N eta); `weight` is lambda, by default `kl_weight`."""
        return (self.kl_weight if weight is None else weight) / (float(shared.n_data) * self.prior_variance)

    @property
    @abstractmethod
    def coordinates(self) -> tuple[tuple[int, int], ...]:
        """The shapes (I, O) of the coordinate tensors, which are the weight matrices if q is over the weights."""

    @abstractmethod
    def sample_coordinates(self, state: State, n: int, rng: Rng) -> Weights:
        """Draw n samples of the coordinates from q, a tuple of [R, n, I, O]. `sample` builds layers from these."""

    # Over all coordinates, in nats: KL(q || prior), and KL(q' || q) after one step of size rho on the log-likelihood of
    # each example alone.
    @abstractmethod
    def kl_prior(self, state: State) -> Float[Tensor, " R"]: ...
    @abstractmethod
    def gain(self, state: State, batch: Batch, rng: Rng) -> Float[Tensor, "R B"]: ...

    def divergence(self, state: State) -> Float[Tensor, " R"]:
        """Return KL(q || prior) over all coordinates and the noise of the likelihood, in nats."""
        return self.kl_prior(state) + self.likelihood.kl(state.common.noise)


def common(posterior: Predictive, n_data: float, replicas: int, rng: Rng, members: int = 1) -> Common:
    """Return the common part of an initial state, with batch norm and point estimates for each of `members`."""
    norms = tuple(v.repeat(1, members, 1, 1) for v in posterior.net.initial_norms(replicas, rng))
    trained = tuple(v[:, :, :2] for v in norms) if posterior.batch_norm == "adam" else ()
    points = posterior.net.initial_points(replicas, rng)
    points = tuple(v.repeat(1, members, *[1] * (v.dim() - 2)) for v in points)
    return Common(
        noise=posterior.likelihood.init(posterior.net.outputs, replicas, rng),
        alive=torch.ones(replicas, dtype=torch.bool, device=rng.device),
        step=torch.tensor(0),
        taken=torch.zeros(replicas, dtype=torch.long, device=rng.device),
        n_data=torch.tensor(float(posterior.stands_for(n_data)), dtype=torch.float64),
        norms=Trained(norms, adam.start(trained)),
        points=Trained(points, adam.start(points)),
    )
