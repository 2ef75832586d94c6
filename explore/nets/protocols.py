"""Protocols of layers, networks and likelihoods, and settings of batch-norm layers."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from explore.core.errors import InputError, listed, shown
from explore.core.rng import Rng
from explore.core.shapes import LayerTaps

Layer = Tensor | Callable[[Tensor], Tensor]
"""Weights [R, S, I, O], or a callable that maps inputs a [R, S or 1, B, T, I] to pre-activations [R, S, B, T, O].

A callable may have these attributes:
    samples: S.
    through(a, product): for layers made of matrix products; the output for images a [N, C, height, width] of one
        replica. `product(a, matrices)` is [1, N / B, B, T, O]: matrices [K, I, O], each for one of K equal parts of N.
        The callable is then also passed (channels, places of the kernel) with patches.
    of_examples(): if S = 1 and each example is multiplied by a separate matrix, these matrices [R, B, I, O].
A batch-norm layer is always a tensor [R, S, 4, C]: scale, shift, running mean and running variance.
"""
Layers = Sequence[Layer]
Pullback = Callable[[Tensor], LayerTaps]
Phi = Any
Noise = Any


class Norm(NamedTuple):
    """Settings of a batch-norm layer."""

    channels: int
    affine: bool  # whether it has a scale and a shift
    momentum: float  # the fraction by which the running statistics move towards those of a batch
    eps: float


class Point(NamedTuple):
    """A parameter that is trained as a point estimate."""

    name: str
    shape: tuple[int, ...]


@runtime_checkable
class Network(Protocol):
    """The interface of networks that posteriors use; see `Net` for the methods."""

    shapes: tuple[tuple[int, int], ...]  # (I, O) of each layer, in the order of `module.modules()`
    biases: tuple[bool, ...]  # whether each layer has a bias, the last row of its matrix
    convolutions: tuple[bool, ...]  # whether each layer is a convolution
    entries: tuple[bool, ...]  # whether each "layer" [1, O] has parameters that are no weights of a layer
    apart: bool  # whether some of them are used by the module's own code, so that samples run one after the other
    sequence: tuple[type[nn.Module], ...]  # types of the modules in a plain nn.Sequential; else the module's type
    norms: tuple[Norm, ...]  # the batch-norm layers
    points: tuple[Point, ...]  # other parameters that are trained as point estimates
    outputs: int
    weights: int  # number of weights
    trained: bool
    inputs: Any  # `explore.nets.inputs.Inputs`

    @property
    def width(self) -> int: ...
    def glorot(self, replicas: int, rng: Rng, *samples: int) -> tuple[Tensor, ...]: ...
    def initial(self, replicas: int, rng: Rng, *samples: int) -> tuple[Tensor, ...]: ...
    def initial_norms(self, replicas: int, rng: Rng) -> tuple[Float[Tensor, "R 1 4 _C"], ...]: ...
    def unit_norms(self, replicas: int, rng: Rng) -> tuple[Float[Tensor, "R 1 4 _C"], ...]: ...
    def initial_points(self, replicas: int, rng: Rng) -> tuple[Float[Tensor, "R 1 ..."], ...]: ...
    def module(self, layers: Layers, sample: int = 0, into: nn.Module | None = None) -> nn.Module: ...
    def forward(
        self, layers: Layers, x: Tensor, samples: int | None = None, last: int = 0
    ) -> tuple[Tensor, Pullback]: ...
    def train_forward(
        self, layers: Layers, x: Tensor, samples: int | None = None, seed: int = 0
    ) -> tuple[Tensor, Pullback]: ...
    def output(self, layers: Layers, x: Tensor, samples: int | None = None) -> Float[Tensor, "R S B O"]: ...
    def train_output(
        self, layers: Layers, x: Tensor, samples: int | None = None, seed: int = 0
    ) -> tuple[Float[Tensor, "R S B O"], tuple[Float[Tensor, "R _S 2 _C"], ...]]: ...


def count_samples(layers: Sequence[Any], default: int | None = None, equal: bool = False) -> int:
    """Return S, the number of weight samples, from the first layer that specifies S; if none does, return `default`.

    If `equal`, raise ValueError if layers specify different numbers.
    """
    counts = (w.shape[1] if isinstance(w, Tensor) else getattr(w, "samples", None) for w in layers)
    present = [count for count in counts if count is not None]
    samples = present[0] if present else default
    if samples is None:
        raise ValueError("cannot infer the number of weight samples from the layers; pass samples")
    if equal and len({*present}) > 1:
        raise ValueError(f"layers have {listed(present)} weight samples; expand all to the same number")
    return samples


@runtime_checkable
class Likelihood(Protocol):
    """Interface of a likelihood. `out` is a net's output [R, S, B, O]; `noise` is from `sample_noise` or `expected`.

    Optional, besides `PARTS`:
        gaussian: true if targets are Gaussian given output and noise; metrics are then in closed form.
        check_targets(y): raises InputError for targets that are not allowed.
        given(noise): for classes; a likelihood whose `mean` takes this noise into account.
    """

    discrete: ClassVar[bool]  # true: targets are classes, [R, B] int64; false: real numbers, [R, B, M]
    scaling: ClassVar[str]  # "affine": targets are standardised before training; "none": not, as for counts and classes

    # The mean of a target: M numbers, or the probabilities of M classes.
    def mean(self, out: Tensor) -> Float[Tensor, "R S B M"]: ...
    # The prior of the noise, for a net of O outputs; every tensor is [R, ...].
    def init(self, outputs: int, replicas: int, rng: Rng) -> Phi: ...
    # Draws noise parameters for each replica and weight sample: [R, S, ...], or None if there are none.
    def sample_noise(self, phi: Phi, samples: int, rng: Rng) -> Noise: ...
    def expected(self, phi: Phi) -> Noise: ...  # the noise parameters at their posterior mean, with S = 1
    # Log density (or probability) of each target, in nats, and its gradient in `out`, in closed form.
    def log_prob(self, noise: Noise, out: Tensor, y: Tensor) -> Float[Tensor, "R S B"]: ...
    def score(self, noise: Noise, out: Tensor, y: Tensor) -> Float[Tensor, "R S B O"]: ...
    # Draws targets from the model: [R, S, B, M], or classes [R, S, B].
    def sample(self, noise: Noise, out: Tensor, rng: Rng) -> Tensor: ...
    # K vectors whose outer products sum to E[score score^T], targets distributed as in the model; in closed form.
    def fisher_root(self, noise: Noise, out: Tensor) -> Float[Tensor, "K R S B O"]: ...
    def kl(self, phi: Phi) -> Float[Tensor, " R"]: ...  # KL of the noise posterior from its prior, in nats
    # The noise posterior after an update with one batch; the KL weight may be a tensor [R].
    def update(self, phi: Phi, out: Tensor, y: Tensor, n_data: float, kl_weight: float | Tensor) -> Phi: ...


PARTS = {
    # The variance of a target around its mean, [R, S, 1 or B, M].
    "variance": ("noise, out", "standard deviations of predictions need"),
    # The probability that a target is at most y [R, 1 or S, B, M]: [R, S, B, M].
    "cdf": ("noise, out, y", "intervals and quantiles need"),
    # The smallest number whose cdf is at least a level between 0 and 1: [R, S, B, M].
    "quantile": ("noise, out, level", "intervals and quantiles need"),
    # The noise with its standard deviation multiplied by sqrt(factor), for factors [R]; the first M outputs are means.
    "scaled_noise": ("noise, factor", "calibration needs"),
    # The entropy of a class given weights and noise, in nats: [R, S, B].
    "entropy": ("noise, out", "the mutual information of classes needs"),
}
"""The arguments of each optional method of a likelihood, and what needs it; all but `entropy` are for real numbers."""
METHODS = "mean init sample_noise expected log_prob score sample fisher_root kl update".split()


def find_part(likelihood: Likelihood, name: str) -> Callable[..., Any]:
    """Return the optional method `name` (see `PARTS`) of a likelihood; raise InputError if it is missing."""
    method: Callable[..., Any] | None = getattr(likelihood, name, None)
    if method is None:
        arguments, users = PARTS[name]
        raise InputError(f"{type(likelihood).__name__} has no {name}({arguments}), which {users}; add the method")
    return method


def check_likelihood(likelihood: Any) -> None:
    """Raise InputError if a likelihood lacks a required method or attribute."""
    if likelihood is None or isinstance(likelihood, type | str | bool | int | float):
        raise InputError(f"likelihood is {shown(likelihood)}; it must be an instance such as Gaussian()")
    kind = type(likelihood).__name__
    if missing := [name for name in ("discrete", *METHODS) if not hasattr(likelihood, name)]:
        raise InputError(f"the likelihood {kind} lacks {listed(missing)}; see explore.nets.protocols.Likelihood")
    if (scaling := getattr(likelihood, "scaling", None)) not in ("affine", "none"):
        allowed = "'affine' (standardised targets) or 'none' (raw targets, such as counts)"
        raise InputError(f"{kind}.scaling is {shown(scaling)}; it must be {allowed}")


def check_targets(likelihood: Likelihood, y: Tensor) -> None:
    """Raise InputError for targets that the likelihood does not allow."""
    if check := getattr(likelihood, "check_targets", None):
        check(y)


def given(likelihood: Likelihood, noise: Noise) -> Any:
    """Return the likelihood whose `mean` takes `noise` into account; most likelihoods ignore it."""
    return likelihood.given(noise) if hasattr(likelihood, "given") else likelihood


def is_gaussian(likelihood: Any) -> bool:
    """Return whether targets are Gaussian given the output and the noise, for a likelihood or its class."""
    return bool(getattr(likelihood, "gaussian", False))


def width(likelihood: Likelihood, outputs: int) -> int:
    """Return M, the number of targets or classes that a likelihood predicts from a net with this number of outputs."""
    return likelihood.mean(torch.zeros(1, 1, 1, outputs)).shape[-1]


class Parameterless:
    """A base class for likelihoods without noise parameters, such as for classes or counts; noise is None."""

    def init(self, outputs: int, replicas: int, rng: Rng) -> Phi:
        return torch.zeros(replicas, dtype=rng.dtype, device=rng.device)

    def sample_noise(self, phi: Phi, samples: int, rng: Rng) -> Noise:
        return None

    def expected(self, phi: Phi) -> Noise:
        return None

    def kl(self, phi: Phi) -> Float[Tensor, " R"]:
        return torch.zeros_like(phi)

    def update(self, phi: Phi, out: Tensor, y: Tensor, n_data: float, kl_weight: float | Tensor) -> Phi:
        return phi


def check_logits(likelihood: Likelihood, out: Float[Tensor, "R S B O"]) -> None:
    """Raise InputError if outputs are probabilities. A final sigmoid can only be detected if all weights are 0."""
    total = out.sum(-1) if out.shape[-1] > 1 else 2 * out.squeeze(-1)
    if likelihood.discrete and bool((out > 0).all()) and bool(((total - 1).abs() < 1e-4).all()):
        kind, end = type(likelihood).__name__, "softmax" if out.shape[-1] > 1 else "sigmoid"
        raise InputError(f"the network returns probabilities, but {kind} expects logits; remove the final {end}")
