"""Trees of tensors, such as states: NamedTuples, tuples and dictionaries with tensors (or None) as leaves."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import UInt8
from torch import Tensor

from explore.core.errors import InputError

Tree = Any
SMALL = 2**20  # numbers that a device copies in less time than it takes to launch the copy


def _values(tree: Tree) -> Iterable[Tree]:
    return tree.values() if isinstance(tree, dict) else tree


def map_tensors(function: Callable[..., Any], tree: Tree, *trees: Tree) -> Tree:
    """Apply `function` to each tensor and to the values at the same place in the other trees; return the new tree."""
    if tree is None:
        return None
    if isinstance(tree, Tensor):
        return function(tree, *trees)
    children = [map_tensors(function, *values) for values in zip(*map(_values, (tree, *trees)), strict=True)]
    if isinstance(tree, dict):
        return dict(zip(tree, children, strict=True))
    return type(tree)(*children) if hasattr(tree, "_fields") else type(tree)(children)


def leaves(tree: Tree, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield (path, tensor) for every leaf, e.g. ("mean.0", ...), in a fixed order."""
    if isinstance(tree, Tensor):
        yield path, tree
    elif tree is not None:
        names = tree if isinstance(tree, dict) else getattr(tree, "_fields", range(len(tree)))
        for name, child in zip(names, _values(tree), strict=True):
            yield from leaves(child, f"{path}.{name}" if path else str(name))


def tensors(tree: Tree) -> list[Tensor]:
    """Return all leaves in the order of `leaves`, without paths; faster than `leaves` and torch's pytree functions."""
    if isinstance(tree, Tensor):
        return [tree]
    return [] if tree is None else [leaf for child in _values(tree) for leaf in tensors(child)]


def save(tree: Tree) -> dict[str, Tensor]:
    """Return a dict path -> tensor for `torch.save`. Clone all tensors, as a view is saved with its whole storage."""
    return {path: leaf.detach().clone() for path, leaf in leaves(tree)}


def restore(like: Tree, saved: Mapping[str, Tensor]) -> Tree:
    """Return a tree like `like` with the `saved` values; raise InputError if paths or tensor shapes differ."""
    expected = dict(leaves(like))
    if expected.keys() != saved.keys():
        keys = sorted(expected.keys() ^ saved.keys())
        raise InputError(f"the saved state does not fit: missing or unexpected keys {keys}")
    for path, leaf in expected.items():
        if leaf.shape != saved[path].shape:
            shapes = f"{list(saved[path].shape)}; expected {list(leaf.shape)}"
            raise InputError(f"the saved state does not fit: {path} has shape {shapes}")
    values = iter([saved[path].to(leaf).clone() for path, leaf in expected.items()])
    return map_tensors(lambda _: next(values), like)


def part(tree: Tree, replicas: slice | Tensor) -> Tree:
    """Select some of the replicas; leaves without a replica axis are unchanged."""
    return map_tensors(lambda t: t[replicas] if t.dim() else t, tree)


def where(alive: Tensor, new: Tree, old: Tree) -> Tree:
    """Return `new` where `alive` [R] is true and `old` elsewhere; leaves without a replica axis come from `new`."""
    if known_all_true(alive):
        return new
    before = dict(leaves(old))
    # A tensor at several places stays one tensor, and an unchanged tensor is not copied.
    pairs = {(id(n), id(o)): (n, o) for path, n in leaves(new) if n.dim() and (o := before[path]) is not n}
    together = {ids: (n, o) for ids, (n, o) in pairs.items() if n.dtype == o.dtype and n.is_floating_point()}
    selected: dict[tuple[int, int], Tensor] = {}
    if together and bundled([n for n, _ in together.values()]):
        flat_new, flat_old = (side_by_side(each) for each in zip(*together.values(), strict=True))
        sizes = [n[0].numel() for n, _ in together.values()]
        parts = torch.where(alive.unsqueeze(1), flat_new, flat_old).split(sizes, 1)
        selected = {ids: part.view(n.shape) for part, (ids, (n, _)) in zip(parts, together.items(), strict=True)}
    for ids, (n, o) in pairs.items():
        if ids not in selected:
            selected[ids] = torch.where(alive.view(-1, *[1] * (n.dim() - 1)), n, o)
    return map_tensors(lambda n, o: selected.get((id(n), id(o)), n), new, old)


def bundled(tensors: Sequence[Tensor]) -> bool:
    """Return whether these are three or more small tensors on a GPU, where one operation on all is faster."""
    return not tensors[0].is_cpu and len(tensors) > 2 and sum(t.numel() for t in tensors) <= SMALL


def side_by_side(tensors: Sequence[Tensor]) -> Tensor:
    """Flatten tensors [R, ...] of one dtype to [R, n] and concatenate them along n."""
    return torch.cat([t.reshape(len(t), -1) for t in tensors], 1)


def from_plain(value: Any) -> UInt8[Tensor, " _n"]:
    """Encode a JSON value as a tensor, for files that may contain only tensors."""
    return torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)


def to_plain(saved: UInt8[Tensor, " _n"]) -> Any:
    """Decode the JSON value that `from_plain` encoded."""
    return json.loads(saved.cpu().numpy().tobytes())


def known_all_true(flags: Tensor) -> bool:
    """Return whether all flags are known to be true: False for `unseen` flags."""
    return not unseen(flags) and bool(flags.all())


def unseen(t: Tensor) -> bool:
    """Return whether the host must not read a tensor: it is on an accelerator."""
    return t.device.type != "cpu"
