"""Likelihoods as users write them: heavy tails, counts, and a noise that the net predicts."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from scipy import special, stats as scipy_stats

from explore.nets.likelihoods import Parameterless


@dataclass(frozen=True)
class StudentT(Parameterless):
    """Real numbers with a few outliers: Student's t around the output, of a known scale (of standardised targets)."""

    freedom: float = 3.0
    scale: float = 0.2

    discrete: ClassVar[bool] = False
    scaling: ClassVar[str] = "affine"

    def mean(self, out):
        return out

    def variance(self, noise, out):
        return torch.full_like(out, self.scale**2 * self.freedom / (self.freedom - 2))

    def cdf(self, noise, out, y):
        return torch.as_tensor(special.stdtr(self.freedom, ((y - out) / self.scale).numpy())).to(out)

    def quantile(self, noise, out, level):
        return out + self.scale * float(special.stdtrit(self.freedom, level))

    def log_prob(self, noise, out, y):
        return torch.distributions.StudentT(self.freedom, out, self.scale).log_prob(y).sum(-1)

    def score(self, noise, out, y):
        return (self.freedom + 1) * (y - out) / (self.freedom * self.scale**2 + (y - out).square())

    def sample(self, noise, out, rng):
        halves = torch.full_like(out, self.freedom / 2)
        return out + self.scale * rng.normal(*out.shape) * (halves / rng.gamma(halves)).sqrt()

    def fisher_root(self, noise, out):
        root = ((self.freedom + 1) / (self.freedom + 3)) ** 0.5 / self.scale
        return root * torch.eye(out.shape[-1]).to(out)[:, None, None, None].expand(-1, *out.shape)


@dataclass(frozen=True)
class Poisson(Parameterless):
    """Counts; an output is the logarithm of a rate."""

    discrete: ClassVar[bool] = False
    scaling: ClassVar[str] = "none"

    def mean(self, out):
        return out.exp()

    def variance(self, noise, out):
        return out.exp()

    def cdf(self, noise, out, y):
        return torch.special.gammaincc((y.floor() + 1).clamp_min(1e-9), out.exp()) * (y >= 0)

    def quantile(self, noise, out, level):
        return torch.as_tensor(scipy_stats.poisson.ppf(level, out.exp().numpy())).to(out)

    def log_prob(self, noise, out, y):
        return (y * out - out.exp() - (y + 1).lgamma()).sum(-1)

    def score(self, noise, out, y):
        return y - out.exp()

    def sample(self, noise, out, rng):
        uniform = rng.uniform(*out.shape).double().clamp(1e-12, 1 - 1e-12)
        return torch.as_tensor(scipy_stats.poisson.ppf(uniform.numpy(), out.exp().numpy())).to(out)

    def fisher_root(self, noise, out):
        return (out / 2).exp() * torch.eye(out.shape[-1]).to(out)[:, None, None, None]


@dataclass(frozen=True)
class Heteroscedastic(Parameterless):
    """Real numbers of a predicted mean and log deviation: 2 M outputs for M targets, first all means."""

    discrete: ClassVar[bool] = False
    scaling: ClassVar[str] = "affine"

    def _normal(self, out):
        mean, log_sd = out.chunk(2, -1)
        return torch.distributions.Normal(mean, log_sd.exp())

    def mean(self, out):
        return out.chunk(2, -1)[0]

    def variance(self, noise, out):
        return (2 * out.chunk(2, -1)[1]).exp()

    def cdf(self, noise, out, y):
        return self._normal(out).cdf(y)

    def quantile(self, noise, out, level):
        return self._normal(out).icdf(torch.tensor(level, dtype=out.dtype))

    def log_prob(self, noise, out, y):
        return self._normal(out).log_prob(y).sum(-1)

    def score(self, noise, out, y):
        normal = self._normal(out)
        z = (y - normal.mean) / normal.stddev
        return torch.cat([z / normal.stddev, z.square() - 1], -1)

    def sample(self, noise, out, rng):
        normal = self._normal(out)
        return normal.mean + normal.stddev * rng.normal(*normal.mean.shape)

    def fisher_root(self, noise, out):
        sd = self._normal(out).stddev
        scales = torch.cat([1 / sd, torch.full_like(sd, 2**0.5)], -1)
        return scales * torch.eye(out.shape[-1]).to(out)[:, None, None, None]
