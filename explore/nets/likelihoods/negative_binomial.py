"""Negative binomial likelihood for counts that vary more than Poisson counts, with a dispersion for each output.

    y ~ Poisson(mu g),    g ~ Gamma(1 / alpha, 1 / alpha),    so E y = mu,    var y = mu + alpha mu^2

mu is a function of the output as in `Poisson`, and alpha the dispersion (Hilbe, Negative Binomial Regression, 2011). Up
to the limit, the score is (y - mu) / (1 + alpha mu), and the Fisher information of an output is mu / (1 + alpha mu).

The dispersion is a point estimate with prior log alpha ~ N(log alpha0, s^2). Each batch moves it by Fisher scoring,

    log alpha <- log alpha + rate g / h,    g = d / d log alpha [N / lambda E log p(y) + log p(alpha)],
    h = N / lambda E (alpha mu / (1 + alpha mu))^2 / 2 + 1 / s^2

(N: number of examples; lambda: weight of the KL). h is the information of the variance of a Gaussian; it is that of the
counts for small alpha, and at least half of it for large mu.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from scipy import special, stats
from torch import Tensor

from explore.core.linalg import over
from explore.core.rng import Rng
from explore.nets.likelihoods.gaussian import residual_of
from explore.nets.likelihoods.poisson import TINY, Poisson, poisson_quantile

RANGE = math.log(1e3)  # of |log alpha|
LONGEST = 0.5  # step of log alpha


@dataclass(frozen=True)
class NegativeBinomial(Poisson):
    """Negative binomial likelihood for counts; the noise parameter is the dispersion alpha, [R, S, O]."""

    dispersion: float | None = None  # a known alpha instead of an estimate
    prior_dispersion: float = 0.3  # alpha0
    prior_spread: float = 2.0  # s
    rate: float = 0.01  # fraction of a full step for each batch

    ranges = dict.fromkeys(("dispersion", "prior_dispersion"), "[0.001, 1000]") | {
        "prior_spread": "(0, inf)", "rate": "(0, 1]"
    }  # fmt: skip

    def variance(self, noise: Tensor, out: Tensor) -> Float[Tensor, "R S B M"]:
        return self.mean(out) * (1 + self._excess(noise, out))

    def cdf(self, noise: Tensor, out: Tensor, y: Tensor) -> Float[Tensor, "R S B M"]:
        above = (y.floor() + 1).clamp_min(TINY)
        values = special.betainc(*(t.cpu().numpy() for t in (1 / noise.unsqueeze(2), above, self._share(noise, out))))
        return torch.as_tensor(values).to(out) * (y >= 0)

    def quantile(self, noise: Tensor, out: Tensor, level: float) -> Float[Tensor, "R S B M"]:
        r, p = (t.double().cpu().numpy() for t in (1 / noise.unsqueeze(2), self._share(noise, out)))
        return torch.as_tensor(stats.nbinom.ppf(min(max(level, TINY), 1 - TINY), r, p)).to(out)

    def log_prob(self, noise: Tensor, out: Tensor, y: Tensor) -> Float[Tensor, "R S B"]:
        residual_of(y, out)  # checks the shapes
        alpha, excess = noise.unsqueeze(2), self._excess(noise, out)
        ways = (y + 1 / alpha).lgamma() - (1 / alpha).lgamma() - (y + 1).lgamma()
        return (ways + y * (alpha.log() + self.log_mean(out)) - (y + 1 / alpha) * excess.log1p()).sum(-1)

    def score(self, noise: Tensor, out: Tensor, y: Tensor) -> Float[Tensor, "R S B O"]:
        return super().score(noise, out, y) / (1 + self._excess(noise, out))

    def sample(self, noise: Tensor, out: Tensor, rng: Rng) -> Float[Tensor, "R S B M"]:
        # Gamma(r) = Gamma(r + 1) U^(1 / r), since `rng.gamma` needs at least 1.
        r = (1 / noise.unsqueeze(2)).expand_as(out)
        gamma = rng.gamma(r + 1) * rng.uniform(*out.shape) ** (1 / r)
        return poisson_quantile(self.mean(out) * gamma / r, rng.uniform(*out.shape))

    def information(self, noise: Tensor, out: Tensor) -> Float[Tensor, "R S B O"]:
        return super().information(noise, out) / (1 + self._excess(noise, out))

    def init(self, outputs: int, replicas: int, rng: Rng) -> Float[Tensor, "R O"]:
        start = math.log(self.dispersion or self.prior_dispersion)
        return torch.full((replicas, outputs), start, dtype=rng.dtype, device=rng.device)

    def sample_noise(self, phi: Tensor, samples: int, rng: Rng) -> Float[Tensor, "R S O"]:
        return phi.exp().unsqueeze(1).expand(-1, samples, -1)

    def expected(self, phi: Tensor) -> Float[Tensor, "R 1 O"]:
        return phi.exp().unsqueeze(1)

    def kl(self, phi: Tensor) -> Float[Tensor, " R"]:
        """Return the fall of the log prior density from its maximum, since the dispersion is a point estimate."""
        start = math.log(self.dispersion or self.prior_dispersion)
        return ((phi - start) / self.prior_spread).square().sum(1) / 2

    def update(self, phi: Tensor, out: Tensor, y: Tensor, n_data: float, kl_weight: float | Tensor) -> Tensor:
        if self.dispersion is not None:
            return phi
        noise, weight, prior = self.expected(phi), n_data / over(kl_weight, phi), self.prior_spread**-2
        r, excess = 1 / noise.unsqueeze(2), self._excess(noise, out)
        # d log p / d r, times -r
        slope = (y + r).digamma() - r.digamma() - excess.log1p() - residual_of(y, self.mean(out)) / (r * (1 + excess))
        gradient = -weight * (r * slope).mean((1, 2)) - prior * (phi - math.log(self.prior_dispersion))
        curvature = weight * (excess / (1 + excess)).square().mean((1, 2)) / 2 + prior
        return (phi + (self.rate * gradient / curvature).clamp(-LONGEST, LONGEST)).clamp(-RANGE, RANGE)

    def _excess(self, noise: Tensor, out: Tensor) -> Float[Tensor, "R S B O"]:
        """Return alpha mu, the relative excess of the variance over that of a Poisson count."""
        return noise.unsqueeze(2) * self.mean(out)

    def _share(self, noise: Tensor, out: Tensor) -> Float[Tensor, "R S B O"]:
        """Return 1 / (1 + alpha mu), the probability of a failure in the classical form of the distribution."""
        return 1 / (1 + self._excess(noise, out))
