"""Quantiles of mixtures against SciPy's root finder."""

from functools import partial

import numpy as np
import pytest
import torch
from scipy import optimize, stats

from explore.core.rng import Rng
from explore.inference.predict import mixture_quantile
from explore.nets.likelihoods import Gaussian

RNG = Rng(0, dtype=torch.float64)
LEVELS = (1e-9, 0.05, 0.3, 0.5, 0.9, 1 - 1e-9)
CASES = {
    "alike": (RNG.normal(2, 9, 5, 2), 0.5 + RNG.uniform(2, 9, 1, 1)),
    "one": (RNG.normal(1, 1, 3, 1), torch.full((1, 1, 1, 1), 0.2, dtype=torch.float64)),
    "far apart": (1000 * RNG.normal(1, 7, 4, 1), 0.01 + RNG.uniform(1, 7, 1, 1)),
    "narrow and wide": (RNG.normal(2, 8, 3, 2), 10.0 ** (-4 + 6 * RNG.uniform(2, 8, 1, 1))),
    "with an outlier": (
        torch.cat([RNG.normal(1, 20, 4, 1), torch.full((1, 1, 4, 1), 1e6)], 1),
        torch.ones(1, 21, 1, 1),
    ),
}


def quantiles(mean, sd, levels=LEVELS):
    """Of the mixture of these Gaussians."""
    precision = 1 / sd.double().squeeze(2).square()
    cdf, component = (partial(method, precision, mean) for method in (Gaussian().cdf, Gaussian().quantile))
    return torch.stack([mixture_quantile(cdf, component, level) for level in levels])


def expected(mean, sd, level):
    ends = stats.norm.ppf(level, mean, sd)
    if np.ptp(ends) == 0:
        return ends[0]
    below = lambda x: stats.norm.cdf(x, mean, sd).mean() - level  # noqa: E731
    return optimize.brentq(below, ends.min() - 1e-9, ends.max() + 1e-9, xtol=1e-13, rtol=1e-14, maxiter=500)


@pytest.mark.parametrize("case", CASES)
def test_quantiles_are_the_roots_of_the_distribution_function(case):
    mean, sd = CASES[case]
    found = quantiles(mean, sd)
    every = torch.broadcast_to(sd, mean.shape).numpy()
    for k, level in enumerate(LEVELS):
        for (r, b, o), x in np.ndenumerate(found[k].numpy()):
            means, sds = mean[r, :, b, o].numpy(), every[r, :, b, o]
            assert abs(stats.norm.cdf(x, means, sds).mean() - level) < 1e-8 * level + 1e-13
            assert x == pytest.approx(expected(means, sds, level), abs=1e-6 * max(1, abs(x)))


def test_a_level_in_a_gap_without_mass_is_in_the_gap():
    """Half of the mass is below -1000 and half above 1000: whatever lies between is a median, and no NaN."""
    mean = torch.tensor([-1000.0, 1000.0]).reshape(1, 2, 1, 1)
    (found,) = quantiles(mean.double(), torch.ones(1, 2, 1, 1), [0.5])
    assert abs(float(found)) <= 1000


@pytest.mark.parametrize("level", LEVELS)
def test_quantiles_of_counts_are_whole_numbers(level):
    """The smallest count that a mixture of Poisson distributions is at or below with this probability."""
    rates = torch.tensor([[0.05, 0.1, 0.3], [0.2, 40.0, 1e4]], dtype=torch.float64).reshape(2, 3, 1, 1)
    law = stats.poisson(rates.numpy())
    found = mixture_quantile(lambda y: torch.as_tensor(law.cdf(y)), lambda p: torch.as_tensor(law.ppf(p)), level)
    counts = np.arange(0, 12_000)
    for r in range(2):
        shares = stats.poisson(rates[r].numpy().reshape(3, 1)).cdf(counts).mean(0)
        assert float(found[r]) == counts[np.argmax(shares >= level)]
