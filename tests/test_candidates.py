"""Candidates as replicas of one posterior; that each is what it is alone is a part of the contract."""

from typing import Any

import pytest
import torch

from explore import registry
from explore.core.rng import Rng
from explore.inference import candidates
from explore.nets.likelihoods import Gaussian
from explore.nets.net import Net, mlp

NET = Net(mlp(2, [4], 1))
RNG = Rng(0, dtype=torch.float64)


def made(name="noisy-kfac", **settings) -> Any:
    return registry.posterior(name, NET, Gaussian(), **settings)


def alike(name, *settings):
    return candidates.alike(registry.find("posteriors", name), settings)


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("noisy-kfac", [{"lr": 0.1, "beta": 0.1, "epochs": 9}, {"lr": 0.2, "beta": 0.3, "epochs": 9}], True),
        ("noisy-kfac", [{"prior_variance": 2}, {"prior_variance": 0.5}, {"prior_variance": 1.0}], True),
        ("noisy-kfac", [{"trust_region": 1.0}, {"trust_region": None}], False),
        ("noisy-kfac", [{"lr": 0.1, "samples": 2}, {"lr": 0.2, "samples": 3}], False),
        ("bbb", [{"initial_std": 0.1}, {"initial_std": 0.2}], False),  # `init` reads it
        ("hmc", [{"prior_variance": 1.0}, {"prior_variance": 2.0}], False),
    ],
)
def test_what_one_fit_takes(name, settings, expected):
    assert alike(name, *settings) is expected


def test_only_what_differs_is_a_tensor():
    assert candidates.together([one := made()], 3, RNG) is one
    both: Any = candidates.together([made(lr=0.1, beta=0.2), made(lr=0.3, beta=0.2)], 2, RNG)
    assert both.beta == 0.2 and both.lr.tolist() == [0.1, 0.1, 0.3, 0.3]
    assert made(lr=0.1).lr == 0.1
    whole: Any = candidates.together([made(prior_variance=1), made(prior_variance=2)], 1, RNG)
    assert whole.prior_variance.dtype == torch.float64


@pytest.mark.parametrize(("members", "expected"), [(1, [0.2, 0.3]), (2, [0.2, 0.2, 0.3, 0.3])])
def test_a_part_has_the_settings_of_its_replicas(members, expected):
    posteriors = [made(lr=lr, members=members) for lr in (0.1, 0.2, 0.3)]
    some: Any = candidates.part(candidates.together(posteriors, 1, RNG), torch.tensor([1, 2]))
    some = some.posterior if members > 1 else some
    assert some.lr.tolist() == expected and isinstance(some.beta, float)
