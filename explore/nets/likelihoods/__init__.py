"""Likelihoods of targets given a net's output: one file each. The names below are loaded when they are first used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from explore.nets.likelihoods.base import Parameterless as Parameterless
    from explore.nets.likelihoods.base import check_logits as check_logits
    from explore.nets.likelihoods.bernoulli import Bernoulli as Bernoulli
    from explore.nets.likelihoods.categorical import Categorical as Categorical
    from explore.nets.likelihoods.gaussian import Gamma as Gamma
    from explore.nets.likelihoods.gaussian import Gaussian as Gaussian
    from explore.nets.likelihoods.partial_gaussian import PartialGaussian as PartialGaussian
    from explore.nets.protocols import Likelihood as Likelihood

_HOME = {
    "Parameterless": "nets.likelihoods.base",
    "check_logits": "nets.likelihoods.base",
    "Bernoulli": "nets.likelihoods.bernoulli",
    "Categorical": "nets.likelihoods.categorical",
    "Gamma": "nets.likelihoods.gaussian",
    "Gaussian": "nets.likelihoods.gaussian",
    "Likelihood": "nets.protocols",
    "PartialGaussian": "nets.likelihoods.partial_gaussian",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:  # listing plug-ins imports this package, and no torch
        return getattr(import_module(f"explore.{_HOME[name]}"), name)
    raise AttributeError(f"module 'explore.nets.likelihoods' has no attribute {name!r}")
