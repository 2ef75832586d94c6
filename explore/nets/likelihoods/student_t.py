"""Student's t likelihood for real numbers with outliers, with an unknown noise scale for each output.

For nu degrees of freedom, the targets are a scale mixture of Gaussians,

    y ~ N(f, 1 / (w tau)),    w ~ Gamma(nu / 2, nu / 2),    tau ~ Gamma(a, b),

with output f and residual r = y - f. Without w, y has Student's t distribution with location f and scale tau^-1/2. The
mean of w given y is E w = (nu + 1) / (nu + tau r^2), so outliers have little weight (Lange, Little and Taylor, Robust
Statistical Modeling Using the t Distribution, 1989). The score is tau r E w, and the Fisher information of f is
tau (nu + 1) / (nu + 3).

q(tau) is learnt as in `Gaussian`, from the squared residuals times E w at the mean of tau. This is variational EM.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from scipy import special
from torch import Tensor

from explore.core.rng import Rng
from explore.nets.likelihoods.gaussian import Gamma, Gaussian, residual_of


@dataclass(frozen=True)
class StudentT(Gaussian):
    """Student's t likelihood with independent noise of unknown scale for each output, on standardised targets.

    `noise_std` is a known scale tau^-1/2. The standard deviation is larger by the factor sqrt(nu / (nu - 2)).
    """

    freedom: float = 4.0  # nu; above 2, so that the variance is finite

    ranges = {"freedom": "(2, inf)"}
    gaussian: ClassVar[bool] = False

    def variance(self, noise: Tensor, out: Tensor) -> Float[Tensor, "R S _B M"]:
        return super().variance(noise, out) * (self.freedom / (self.freedom - 2))

    def cdf(self, noise: Tensor, out: Tensor, y: Tensor) -> Float[Tensor, "R S B M"]:
        t = (y - out) * self.precision(noise, out).sqrt()
        return torch.as_tensor(special.stdtr(self.freedom, t.cpu().numpy())).to(out)

    def quantile(self, noise: Tensor, out: Tensor, level: float) -> Float[Tensor, "R S B M"]:
        return out + float(special.stdtrit(self.freedom, level)) * self.precision(noise, out).rsqrt()

    def log_prob(self, noise: Tensor, out: Tensor, y: Tensor) -> Float[Tensor, "R S B"]:
        nu, tau = self.freedom, self.precision(noise, out)
        normaliser = math.lgamma((nu + 1) / 2) - math.lgamma(nu / 2) - 0.5 * math.log(nu * math.pi)
        tail = 0.5 * (nu + 1) * (tau * self.squares(out, y) / nu).log1p()
        return (normaliser + 0.5 * tau.log() - tail).sum(-1)

    def score(self, noise: Tensor, out: Tensor, y: Tensor) -> Float[Tensor, "R S B O"]:
        return super().score(noise, out, y) * self.weight(noise, out, y)

    def weight(self, noise: Tensor, out: Tensor, y: Tensor) -> Float[Tensor, "R S B O"]:
        """Return E w, the mean relative precision of each target given its residual."""
        return (self.freedom + 1) / (self.freedom + self.precision(noise, out) * self.squares(out, y))

    def sample(self, noise: Tensor, out: Tensor, rng: Rng) -> Float[Tensor, "R S B M"]:
        halves = torch.full_like(out, self.freedom / 2)
        return out + (super().sample(noise, out, rng) - out) * (halves / rng.gamma(halves)).sqrt()

    def fisher_root(self, noise: Tensor, out: Tensor) -> Float[Tensor, "K R S B O"]:
        return super().fisher_root(noise, out) * math.sqrt((self.freedom + 1) / (self.freedom + 3))

    def update(self, phi: Gamma, out: Tensor, y: Tensor, n_data: float, kl_weight: float | Tensor) -> Gamma:
        root = self.weight(self.expected(phi), out, y).sqrt()
        return super().update(phi, out, out + root * residual_of(y, out), n_data, kl_weight)
