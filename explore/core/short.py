"""The short name `explore.optim` of the module `explore.learning.optim`, imported on first use."""

import importlib
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

NAMES = {"explore.optim": "explore.learning.optim"}


class Short(MetaPathFinder, Loader):
    """An import hook that loads a module by its short name."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in NAMES else None

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = importlib.import_module(NAMES[module.__name__])


def install() -> None:
    """Append the import hook `Short` to `sys.meta_path`, unless it is already there."""
    if not any(isinstance(finder, Short) for finder in sys.meta_path):
        sys.meta_path.append(Short())
