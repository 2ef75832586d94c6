"""What is called a paper's is what the paper has."""

from typing import Any

import pytest

from explore import registry
from explore.nets.likelihoods import Gaussian
from explore.nets.net import Net, mlp

# Zhang et al. 2017, Appendix C.1, and Bae et al. 2018, with their code, but for its basis at every step.
REGRESSION: dict[str, Any] = {
    "epochs": 1000, "batch_size": 10, "samples": 10, "lr": 0.01, "beta": 0.001, "lr_decay": 0.1, "lr_decay_at": 0.5,
    "decay": 0.0, "momentum": 0.9, "extrinsic_damping": 0.0, "adaptive_damping": False, "statistics_interval": 1,
    "factor_interval": 1, "kl_clip": None, "fisher": "true", "kl_weight": 1.0, "prior_variance": 1.0,
    "weight_noise": True, "warm_start": 0.0,
}  # fmt: skip
KFAC: dict[str, Any] = REGRESSION | {"damping": "split"}
EKFAC: dict[str, Any] = REGRESSION | {
    "omega": 0.01, "moments_interval": 1, "basis_interval": 5, "reset_interval": 1, "reset_damped": True,
    "scale_interval": 1,
}  # fmt: skip
# Osawa et al. 2019, LeNet-5 on CIFAR-10.
VOGN: dict[str, Any] = {
    "epochs": 211, "batch_size": 128, "sub_batches": 4, "samples": 6, "lr": 1e-4, "momentum": 0.9, "beta2": 0.999,
    "damping": 1e-3, "prior_variance": 0.01, "kl_start": 0.1, "kl_warmup": 0.142, "kl_weight": 1.0, "lr_decay": 1.0,
    "augmentation": 1.0, "decay": 0.0, "fisher": "empirical", "weight_noise": True, "warm_start": 0.0,
}  # fmt: skip
PAPERS = {
    ("noisy-kfac", "paper"): KFAC,
    ("noisy-kfac", "paper-batch-100"): KFAC | {"batch_size": 100},
    ("noisy-kfac", "paper-protein"): KFAC | {"batch_size": 100, "epochs": 500},
    ("noisy-ekfac", "paper"): EKFAC,
    ("noisy-ekfac", "paper-text"): EKFAC | {"reset_interval": 50, "reset_damped": False},
    ("noisy-ekfac", "paper-batch-100"): EKFAC | {"batch_size": 100},
    ("noisy-ekfac", "paper-protein"): EKFAC | {"batch_size": 100, "epochs": 500},
    ("vogn", "paper"): VOGN,
}


@pytest.mark.parametrize(("name", "preset"), PAPERS)
def test_presets_of_a_paper_have_its_settings(name, preset):
    posterior = registry.posterior(name, Net(mlp(3, [4], 1)), Gaussian(), preset)
    expected = PAPERS[name, preset]
    assert {key: getattr(posterior, key) for key in expected} == expected
