"""Old names of moved modules, which can still be imported for one release, with a warning."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

ROOMS = {
    "core": "errors files hadamard linalg rng shapes spread tree",
    "execution": "graphs parallel",
    "inference": "candidates",
    "inference.structures": "inference.kronecker inference.low_rank",
    "inference.updates": "inference.adam inference.natural inference.points inference.reparam",
    "learning": "calibration classification compare estimators pool scaling toys",
    "nets": "likelihoods modules",
    "runs": "provenance record recorded",
}
MERGED = {  # files that contain former modules, or were renamed
    "acquisitions.conditioning": "acquisitions.dependence",
    "cli.problem": "cli.parameters",
    "cli.rl.training": "cli.rl.callbacks cli.rl.seeds",
    "cli.start": "cli.run",
    "core.context": "execution.turns inference.turns",
    "data.base": "data.splits",
    "data.columns": "data.kinds",
    "data.recognition": "data.orders",
    "data.table": "data.typed",
    "envs.environments": "envs.render envs.single envs.vector",
    "envs.simulation": "envs.physics envs.solver envs.worlds",
    "execution.graphs": "compiled execution.compiled",
    "execution.parallel": "execution.streams streams",
    "images.base": "images.disk",
    "images.reading": "images.arrays images.own",
    "inference.base": "inference.common inference.norms inference.prior posteriors.base",
    "inference.gaussian": "posteriors.gaussian",
    "inference.predict": "core.mixture mixture",
    "inference.structures.kronecker": "inference.structures.weight_sharing inference.weight_sharing",
    "inference.updates.noisy_layers": "inference.updates.dropout",
    "inference.updates.steps": "inference.step_rules inference.updates.step_rules inference.updates.sub_batches",
    "learning.fit": "feed learning.feed learning.shards shards",
    "learning.identity": "learning.fingerprints",
    "learning.learner": "active",
    "learning.loaded": "cli.loaded",
    "learning.model": "fitted",
    "learning.saved": "cli.saved",
    "learning.scaling": "inputs transforms learning.inputs learning.transforms",
    "learning.trust": "cli.trust",
    "nets.protocols": "nets.likelihoods.base models",
    "nets.slots.base": "nets.slots.linear nets.slots.normalisation",
    "nets.slots.convolution": "patch_products core.patch_products",
    "nets.zoo": "nets.custom cli.own_network networks",
    "testing.density": "testing.bounds",
    "testing.updates": "testing.tape",
    "vime.dynamics": "vime.replay",
    "vime.env_wrappers": "vime.stepwise",
    "vime.reward": "vime.bonus",
    "vime.sb3.callbacks": "vime.sb3.log vime.sb3.on_policy",
    "vime.sb3.wrappers": "vime.sb3.batched",
}
MOVED = {old: new for new, names in MERGED.items() for old in names.split()}
MOVED |= {old: f"{room}.{old.rpartition('.')[2]}" for room, names in ROOMS.items() for old in names.split()}


class Moved(MetaPathFinder, Loader):
    """An import hook that loads an old name as an empty module, whose attributes are looked up in the new module."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        new = new_name(fullname)
        try:
            return ModuleSpec(fullname, self, is_package=True) if new and importlib.util.find_spec(new) else None
        except ModuleNotFoundError:  # in a module that is no package
            return None

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__getattr__"] = attributes(module.__name__, new_name(module.__name__))


def new_name(old: str) -> str:
    """Return the new name of a module that moved by itself or with its package; "" if the module did not move."""
    name = old.removeprefix("explore.")
    folder, _, inner = name.partition(".")
    if name in MOVED:
        return f"explore.{MOVED[name]}"
    return f"explore.{MOVED[folder]}.{inner}" if inner and folder in MOVED else ""


def attributes(old: str, new: str) -> Callable[[str], Any]:
    """Return a `__getattr__` for the module `old` that looks up names in the module `new`, with a warning."""

    def attribute(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = getattr(importlib.import_module(new), name)
        warnings.warn(f"import {name} from {new}; the next release removes {old}", FutureWarning, 2)
        return value

    return attribute


def install() -> None:
    """Append the import hook `Moved` to `sys.meta_path`, unless it is already there."""
    if not any(isinstance(finder, Moved) for finder in sys.meta_path):
        sys.meta_path.append(Moved())
