"""The base classes of posteriors, and the part of the state that all posteriors share.

A posterior is a frozen dataclass of settings. Its methods are pure functions of a state, a NamedTuple of tensors with a
field `common`.

A learned prior variance eta maximises the ELBO in closed form for fixed q = N(M, Sigma). If n coordinates share eta,
eta = (|M|^2 + tr Sigma) / n (Graves, Practical Variational Inference for Neural Networks, 2011), clipped to [1e-4,
1e2]. Setting eta at the end of each epoch cannot lower the ELBO. The new eta takes effect at the next update of q.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from explore.core import tree
from explore.core.context import Turn
from explore.core.errors import Checked, InputError
from explore.core.linalg import over
from explore.core.rng import Rng
from explore.core.shapes import Batch, Info, State, Weights
from explore.inference.structures.base import Dampings
from explore.inference.updates import adam
from explore.inference.updates.adam import NormPolicy, NormState, PointsState
from explore.nets.protocols import Layer, Likelihood, Network, Noise, Phi, check_likelihood, count_samples

L = TypeVar("L", bound=Layer)
LEAST, MOST = 1e-4, 1e2
Rows = float | Float[Tensor, "_R _I 1"]
"""The prior variance of one coordinate tensor: a scalar, one per replica ([R, 1, 1]) or one per row ([R, I, 1])."""


class Prior(NamedTuple):
    """Learned prior variances: [R, 1, 1] per coordinate tensor, or [R, I, 1] if biases have a separate variance."""

    variance: tuple[Float[Tensor, "R _I 1"], ...]  # eta, set at the end of the last epoch
    held: tuple[Float[Tensor, "R _I 1"], ...]  # eta at the last update, for densities that depend on it


class Common(NamedTuple):
    """The part of the state that all posteriors share."""

    noise: Phi  # the posterior over the noise of the likelihood
    alive: Bool[Tensor, " R"]  # False for failed replicas, which are frozen at their last valid state
    step: Int[Tensor, ""]  # updates so far; on the CPU, so that reading it never waits for a GPU
    taken: Int[Tensor, " R"]  # accepted updates of each replica: some posteriors reject steps
    n_data: Float[Tensor, ""]  # N, the effective data size; on the CPU
    norms: NormState  # batch-norm layers
    prior: Prior | None = None  # learned prior variances; None: prior_variance is fixed
    points: PointsState = PointsState()  # point estimates


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
        if getattr(self, "prior_variance", None) == "learned" and self.own_bias_variance is None:
            raise InputError(f"{type(self).__name__} does not learn prior_variance; set it to a number")

    @property
    def own_bias_variance(self) -> tuple[bool, ...] | None:
        """Whether the bias row of each coordinate tensor learns a separate variance; None if this is unsupported."""
        return None

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

    def end_epoch(self, state: State) -> State:
        """Update the prior variance, if it is learned, after an epoch (in VIME, after a round of updates)."""
        return state

    def learned(self, state: State) -> Info:
        """Return the values that `end_epoch` estimated, for logging: a dict name -> [R]."""
        return {}

    def initial_curvature_share(self, state: State) -> Float[Tensor, " R"]:
        """Return the share of the curvature estimate, in [0, 1], that still comes from its initial identity matrix."""
        return torch.zeros(len(state.common.alive))

    def start_prior(self, replicas: int, rng: Rng) -> Prior | None:
        """Return initial values of the learned prior variances, or None if the prior variance is fixed."""
        return None

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

    prior_variance: float | Literal["learned"] = 1.0  # eta
    kl_weight: float = 1.0  # lambda; 1 for Bayes' rule
    augmentation: float = 1.0  # rho: the effective number of examples per example under data augmentation
    gain_step: float = 0.01  # rho: the step size in `gain`

    def stands_for(self, examples: float) -> float:
        return self.augmentation * examples

    @property
    def eta(self) -> Any:
        """The prior variance. If learned, its initial value, the class default."""
        default = type(self).prior_variance
        start = 1.0 if isinstance(default, str) else default
        return start if isinstance(self.prior_variance, str) else self.prior_variance

    def start_prior(self, replicas: int, rng: Rng) -> Prior | None:
        biases = self.own_bias_variance if self.prior_variance == "learned" else None
        if biases is None:
            return None
        variance = tuple(
            torch.full((replicas, inputs if bias else 1, 1), self.eta, dtype=rng.dtype, device=rng.device)
            for (inputs, _), bias in zip(self.coordinates, biases, strict=True)
        )
        return Prior(variance, variance)

    def learned(self, state: State) -> Info:
        """Return learned variances: `prior_variance_i` of tensor i, `prior_variance_i_bias` if its bias has another."""
        named: Info = {}
        if state.common.prior is None:
            return named
        for i, (rows, bias) in enumerate(zip(self.variances(state), self.own_bias_variance or (), strict=False), 1):
            if isinstance(rows, Tensor):
                named[f"prior_variance_{i}"] = rows[:, 0, 0]
                named |= {f"prior_variance_{i}_bias": rows[:, -1, 0]} if bias else {}
        return named

    def variances(self, state: State) -> tuple[Rows, ...]:
        """Return the prior variance eta of each coordinate tensor."""
        learned: Prior | None = state.common.prior
        return (self.eta,) * len(self.coordinates) if learned is None else learned.variance

    def gamma(self, shared: Common, weight: float | Tensor | None = None, held: bool = False) -> Dampings:
        """Return gamma = lambda / (N eta), one for all coordinate tensors or a tuple with one per tensor.

        `weight` is lambda, by default `kl_weight`. If `held` is true, eta is the value at the last update.
        """
        weight, n_data = self.kl_weight if weight is None else weight, float(shared.n_data)
        if shared.prior is None:
            gamma = weight / (n_data * self.eta)
            return (gamma[:, None, None],) * len(self.coordinates) if isinstance(gamma, Tensor) else gamma
        etas = shared.prior.held if held else shared.prior.variance
        return tuple(over(weight, eta) / (n_data * eta) for eta in etas)

    @property
    @abstractmethod
    def coordinates(self) -> tuple[tuple[int, int], ...]:
        """The shapes (I, O) of the coordinate tensors, which are the weight matrices if q is over the weights."""

    @abstractmethod
    def sample_coordinates(self, state: State, n: int, rng: Rng) -> Weights:
        """Draw n samples of the coordinates from q, a tuple of [R, n, I, O]. `sample` builds layers from these."""

    # Over all coordinates, in nats: KL(new || old), KL(q || prior), and KL(q' || q) after one step of size rho on the
    # log-likelihood of each example alone.
    @abstractmethod
    def kl(self, new: State, old: State) -> Float[Tensor, " R"]: ...
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
        norms=NormState(norms, adam.start(trained)),
        prior=posterior.start_prior(replicas, rng),
        points=PointsState(points, adam.start(points)),
    )
