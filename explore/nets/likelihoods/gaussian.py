"""Gaussian likelihood for real numbers, with an unknown noise precision for each output.

Targets have a sample axis: targets from the data are [R, 1, B, O], targets sampled from the model [R, S, B, O].
"""

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from explore.core.errors import Checked, InputError
from explore.core.linalg import over
from explore.core.rng import Rng


class Gamma(NamedTuple):
    """Gamma distributions over noise precisions, with mean shape / rate."""

    shape: Float[Tensor, "R O"]
    rate: Float[Tensor, "R O"]


@dataclass(frozen=True)
class Gaussian(Checked):
    """Gaussian likelihood with independent noise of unknown precision tau for each output, on standardised targets.

    q(tau) = Gamma(a, b) has the closed-form optimum a = a0 + N / (2 lambda), b = b0 + N E(y - f)^2 / (2 lambda)
    (f: output of the net; N: number of examples; lambda: weight of the KL). Each batch moves (a, b) by a fraction
    `rate` towards the batch's estimate of this optimum. The default prior Gam(6, 6) is from Zhang et al. 2017, Appendix
    C.1. Presets for tables were chosen with the almost uninformative Gam(1, 0.01).
    """

    noise_std: float | None = None  # a known noise standard deviation instead of q(tau)
    prior_shape: float = 6.0  # a0
    prior_rate: float = 6.0  # b0
    rate: float = 0.01  # averaging rate of (a, b)

    prefix = "likelihood."
    ranges = {"noise_std": "(0, inf)", "prior_shape": "[1, inf)", "prior_rate": "(0, inf)", "rate": "(0, 1]"}
    discrete: ClassVar[bool] = False
    scaling: ClassVar[str] = "affine"
    outputs_per_target: ClassVar[int] = 1
    gaussian: ClassVar[bool] = True  # whether targets are Gaussian given the output and tau

    def mean(self, out: Tensor) -> Float[Tensor, "R S B M"]:
        return out

    def precision(self, noise: Tensor, out: Tensor) -> Float[Tensor, "R S _B M"]:
        """Return the precision of each target given the output."""
        return noise.unsqueeze(2)

    def variance(self, noise: Tensor, out: Tensor) -> Float[Tensor, "R S _B M"]:
        return 1 / self.precision(noise, out)

    def cdf(self, noise: Tensor, out: Tensor, y: Tensor) -> Float[Tensor, "R S B M"]:
        # torch.special.ndtr takes three times as long.
        return 0.5 * torch.erfc((self.mean(out) - y) * (0.5 * self.precision(noise, out)).sqrt())

    def quantile(self, noise: Tensor, out: Tensor, level: float) -> Float[Tensor, "R S B M"]:
        score = torch.special.ndtri(torch.tensor(level, dtype=out.dtype, device=out.device))
        return torch.addcmul(self.mean(out), score, self.precision(noise, out).rsqrt())

    def init(self, outputs: int, replicas: int, rng: Rng) -> Gamma:
        ones = torch.ones(replicas, outputs // self.outputs_per_target, dtype=rng.dtype, device=rng.device)
        if self.noise_std is not None:
            return Gamma(ones, ones * self.noise_std**2)
        return Gamma(ones * self.prior_shape, ones * self.prior_rate)

    def sample_noise(self, phi: Gamma, samples: int, rng: Rng) -> Float[Tensor, "R S O"]:
        shape = phi.shape.unsqueeze(1).expand(-1, samples, -1)
        if self.noise_std is not None:
            return shape / phi.rate.unsqueeze(1)
        return rng.gamma(shape) / phi.rate.unsqueeze(1)

    def scaled_noise(self, noise: Tensor, factor: Float[Tensor, " R"]) -> Float[Tensor, "R S O"]:
        return noise / factor[:, None, None]

    def expected(self, phi: Gamma) -> Float[Tensor, "R 1 O"]:
        return (phi.shape / phi.rate).unsqueeze(1)

    def log_prob(self, noise: Tensor, out: Tensor, y: Tensor) -> Float[Tensor, "R S B"]:
        if noise.shape[-1] != self.mean(out).shape[-1]:
            outputs, expected = out.shape[-1], noise.shape[-1] * self.outputs_per_target
            last = f"the network returns {outputs} outputs, but its last layer has {expected}"
            raise InputError(f"{last}; pass outputs={outputs} to Net")
        normaliser = 0.5 * (self.precision(noise, out) / (2 * math.pi)).log()
        return torch.addcmul(normaliser, noise.unsqueeze(2), self.squares(out, y), value=-0.5).sum(-1)

    def score(self, noise: Tensor, out: Tensor, y: Tensor) -> Float[Tensor, "R S B O"]:
        return self.precision(noise, out) * residual_of(y, self.mean(out))

    def sample(self, noise: Tensor, out: Tensor, rng: Rng) -> Float[Tensor, "R S B M"]:
        mean = self.mean(out)
        return torch.addcmul(mean, rng.normal(*mean.shape), self.precision(noise, out).rsqrt())

    def fisher_root(self, noise: Tensor, out: Tensor) -> Float[Tensor, "K R S B O"]:
        """Return, for each output, sqrt(tau) times the unit vector of this output; K is O."""
        units = torch.eye(out.shape[-1], dtype=out.dtype, device=out.device)[:, None, None, None]
        return (noise.sqrt().unsqueeze(2) * units).expand(-1, *out.shape)

    def kl(self, phi: Gamma) -> Float[Tensor, " R"]:
        if self.noise_std is not None:
            return torch.zeros_like(phi.rate[:, 0])
        a, b, a0, b0 = phi.shape, phi.rate, self.prior_shape, self.prior_rate
        each = (
            (a - a0) * torch.digamma(a) - torch.lgamma(a) + math.lgamma(a0)
            + a0 * (b.log() - math.log(b0)) + a * (b0 - b) / b
        )  # fmt: skip
        return each.sum(1)

    def squares(self, out: Tensor, y: Tensor) -> Float[Tensor, "R S B M"]:
        """Return the squared residuals, times the precision relative to tau. Their mean determines q(tau)."""
        return residual_of(y, self.mean(out)).square()

    def update(self, phi: Gamma, out: Tensor, y: Tensor, n_data: float, kl_weight: float | Tensor) -> Gamma:
        if self.noise_std is not None:
            return phi
        half = n_data / (2 * over(kl_weight, phi.rate))  # by which the optimal a exceeds a0
        squares = self.squares(out, y).mean((1, 2))
        shape = (1 - self.rate) * phi.shape + self.rate * (self.prior_shape + half)
        return Gamma(shape, torch.lerp(phi.rate, self.prior_rate + half * squares, self.rate))


def residual_of(y: Tensor, mean: Tensor) -> Tensor:
    """Return targets minus means; raise InputError if shapes differ in a way that would broadcast wrongly."""
    if y.shape[-1] != mean.shape[-1] or y.dim() != mean.dim():
        raise InputError(f"targets must have shape [..., {mean.shape[-1]}] like the means; got {list(y.shape)}")
    return y - mean
