"""How targets scatter around a net's output: one file each. The names below are loaded when they are first used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from explore.likelihoods.base import Parameterless as Parameterless
    from explore.likelihoods.base import check_logits as check_logits
    from explore.likelihoods.bernoulli import Bernoulli as Bernoulli
    from explore.likelihoods.categorical import Categorical as Categorical
    from explore.likelihoods.gaussian import Gamma as Gamma
    from explore.likelihoods.gaussian import Gaussian as Gaussian
    from explore.likelihoods.partial_gaussian import PartialGaussian as PartialGaussian
    from explore.models import Likelihood as Likelihood

_HOME = {
    "Parameterless": "likelihoods.base",
    "check_logits": "likelihoods.base",
    "Bernoulli": "likelihoods.bernoulli",
    "Categorical": "likelihoods.categorical",
    "Gamma": "likelihoods.gaussian",
    "Gaussian": "likelihoods.gaussian",
    "Likelihood": "models",
    "PartialGaussian": "likelihoods.partial_gaussian",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:  # listing plug-ins imports this package, and no torch
        return getattr(import_module(f"explore.{_HOME[name]}"), name)
    raise AttributeError(f"module 'explore.likelihoods' has no attribute {name!r}")
