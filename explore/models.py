"""What a posterior needs of a net and of a likelihood, and all that `explore.inference` knows of either."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor, nn

from explore.rng import Rng
from explore.shapes import LayerTaps

Layer = Tensor | Callable[[Tensor], Tensor]
"""A [R, S, I, O] matrix, or a callable a [R, S or 1, B, T, I] -> pre-activation [R, S, B, T, O].

A callable may say its S in an attribute `samples`. One that is made of products of its inputs with matrices may have
`through(a, product)`, too, for the images [N, C, height, width] of one replica: `product(a, matrices)` is
[1, N / B, B, T, O], of one matrix [1, I, O], or of as many [K, I, O] as equal parts that N is cut into. Called with
patches it is told their channels and the places of the kernel, too. One of a single sample that multiplies each example
by a matrix of its own may have `of_examples()`, these matrices [R, B, I, O].
A normalisation is always a tensor, [R, S, 4, C]: scale, shift, running mean and running variance.
"""
Pullback = Callable[[Tensor], LayerTaps]
Phi = Any
Noise = Any


class Norm(NamedTuple):
    """Settings of a batch normalisation."""

    channels: int
    affine: bool  # whether it has a scale and a shift
    momentum: float  # how far the running statistics move towards those of a batch
    eps: float


@runtime_checkable
class Network(Protocol):
    """What a posterior needs of a `Net`: a network without weights of its own, which come with every call.

    Attributes:
        shapes: (I, O) of each layer, in the order of `module.modules()`.
        biases: whether each layer has a bias, the last row of its matrix.
        convolutions: whether each layer is a convolution.
        sequence: the kinds of module that run one after the other; what is no plain nn.Sequential counts as one.
        norms: the batch normalisations.
        trained: whether posteriors begin at the weights that the module has.
    """

    shapes: tuple[tuple[int, int], ...]
    biases: tuple[bool, ...]
    convolutions: tuple[bool, ...]
    sequence: tuple[type[nn.Module], ...]
    norms: tuple[Norm, ...]
    weights: int
    trained: bool

    @property
    def width(self) -> int:
        """Numbers that the widest layer held for one example of one sample in the last pass."""

    def glorot(self, replicas: int, rng: Rng, *samples: int) -> tuple[Tensor, ...]:
        """Random weights, one [R, (samples,) I, O] matrix a layer: Glorot uniform, the bias row included."""

    def initial(self, replicas: int, rng: Rng, *samples: int) -> tuple[Tensor, ...]:
        """Those that posteriors begin at: of the module where it is `trained`, or `glorot`."""

    def initial_norms(self, replicas: int, rng: Rng) -> tuple[Float[Tensor, "R 1 4 _C"], ...]:
        """The same of batch normalisations: of the module, or `unit_norms`."""

    def unit_norms(self, replicas: int, rng: Rng) -> tuple[Float[Tensor, "R 1 4 _C"], ...]:
        """Batch normalisations before any data: scale 1, shift 0, running mean 0 and variance 1."""

    def forward(
        self, layers: Sequence[Layer], x: Tensor, samples: int | None = None
    ) -> tuple[Float[Tensor, "R S B O"], Pullback]:
        """The output, and its pullback to every layer's pre-activation.

        Args:
            layers: one `Layer` a layer, then the batch normalisations.
            x: [R, B, ...] inputs.
            samples: S, needed only where no layer says it.

        Returns:
            (out [R, S, B, O], pullback). `pullback(dout [R, S, B, O])` gives one `Taps` a layer, with the
            gradient of sum(dout * out); it may be called again, with other targets.
        """

    def train_forward(
        self, layers: Sequence[Layer], x: Tensor, samples: int | None = None
    ) -> tuple[Float[Tensor, "R S B O"], Pullback]:
        """As `forward`, normalised by the batch; the pullback gives the `norms` of the taps too."""

    def output(self, layers: Sequence[Layer], x: Tensor, samples: int | None = None) -> Float[Tensor, "R S B O"]:
        """The output alone; differentiable in the layers where these require it."""

    def train_output(
        self, layers: Sequence[Layer], x: Tensor, samples: int | None = None
    ) -> tuple[Float[Tensor, "R S B O"], tuple[Float[Tensor, "R S 2 _C"], ...]]:
        """The output normalised by the batch, and what each normalisation saw: mean and unbiased variance."""


def count_samples(layers: Sequence[Layer], default: int | None = None) -> int:
    """S, as the layers say it: where none does, the default."""
    known = (w.shape[1] if isinstance(w, Tensor) else getattr(w, "samples", None) for w in layers)
    samples = next((s for s in known if s is not None), default)
    if samples is None:
        raise ValueError("the number of samples is needed where no layer says it")
    return samples


@runtime_checkable
class Likelihood(Protocol):
    """What a posterior needs of a likelihood. `out` is [R, S, B, O]; `noise` comes from `sample_noise` or `expected`.

    Attributes:
        discrete: whether targets are classes, [R, B] int64, and not real numbers, [R, B, O].
    """

    discrete: ClassVar[bool]

    def mean(self, out: Tensor) -> Float[Tensor, "R S B M"]:
        """What a target is on average: M = O numbers, or the probabilities of M classes."""

    def variance(self, noise: Noise) -> Noise:
        """Variance of a real target around its mean, [R, S]; classes have no noise."""

    def init(self, replicas: int, rng: Rng) -> Phi:
        """The prior of the noise."""

    def sample_noise(self, phi: Phi, samples: int, rng: Rng) -> Noise:
        """One noise parameter a replica and weight sample."""

    def expected(self, phi: Phi) -> Noise:
        """The noise parameter at its posterior mean, broadcast over S."""

    def log_prob(self, noise: Noise, out: Tensor, y: Tensor) -> Float[Tensor, "R S B"]:
        """Log density (or probability) of each target, in nats."""

    def score(self, noise: Noise, out: Tensor, y: Tensor) -> Float[Tensor, "R S B O"]:
        """D log_prob / d out, in closed form."""

    def sample(self, noise: Noise, out: Tensor, rng: Rng) -> Tensor:
        """Targets drawn from the model, for the true Fisher: [R, S, B, O] or [R, S, B]."""

    def fisher_root(self, noise: Noise, out: Tensor) -> Float[Tensor, "K R S B O"]:
        """K vectors whose outer products add up to E[score score^T] over the model's own targets, in closed form."""

    def entropy(self, noise: Noise, out: Tensor) -> Float[Tensor, "R S B"]:
        """Entropy of the target given weights and noise, in nats."""

    def kl(self, phi: Phi) -> Float[Tensor, " R"]:
        """KL from the noise's prior, in nats."""

    def update(self, phi: Phi, out: Tensor, y: Tensor, n_data: float, kl_weight: float | Tensor) -> Phi:
        """The noise's posterior after seeing a batch."""
