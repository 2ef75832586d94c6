"""How targets scatter around the net's output, and what is believed about the noise.

A likelihood says what the net predicts: real numbers or classes, and their mean. It carries a small posterior of its
own, `phi` (Gaussian: a Gamma distribution over the noise precision; the others: nothing). It never sees the weights.
Targets here have a sample axis: data targets come as [R, 1, B, ...], targets sampled from the model as [R, S, B, ...].
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from explore.errors import InputError, check_range
from explore.models import Likelihood as Likelihood
from explore.models import Noise, Phi
from explore.rng import Rng


class Gamma(NamedTuple):
    """Gamma distribution over a precision: mean shape / rate."""

    shape: Float[Tensor, " R"]
    rate: Float[Tensor, " R"]


@dataclass(frozen=True)
class Gaussian:
    """Independent Gaussian noise of one unknown precision tau for all outputs (of standardised targets).

    q(tau) = Gamma(a, b) has the closed-form optimum a = a0 + N O / (2 lambda), b = b0 + N E|y - f|^2 / (2 lambda)
    (lambda: weight of the KL). Each batch moves (a, b) a fraction `rate` towards its own estimate of it, which is
    stochastic natural-gradient ascent for this conjugate pair. Prior Gam(6, 6): Zhang et al. 2017, Appendix C.1; it
    weighs as much as 12 points of unit residual. Gam(1, 0.01), with which the presets for tables were chosen, says next
    to nothing; `explore.posterior(name, net, "gaussian", preset)` takes the one that goes with the preset.
    """

    noise_std: float | None = None  # a known noise standard deviation instead of q(tau)
    prior_shape: float = 6.0  # a0
    prior_rate: float = 6.0  # b0
    rate: float = 0.01  # averaging rate of (a, b)

    discrete: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.noise_std is not None:
            check_range("likelihood.noise_std", self.noise_std, "(0, inf)")
        check_range("likelihood.prior_shape", self.prior_shape, "[1, inf)")
        check_range("likelihood.prior_rate", self.prior_rate, "(0, inf)")
        check_range("likelihood.rate", self.rate, "(0, 1]")

    def mean(self, out: Tensor) -> Float[Tensor, "R S B O"]:
        return out

    def variance(self, noise: Tensor) -> Float[Tensor, "R S"]:
        return 1 / noise

    def init(self, replicas: int, rng: Rng) -> Gamma:
        ones = torch.ones(replicas, dtype=rng.dtype, device=rng.device)
        if self.noise_std is not None:
            return Gamma(ones, ones * self.noise_std**2)
        return Gamma(ones * self.prior_shape, ones * self.prior_rate)

    def sample_noise(self, phi: Gamma, samples: int, rng: Rng) -> Float[Tensor, "R S"]:
        shape = phi.shape.unsqueeze(1).expand(-1, samples)
        if self.noise_std is not None:
            return shape / phi.rate.unsqueeze(1)
        return rng.gamma(shape) / phi.rate.unsqueeze(1)

    def scaled_noise(self, noise: Tensor, factor: Float[Tensor, " R"]) -> Float[Tensor, "R S"]:
        """With so many times the variance, a number for each replica."""
        return noise / factor.unsqueeze(1)

    def expected(self, phi: Gamma) -> Float[Tensor, "R 1"]:
        return (phi.shape / phi.rate).unsqueeze(1)

    def log_prob(self, noise: Tensor, out: Tensor, y: Tensor) -> Float[Tensor, "R S B"]:
        tau = noise.unsqueeze(-1)
        squares = _residual(y, out).square().sum(-1)
        normaliser = 0.5 * out.shape[-1] * (tau / (2 * math.pi)).log()
        return torch.addcmul(normaliser, tau, squares, value=-0.5)

    def score(self, noise: Tensor, out: Tensor, y: Tensor) -> Float[Tensor, "R S B O"]:
        return noise[..., None, None] * _residual(y, out)

    def sample(self, noise: Tensor, out: Tensor, rng: Rng) -> Float[Tensor, "R S B O"]:
        return torch.addcmul(out, rng.normal(*out.shape), noise[..., None, None].rsqrt())

    def fisher_root(self, noise: Tensor, out: Tensor) -> Float[Tensor, "K R S B O"]:
        """Sqrt(tau) times each unit vector."""
        units = torch.eye(out.shape[-1], dtype=out.dtype, device=out.device)[:, None, None, None]
        return (noise.sqrt()[..., None, None] * units).expand(-1, *out.shape)

    def entropy(self, noise: Tensor, out: Tensor) -> Float[Tensor, "R S B"]:
        entropy = 0.5 * out.shape[-1] * (2 * math.pi * math.e / noise).log()
        return entropy.unsqueeze(-1).expand(out.shape[:-1])

    def kl(self, phi: Gamma) -> Float[Tensor, " R"]:
        if self.noise_std is not None:
            return torch.zeros_like(phi.rate)
        a, b, a0, b0 = phi.shape, phi.rate, self.prior_shape, self.prior_rate
        return (
            (a - a0) * torch.digamma(a) - torch.lgamma(a) + math.lgamma(a0)
            + a0 * (b.log() - math.log(b0)) + a * (b0 - b) / b
        )  # fmt: skip

    def update(self, phi: Gamma, out: Tensor, y: Tensor, n_data: float, kl_weight: float | Tensor) -> Gamma:
        if self.noise_std is not None:
            return phi
        half = n_data / (2 * kl_weight)
        squares = (y - out).square().sum(-1).mean((1, 2))  # E_q |y - f|^2, [R]
        shape = (1 - self.rate) * phi.shape + self.rate * (self.prior_shape + half * out.shape[-1])
        return Gamma(shape, torch.lerp(phi.rate, self.prior_rate + half * squares, self.rate))


@dataclass(frozen=True)
class PartialGaussian(Gaussian):
    """Gaussian noise of several targets, of which NaN stands for one that is not measured: nothing is learnt from it.

    Its residual is zero, and it counts neither in the likelihood nor in what is learnt of the noise.
    """

    partial: ClassVar[bool] = True

    def log_prob(self, noise: Tensor, out: Tensor, y: Tensor) -> Float[Tensor, "R S B"]:
        tau = noise.reshape(*noise.shape[:2], 1, -1)
        counted = 0.5 * (y.isnan() * (tau / (2 * math.pi)).log()).expand_as(out).sum(-1)
        return super().log_prob(noise, out, _filled(y, out)) - counted

    def score(self, noise: Tensor, out: Tensor, y: Tensor) -> Float[Tensor, "R S B O"]:
        return super().score(noise, out, _filled(y, out))

    def update(self, phi: Gamma, out: Tensor, y: Tensor, n_data: float, kl_weight: float | Tensor) -> Gamma:
        new = super().update(phi, out, _filled(y, out), n_data, kl_weight)
        if self.noise_std is not None:
            return new
        missing = y.isnan().to(out).mean((1, 2)).sum(-1)  # of the O targets of an example
        return new._replace(shape=new.shape - self.rate * n_data / (2 * kl_weight) * missing)


def _filled(y: Tensor, out: Tensor) -> Tensor:
    """Targets with the outputs themselves in place of those that are not measured."""
    return torch.where(y.isnan(), out, y)


def _residual(y: Tensor, out: Tensor) -> Tensor:
    """Targets minus outputs; a target of another width would be spread over the outputs."""
    if y.shape[-1] != out.shape[-1] or y.dim() != out.dim():
        raise InputError(f"targets come as [..., {out.shape[-1]}], as the network's outputs; got {list(y.shape)}")
    return y - out


class _Discrete:
    """What likelihoods of classes share: phi and noise are empty."""

    discrete: ClassVar[bool] = True

    def variance(self, noise: Noise) -> Noise:
        return None

    def init(self, replicas: int, rng: Rng) -> Phi:
        return torch.zeros(replicas, dtype=rng.dtype, device=rng.device)

    def sample_noise(self, phi: Phi, samples: int, rng: Rng) -> Noise:
        return None

    def expected(self, phi: Phi) -> Noise:
        return None

    def kl(self, phi: Phi) -> Float[Tensor, " R"]:
        return torch.zeros_like(phi)

    def update(self, phi: Phi, out: Tensor, y: Tensor, n_data: float, kl_weight: float | Tensor) -> Phi:
        return phi


@dataclass(frozen=True)
class Categorical(_Discrete):
    """Classes 0..O-1 with probabilities softmax(out); y is [R, 1 or S, B] int64."""

    def mean(self, out: Tensor) -> Float[Tensor, "R S B C"]:
        return out.softmax(-1)

    def log_prob(self, noise: Noise, out: Tensor, y: Tensor) -> Float[Tensor, "R S B"]:
        y = y.expand(out.shape[:-1])
        return out.log_softmax(-1).gather(-1, y.unsqueeze(-1)).squeeze(-1)

    def score(self, noise: Noise, out: Tensor, y: Tensor) -> Float[Tensor, "R S B O"]:
        # Not F.one_hot, which looks at the values of y and so cannot be compiled.
        classes = torch.arange(out.shape[-1], device=out.device)
        return (y.unsqueeze(-1) == classes).to(out) - out.softmax(-1)

    def sample(self, noise: Noise, out: Tensor, rng: Rng) -> Tensor:
        # Inverse of the cumulative distribution; rounding may leave its end below the uniform number.
        steps = out.softmax(-1).cumsum(-1)
        return (rng.uniform(*out.shape[:-1], 1) > steps).sum(-1).clamp_max(out.shape[-1] - 1)

    def fisher_root(self, noise: Noise, out: Tensor) -> Float[Tensor, "K R S B O"]:
        """Each class's score, times the square root of its probability."""
        p = out.softmax(-1)
        units = torch.eye(out.shape[-1], dtype=out.dtype, device=out.device)[:, None, None, None]
        return p.movedim(-1, 0).unsqueeze(-1).sqrt() * (units - p)

    def entropy(self, noise: Noise, out: Tensor) -> Float[Tensor, "R S B"]:
        return torch.special.entr(out.softmax(-1)).sum(-1)


@dataclass(frozen=True)
class Bernoulli(_Discrete):
    """Two classes with p(1) = sigmoid(out), one output; y is [R, 1 or S, B] int64 of 0 and 1."""

    def mean(self, out: Tensor) -> Float[Tensor, "R S B C"]:
        """Probabilities of the classes 0 and 1."""
        if out.shape[-1] != 1:
            raise InputError(f"Bernoulli takes a network with one output; this one has {out.shape[-1]}")
        p = out.sigmoid()
        return torch.cat([1 - p, p], -1)

    def log_prob(self, noise: Noise, out: Tensor, y: Tensor) -> Float[Tensor, "R S B"]:
        return F.logsigmoid(out.squeeze(-1) * (2 * y - 1))

    def score(self, noise: Noise, out: Tensor, y: Tensor) -> Float[Tensor, "R S B O"]:
        return y.unsqueeze(-1) - out.sigmoid()

    def sample(self, noise: Noise, out: Tensor, rng: Rng) -> Tensor:
        return (rng.uniform(*out.shape[:-1]) < out.squeeze(-1).sigmoid()).long()

    def fisher_root(self, noise: Noise, out: Tensor) -> Float[Tensor, "K R S B O"]:
        """Sqrt(p (1 - p))."""
        return (out.sigmoid() * (-out).sigmoid()).sqrt().unsqueeze(0)

    def entropy(self, noise: Noise, out: Tensor) -> Float[Tensor, "R S B"]:
        return torch.special.entr(self.mean(out)).sum(-1)


def check_logits(likelihood: Likelihood, out: Float[Tensor, "R S B O"]) -> None:
    """Refuse outputs that are probabilities already; those of weights of 0 tell a sigmoid too.

    Raises:
        InputError: for classes, where outputs are positive and add up to 1, or a single one is 1/2.
    """
    total = out.sum(-1) if out.shape[-1] > 1 else 2 * out.squeeze(-1)
    if likelihood.discrete and bool((out > 0).all()) and bool(((total - 1).abs() < 1e-4).all()):
        kind, end = type(likelihood).__name__, "softmax" if out.shape[-1] > 1 else "sigmoid"
        raise InputError(f"the network gives probabilities, where {kind} takes logits; leave out the {end} at its end")


LIKELIHOODS: dict[str, type] = {
    "gaussian": Gaussian, "partial-gaussian": PartialGaussian, "categorical": Categorical, "bernoulli": Bernoulli,
}  # fmt: skip
