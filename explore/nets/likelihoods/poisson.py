"""Poisson likelihood for counts, with one output per target: the logarithm of its rate.

    y ~ Poisson(mu),    mu = exp(f) for f <= L,    mu = exp(L) (1 + f - L) beyond (`limit`)

The rate grows linearly beyond exp(L), so that sampled networks far from the data do not overflow. Up to this limit, the
score is y - mu, and the Fisher information of an output is mu.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from scipy import stats
from torch import Tensor

from explore.core.errors import Checked, InputError
from explore.core.rng import Rng
from explore.nets.likelihoods.gaussian import residual_of
from explore.nets.protocols import Noise, Parameterless

HALVINGS = 60  # of an interval that contains a quantile
LARGE = 1e6  # rate up to which scipy finds quantiles
TINY = 1e-12  # the smallest probability of a tail at which there are quantiles


@dataclass(frozen=True)
class Poisson(Parameterless, Checked):
    """Poisson likelihood for counts [R, 1 or S, B, O]: whole numbers from 0, which are not standardised."""

    limit: float = 15.0  # L: logarithm of the rate beyond which rates grow linearly with the output

    discrete: ClassVar[bool] = False
    scaling: ClassVar[str] = "none"
    prefix = "likelihood."
    ranges = {"limit": "(0, 50]"}

    def check_targets(self, y: Tensor) -> None:
        if bool(((y < 0) | (y != y.floor())).any()):
            raise InputError(f"{type(self).__name__} needs counts: targets must be whole numbers from 0")

    def stretch(self, out: Tensor) -> Float[Tensor, "R S B O"]:
        """Return 1 up to the limit, and mu / exp(L) beyond."""
        return 1 + (out - self.limit).clamp_min(0)

    def log_mean(self, out: Tensor) -> Float[Tensor, "R S B O"]:
        return out.clamp_max(self.limit) + self.stretch(out).log()

    def mean(self, out: Tensor) -> Float[Tensor, "R S B M"]:
        return out.clamp_max(self.limit).exp() * self.stretch(out)

    def variance(self, noise: Noise, out: Tensor) -> Float[Tensor, "R S B M"]:
        return self.mean(out)

    def cdf(self, noise: Noise, out: Tensor, y: Tensor) -> Float[Tensor, "R S B M"]:
        return poisson_cdf(self.mean(out), y)

    def quantile(self, noise: Noise, out: Tensor, level: float) -> Float[Tensor, "R S B M"]:
        return poisson_quantile(self.mean(out), torch.full_like(out, level, dtype=torch.float64))

    def log_prob(self, noise: Noise, out: Tensor, y: Tensor) -> Float[Tensor, "R S B"]:
        residual_of(y, out)  # checks the shapes
        return (y * self.log_mean(out) - self.mean(out) - (y + 1).lgamma()).sum(-1)

    def score(self, noise: Noise, out: Tensor, y: Tensor) -> Float[Tensor, "R S B O"]:
        return residual_of(y, self.mean(out)) / self.stretch(out)

    def sample(self, noise: Noise, out: Tensor, rng: Rng) -> Float[Tensor, "R S B M"]:
        return poisson_quantile(self.mean(out), rng.uniform(*out.shape))

    def information(self, noise: Noise, out: Tensor) -> Float[Tensor, "R S B O"]:
        """Return the Fisher information of each output."""
        return out.clamp_max(self.limit).exp() / self.stretch(out)

    def fisher_root(self, noise: Noise, out: Tensor) -> Float[Tensor, "K R S B O"]:
        """Return, for each output, the root of its information times the unit vector of this output; K is O."""
        units = torch.eye(out.shape[-1], dtype=out.dtype, device=out.device)[:, None, None, None]
        return self.information(noise, out).sqrt() * units


def poisson_cdf(rate: Tensor, y: Tensor) -> Tensor:
    """Return the probability of a count of at most y."""
    return torch.special.gammaincc((y.floor() + 1).clamp_min(TINY), rate) * (y >= 0)


def poisson_quantile(rate: Float[Tensor, "R S B M"], level: Float[Tensor, "R S B M"]) -> Float[Tensor, "R S B M"]:
    """Return the smallest counts whose cumulative probability is at least `level`, without a copy from a GPU."""
    exact, level = rate.double(), level.double().clamp(TINY, 1 - TINY)
    if rate.is_cpu and bool((exact < LARGE).all()):
        return torch.as_tensor(stats.poisson.ppf(level.numpy(), exact.numpy())).to(rate)
    return bisected_quantile(exact, level).to(rate)


def bisected_quantile(rate: Tensor, level: Tensor) -> Tensor:
    """Return the same as `poisson_quantile`, by bisection.

    Cantelli's inequality bounds a quantile by the mean plus sqrt(level / (1 - level)) standard deviations.
    """
    low, high = torch.full_like(rate, -1), (rate + (rate * level / (1 - level)).sqrt()).ceil()
    for _ in range(HALVINGS):
        middle = ((low + high) / 2).floor()
        reached = poisson_cdf(rate, middle) >= level
        low, high = torch.where(reached, low, middle), torch.where(reached, middle, high)
    return high
