"""Other names of modules: short ones, and old ones, which can still be imported for one release, with a warning."""

import importlib
import sys
import warnings
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

# The modules that code of users is likely to import; others may move without notice.
MOVED = {
    "active": "learning.learner",
    "compare": "learning.compare",
    "errors": "core.errors",
    "estimators": "learning.estimators",
    "fitted": "learning.model",
    "graphs": "execution.graphs",
    "inputs": "learning.scaling",
    "likelihoods": "nets.likelihoods",
    "models": "nets.protocols",
    "networks": "nets.zoo",
    "parallel": "execution.parallel",
    "posteriors.base": "inference.base",
    "posteriors.gaussian": "inference.gaussian",
    "rng": "core.rng",
    "shapes": "core.shapes",
    "streams": "execution.parallel",
    "transforms": "learning.scaling",
    "tree": "core.tree",
    "vime.bonus": "vime.reward",
}

SHORT = {"optim": "learning.optim"}
NAMES = MOVED | SHORT


class Moved(MetaPathFinder, Loader):
    """An import hook that loads an old name as an empty module, whose attributes are looked up in the new module."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if fullname.removeprefix("explore.") in NAMES else None

    def exec_module(self, module: ModuleType) -> None:
        new = NAMES[module.__name__.removeprefix("explore.")]
        module.__dict__["__getattr__"] = attributes(module.__name__, f"explore.{new}")


def attributes(old: str, new: str) -> Callable[[str], Any]:
    """Return a `__getattr__` for the module `old` that looks up names in `new`, with a warning if it has moved."""

    def attribute(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = getattr(importlib.import_module(new), name)
        if old.removeprefix("explore.") not in SHORT:
            warnings.warn(f"import {name} from {new}; the next release removes {old}", FutureWarning, 2)
        return value

    return attribute


def install() -> None:
    """Append the import hook `Moved` to `sys.meta_path`, unless it is already there."""
    if not any(isinstance(finder, Moved) for finder in sys.meta_path):
        sys.meta_path.append(Moved())
