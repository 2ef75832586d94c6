"""What every likelihood owes, see `explore.testing`. A new file in `explore/nets/likelihoods` is tested here."""

from dataclasses import dataclass

import pytest
import torch

from explore import registry
from explore.nets.likelihoods import Gaussian
from explore.testing import check_likelihood
from explore.testing.likelihoods import LIKELIHOODS, LikelihoodSubject
from tests.user_likelihoods import Heteroscedastic, Poisson, StudentT

test_likelihood = check_likelihood(*registry.names("likelihoods"))
test_known_noise = check_likelihood(Gaussian(noise_std=0.3), outputs=2)
test_of_a_user = check_likelihood(StudentT, Poisson)
test_of_two_outputs_a_target = check_likelihood(Heteroscedastic, outputs=6)


@dataclass(frozen=True)
class Scored(StudentT):
    def score(self, noise, out, y):
        return super().score(noise, out, y) * 1.01


@dataclass(frozen=True)
class Rooted(StudentT):
    def fisher_root(self, noise, out):
        return super().fisher_root(noise, out) * 1.1


@dataclass(frozen=True)
class Shifted(StudentT):
    def cdf(self, noise, out, y):
        return super().cdf(noise, out, y + 0.02)


@dataclass(frozen=True)
class Normalised(StudentT):
    def log_prob(self, noise, out, y):
        return super().log_prob(noise, out, y) + 0.01


@dataclass(frozen=True)
class Wide(StudentT):
    def variance(self, noise, out):
        return 1.2 * super().variance(noise, out)


@dataclass(frozen=True)
class Standardised(Poisson):
    scaling = "affine"


@dataclass(frozen=True)
class Unsettled(Gaussian):
    def update(self, phi, out, y, n_data, kl_weight):
        return phi._replace(rate=1.001 * super().update(phi, out, y, n_data, kl_weight).rate)


@dataclass(frozen=True)
class Pooled(Gaussian):
    def score(self, noise, out, y):
        return super().score(noise.mean(0, keepdim=True).expand_as(noise), out, y)


@pytest.mark.parametrize("faulty", [Scored, Rooted, Shifted, Normalised, Wide, Standardised, Unsettled, Pooled])
def test_a_fault_is_found(faulty):
    subject, failed = LikelihoodSubject(faulty()), []
    for run, _, applies in LIKELIHOODS.checks:
        if applies(subject):
            try:
                run(subject)
            except AssertionError as error:
                failed.append(f"{run.__name__}: {error}")
    assert failed and torch.is_grad_enabled()
