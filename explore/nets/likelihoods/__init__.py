"""Likelihoods of targets given a network's output, one per file."""

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
