"""What becomes of the parameters of a module: a distribution, a point estimate that is trained, or nothing.

`Net` replaces a layer by its weight matrix. So the code of a subclass, parametrisation or hook would be ignored: the
parameters of such a layer are point estimates, as are those of layers that have no slot.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin

from explore.core.errors import InputError, listed
from explore.nets.rewriting import Origin, is_plain, replace, rewrite, shown_name
from explore.nets.slots import convolution, dense, norms
from explore.nets.slots.base import called


def _class(name: str, *bases: Any) -> Any:
    """Make a class of its bases alone, and put it into this module, where pickles look for it."""
    cls = globals()[name] = type(name, bases, {"__module__": __name__})
    return cls


def _slots(slot: Any, *kinds: type[nn.Module]) -> dict[type[nn.Module], Any]:
    return {kind: _class(f"{kind.__name__}Slot", slot, kind) for kind in kinds}


WEIGHTS: dict[type[nn.Module], Any] = {
    nn.Linear: dense.LinearSlot, nn.Embedding: dense.EmbeddingSlot,
    **_slots(convolution.ConvSlot, nn.Conv1d, nn.Conv2d, nn.Conv3d),
    **_slots(convolution.TransposedSlot, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
}  # fmt: skip
NORMS = _slots(norms.NormSlot, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
AFFINE = _slots(norms.AffineSlot, nn.LayerNorm, nn.RMSNorm, nn.GroupNorm)
SLOTS = WEIGHTS | NORMS | AFFINE
ENTRIES = {kind: _class(f"{kind.__name__}Entries", dense.AffineEntries, slot) for kind, slot in AFFINE.items()}
LARGEST = 4096  # rows of an Embedding, or inputs of a grouped convolution, that get a distribution without being named
Bayesian = str | type | Sequence[Any] | Callable[[str, nn.Module], bool]
"""What gets a distribution: "all" layers with weights, the "last" of these, names with wildcards, types, a function, or
a list of these. Other parameters only by their exact name or type, or by "everything"."""


class Group(NamedTuple):
    """A layer, and the names of all places where it, or a layer that shares its parameters, occurs."""

    layer: nn.Module
    names: list[str]


class Fates(NamedTuple):
    """The layers to replace, by the fate of their parameters, and the parameters that the module's own code uses."""

    weights: list[Group]  # a distribution
    entries: list[Group]  # normalisations with a distribution
    norms: list[Group]  # batch norm
    affine: list[Group]  # other normalisations, with point estimates
    own: dict[str, nn.Parameter]  # of the module's own code, with a distribution
    points: dict[str, nn.Parameter]  # the same, as point estimates
    origins: dict[str, Origin]  # of parameters of layers that were made anew, see `rewrite`


def check(module: nn.Module) -> None:
    """Raise InputError if `Net` does not support the module."""
    if not isinstance(module, nn.Module):
        raise InputError(f"Net expects a torch.nn.Module; got a {type(module).__name__}")
    if hasattr(module, "_orig_mod"):  # set by torch.compile
        raise InputError("Net does not support compiled modules; pass module._orig_mod")
    for name, layer in module.named_modules():
        if isinstance(layer, LazyModuleMixin):
            why = "is a lazy layer without shapes; run the module on one example first"
            raise InputError(f"{called(name)} ({type(layer).__name__}) {why}")


def fates(root: nn.Module, bayesian: Bayesian) -> Fates:
    """Decide the fates of the parameters of `root`, whose layers' names have a prefix "0."."""
    origins = rewrite(root)
    names: dict[nn.Module, list[str]] = defaultdict(list)
    owners: dict[Tensor, list[nn.Module]] = defaultdict(list)
    for name, layer in root.named_modules(remove_duplicate=False):
        names[layer].append(name)
    for layer in names:
        for tensor in layer.parameters(recurse=False):
            owners[tensor].append(layer)
    groups: dict[Any, Group] = {}  # layers that share their parameters are one
    for layer in names:
        if type(layer) in SLOTS and _own(layer, owners):
            key = tuple(map(id, layer.parameters(recurse=False))) or id(layer)
            groups.setdefault(key, Group(layer, [])).names.extend(names[layer])
    kinds = ([group for group in groups.values() if type(group.layer) in table] for table in (WEIGHTS, NORMS, AFFINE))
    weights, norms, affine = kinds
    chosen = [g for g in weights if any(_selects(bayesian, shown_name(name), g, weights[-1]) for name in g.names)]
    entries = [g for g in affine if any(_names(bayesian, [shown_name(name)], g.layer) for name in g.names)]
    slots = {id(t) for group in (*chosen, *norms, *affine) for t in group.layer.parameters(recurse=False)}
    free = {key: t for key, t in root.named_parameters() if t.requires_grad and id(t) not in slots}
    own = {key: t for key, t in free.items() if _names(bayesian, *_owner(root, key))}
    _check_used(bayesian, root, weights, affine)
    if own and norms:
        name = shown_name(next(iter(own)))
        raise InputError(f"{name!r} cannot have a distribution beside batch normalisation; leave it out by bayesian=")
    points = {key: t for key, t in free.items() if key not in own}
    return Fates(chosen, entries, norms, [g for g in affine if g not in entries], own, points, origins)


def _own(layer: nn.Module, owners: dict[Tensor, list[nn.Module]]) -> bool:
    """Return whether a layer can be replaced: its code is torch's, and its parameters are trained and only its own."""
    if not is_plain(layer) or not all(p.requires_grad for p in layer.parameters()):
        return False
    if not any(True for _ in layer.parameters()):
        return type(layer) in NORMS  # which have running statistics
    if getattr(layer, "max_norm", None) is not None or getattr(layer, "scale_grad_by_freq", False):
        return False
    alike = (type(layer), layer.extra_repr(), [id(t) for t in layer._parameters.values()])
    sharers = (x for t in layer.parameters() for x in owners[t])
    return all((type(x), x.extra_repr(), [id(t) for t in x._parameters.values()]) == alike for x in sharers)


def _large(layer: Any) -> bool:
    if isinstance(layer, nn.Embedding):
        return layer.num_embeddings > LARGEST
    return getattr(layer, "groups", 1) > 1 and layer.in_channels * math.prod(layer.kernel_size) > LARGEST


def _selects(bayesian: Any, name: str, group: Group, last: Group) -> bool:
    """Return whether a layer with weights gets a distribution."""
    if isinstance(bayesian, str):
        whole = {"all": not _large(group.layer), "everything": True, "last": group is last}
        return whole[bayesian] if bayesian in whole else fnmatchcase(name, bayesian)
    if isinstance(bayesian, type):
        return isinstance(group.layer, bayesian)
    if isinstance(bayesian, Sequence):
        return any(_selects(each, name, group, last) for each in bayesian)
    return bool(bayesian(name, group.layer))


def _check_used(bayesian: Bayesian, root: nn.Module, weights: list[Group], affine: list[Group]) -> None:
    """Raise InputError if `bayesian`, or an item of it, selects nothing."""
    if not weights and bayesian in ("all", "last"):
        kinds = listed([kind.__name__ for kind in WEIGHTS])
        raise InputError(f"the network has no layer that can have a distribution: {kinds}")
    besides = [([shown_name(name) for name in group.names], group.layer) for group in affine]
    besides += [_owner(root, key) for key, t in root.named_parameters() if t.requires_grad]
    for one in bayesian if isinstance(bayesian, list | tuple) and bayesian else [bayesian]:
        layers = any(_selects(one, shown_name(name), group, weights[-1]) for group in weights for name in group.names)
        if not layers and not any(_names(one, names, owner) for names, owner in besides if type(owner) not in NORMS):
            allowed = listed([shown_name(group.names[0]) or "the network itself" for group in weights])
            raise InputError(f"bayesian={one!r} selects no layer; those that can have a distribution are {allowed}")


def _names(bayesian: Any, names: Sequence[str], owner: nn.Module) -> bool:
    """Return whether parameters that are no weights of a layer get a distribution: by name, type, or as everything."""
    if isinstance(bayesian, str):
        return bayesian == "everything" or bayesian in names
    if isinstance(bayesian, type):
        return bayesian in (type(owner), nn.Parameter)
    return isinstance(bayesian, Sequence) and any(_names(each, names, owner) for each in bayesian)


def _owner(root: nn.Module, key: str) -> tuple[list[str], nn.Module]:
    """Return the names by which a parameter of a module can be chosen, its own and its module's, and this module."""
    place = key.rpartition(".")[0]
    return [shown_name(key), shown_name(place)], root.get_submodule(place)


def replaced(root: nn.Module, groups: Sequence[Group], kinds: dict[type[nn.Module], Any] = SLOTS) -> list[Any]:
    """Put slots in place of layers; return the slots."""
    slots = [kinds[type(layer)](layer, shown_name(names[0])) for layer, names in groups]
    for slot, group in zip(slots, groups, strict=True):
        replace(root, group.names, slot)
    return slots
