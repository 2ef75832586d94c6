"""Active learning and reinforcement-learning exploration on Bayesian neural networks.

The public names below are loaded on first use, so `import explore` by itself does not import torch.
"""

import sys
from importlib import import_module, metadata
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from explore.core.errors import Failure as Failure, InputError as InputError
    from explore.core.rng import Rng as Rng
    from explore.data import load as load, load_table as load_table
    from explore.learning import optim as optim
    from explore.learning.around import laplace as laplace, refined as refined
    from explore.learning.estimators import (
        BayesianClassifier as BayesianClassifier,
        BayesianRegressor as BayesianRegressor,
    )
    from explore.learning.items import features as features
    from explore.learning.learner import ActiveLearner as ActiveLearner, active_loop as active_loop
    from explore.learning.loaded import load_run as load_run
    from explore.learning.model import FittedModel as FittedModel
    from explore.learning.training import evaluate as evaluate, fit as fit, predict as predict
    from explore.nets.likelihoods import (
        Bernoulli as Bernoulli,
        Categorical as Categorical,
        Gaussian as Gaussian,
        Heteroscedastic as Heteroscedastic,
        NegativeBinomial as NegativeBinomial,
        Ordinal as Ordinal,
        Poisson as Poisson,
        StudentT as StudentT,
    )
    from explore.nets.net import Net as Net, mlp as mlp
    from explore.nets.zoo import alexnet as alexnet, lenet5 as lenet5, resnet18 as resnet18, vgg16 as vgg16
    from explore.registry import posterior as posterior

_CHECKOUT = Path(__file__).parents[1]
if (_CHECKOUT / "cli" / "main.py").exists():  # which has `explore.cli` and `explore.envs` as cli/ and envs/
    __path__.append(str(_CHECKOUT))


class _Optim(MetaPathFinder, Loader):
    """An import hook for `explore.optim`, the short name of `explore.learning.optim`, which it imports on first use."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname == "explore.optim" else None

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = import_module("explore.learning.optim")


sys.meta_path.append(_Optim())

_MODULES = {
    "learning.around": "laplace refined",
    "learning.items": "features",
    "learning.learner": "ActiveLearner active_loop",
    "learning.loaded": "load_run",
    "learning.estimators": "BayesianClassifier BayesianRegressor",
    "learning.model": "FittedModel",
    "learning.training": "evaluate fit predict",
    "data": "load load_table",
    "core.errors": "Failure InputError",
    "core.rng": "Rng",
    "nets.zoo": "alexnet lenet5 resnet18 vgg16",
    "nets.likelihoods": "Bernoulli Categorical Gaussian Heteroscedastic NegativeBinomial Ordinal Poisson StudentT",
    "nets.net": "Net mlp",
    "registry": "posterior",
}
_HOME = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return metadata.version("explore-bnn")
    if name == "optim":
        return import_module("explore.learning.optim")
    if name in _HOME:
        return getattr(import_module(f"explore.{_HOME[name]}"), name)
    raise AttributeError(f"module 'explore' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*_HOME, "__version__", "optim"])
