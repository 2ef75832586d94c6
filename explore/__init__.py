"""Active learning and reinforcement-learning exploration on Bayesian neural networks.

The public names below are loaded when they are first used; `import explore` by itself loads no torch.
"""

from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from explore.active import ActiveLearner as ActiveLearner
    from explore.active import active_loop as active_loop
    from explore.cli.loaded import load_run as load_run
    from explore.data import load as load
    from explore.data import load_csv as load_csv
    from explore.data import load_table as load_table
    from explore.errors import Failure as Failure
    from explore.errors import InputError as InputError
    from explore.estimators import BayesianClassifier as BayesianClassifier
    from explore.estimators import BayesianRegressor as BayesianRegressor
    from explore.fitted import FittedModel as FittedModel
    from explore.likelihoods import Bernoulli as Bernoulli
    from explore.likelihoods import Categorical as Categorical
    from explore.likelihoods import Gaussian as Gaussian
    from explore.nets import Net as Net
    from explore.nets import mlp as mlp
    from explore.networks import alexnet as alexnet
    from explore.networks import lenet5 as lenet5
    from explore.networks import resnet18 as resnet18
    from explore.networks import vgg16 as vgg16
    from explore.registry import posterior as posterior
    from explore.rng import Rng as Rng

_HOME = {
    "ActiveLearner": "active",
    "active_loop": "active",
    "load_run": "cli.loaded",
    "load": "data",
    "load_csv": "data",
    "load_table": "data",
    "Failure": "errors",
    "InputError": "errors",
    "BayesianClassifier": "estimators",
    "BayesianRegressor": "estimators",
    "FittedModel": "fitted",
    "alexnet": "networks",
    "lenet5": "networks",
    "resnet18": "networks",
    "vgg16": "networks",
    "Bernoulli": "likelihoods",
    "Categorical": "likelihoods",
    "Gaussian": "likelihoods",
    "Net": "nets",
    "mlp": "nets",
    "posterior": "registry",
    "Rng": "rng",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return metadata.version("explore-bnn")
    if name in _HOME:
        return getattr(import_module(f"explore.{_HOME[name]}"), name)
    raise AttributeError(f"module 'explore' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*_HOME, "__version__"])
