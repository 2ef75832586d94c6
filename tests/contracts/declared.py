"""What the built-in posteriors declare to the checks of `explore.testing`, see `Contract` there."""

from typing import Any

from explore import registry
from explore.testing.subject import Subject

CONTRACTS: dict[str, dict[str, Any]] = {
    "bbb": {
        "linear": [
            ("diagonal", {"lr": 0.05, "initial_std": 0.3}),
            ("diagonal", {"lr": 0.05, "initial_std": 0.3, "reparameterisation": "weights"}),
        ],
    },
    "block-tridiagonal": {
        "lively": {"beta": 0.1},
        "forgetful": {"beta": 0.5},
        "refuses": ("convolutions",),
        "linear": [("mean", {"lr": 0.2, "beta": 0.05})],  # the damping is not a plain sum
        "average": {"variance": 2.5},
    },
    "full": {
        "lively": {"beta": 0.1},
        "forgetful": {"beta": 0.5},
        "linear": [("covariance", {"lr": 0.2, "beta": 0.05})],
    },
    "gp": {"lively": {"epochs": 3, "draws": 4}, "refuses": ("convolutions", "norms", "Categorical", "Bernoulli")},
    "hmc": {
        "lively": {"epochs": 40, "warmup": 20, "thinning": 1, "chains": 2, "max_tree_depth": 5},
        "refuses": ("convolutions", "norms"),
    },
    "laplace": {
        "lively": {"lr": 0.1, "evidence": False},
        "linear": [("covariance", {"lr": 0.1, "evidence": False, "structure": s}) for s in ("full", "kfac", "ekfac")],
    },
    "last-layer": {"refuses": ("norms", "Categorical", "Bernoulli", "Heteroscedastic"), "linear": [("covariance", {})]},
    "mclmc": {
        "lively": {"epochs": 16, "start": 2, "warmup": 4, "thinning": 2, "chains": 2},
        "refuses": ("norms",),
    },
    "noisy-adam": {
        "lively": {"beta": 0.1, "gain_samples": 100},
        "forgetful": {"beta": 0.5},
        "linear": [("diagonal", {"lr": 0.2, "beta": 0.1})],
    },
    "noisy-ekfac": {
        "lively": {"beta": 0.1, "omega": 0.2, "basis_interval": 2},
        "forgetful": {"beta": 0.5, "omega": 0.5, "basis_interval": 3},
        "linear": [("covariance", {"lr": 0.2, "beta": 0.05, "omega": 0.05})],
    },
    "noisy-kfac": {
        "lively": {"beta": 0.1},
        "forgetful": {"beta": 0.5},
        "linear": [
            ("covariance", {"lr": 0.2, "beta": 0.05}),
            ("covariance", {"lr": 0.2, "beta": 0.05, "predictive": "mixed"}),
            ("covariance", {"lr": 0.2, "beta": 0.05, "damping": "exact"}),
        ],
    },
    "slang": {
        "lively": {"beta": 0.1, "rank": 3},
        "forgetful": {"beta": 0.5, "rank": 3},
        # With targets from the data, squared residuals take the place of the noise variance.
        "linear": [("mean", {"lr": 0.1, "beta": 0.1, "rank": 4})],
    },
    "tensor-factorised": {"linear": [("diagonal", {"lr": 0.05, "initial_std": 0.3})]},
    "vogn": {
        "lively": {"beta2": 0.1, "damping": 0.1, "prior_variance": 1.0},
        "forgetful": {},
        # Squared residuals take the place of the noise variance.
        "linear": [("mean", {"lr": 0.05, "beta2": 0.05})],
    },
    "whvi": {
        "linear": [
            ("diagonal", {"lr": 0.05, "initial_std": 0.3})
        ],  # a single layer is the last layer, which is Gaussian
    },
}


def subjects(*names: str, members: int = 1) -> list[Subject]:
    """Return the subjects of the checks for built-in posteriors, or for mixtures of several fits."""
    suffix = f"-members-{members}" if members > 1 else ""
    return [Subject(name + suffix, registry.find("posteriors", name), CONTRACTS.get(name), members) for name in names]
