"""Likelihoods of targets given a network's output, one per file. Each class is imported on first use."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from explore.nets.likelihoods.bernoulli import Bernoulli as Bernoulli
    from explore.nets.likelihoods.categorical import Categorical as Categorical
    from explore.nets.likelihoods.gaussian import Gamma as Gamma, Gaussian as Gaussian
    from explore.nets.likelihoods.heteroscedastic import Heteroscedastic as Heteroscedastic
    from explore.nets.likelihoods.negative_binomial import NegativeBinomial as NegativeBinomial
    from explore.nets.likelihoods.ordinal import Ordinal as Ordinal
    from explore.nets.likelihoods.partial_gaussian import PartialGaussian as PartialGaussian
    from explore.nets.likelihoods.partial_heteroscedastic import PartialHeteroscedastic as PartialHeteroscedastic
    from explore.nets.likelihoods.poisson import Poisson as Poisson
    from explore.nets.likelihoods.student_t import StudentT as StudentT
    from explore.nets.protocols import (
        Likelihood as Likelihood,
        Parameterless as Parameterless,
        check_logits as check_logits,
    )

_HOME = dict.fromkeys(("Likelihood", "Parameterless", "check_logits"), "protocols") | {
    "Bernoulli": "likelihoods.bernoulli", "Categorical": "likelihoods.categorical", "Gamma": "likelihoods.gaussian",
    "Gaussian": "likelihoods.gaussian", "Heteroscedastic": "likelihoods.heteroscedastic",
    "NegativeBinomial": "likelihoods.negative_binomial", "Ordinal": "likelihoods.ordinal",
    "PartialGaussian": "likelihoods.partial_gaussian", "PartialHeteroscedastic": "likelihoods.partial_heteroscedastic",
    "Poisson": "likelihoods.poisson", "StudentT": "likelihoods.student_t",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _HOME:  # listing plug-ins imports this package, but must not import torch
        return getattr(import_module(f"explore.nets.{_HOME[name]}"), name)
    raise AttributeError(f"module 'explore.nets.likelihoods' has no attribute {name!r}")
