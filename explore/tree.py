"""States are trees of tensors: NamedTuples, tuples and dictionaries, with tensors (or None) as leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from explore.errors import InputError

Tree = Any


def _rebuild(like: Tree, children: list[Tree]) -> Tree:
    if isinstance(like, dict):
        return dict(zip(like, children, strict=True))
    return type(like)(*children) if hasattr(like, "_fields") else type(like)(children)


def _children(tree: Tree) -> list[tuple[str, Tree]]:
    if isinstance(tree, dict):
        return [(str(k), v) for k, v in tree.items()]
    names = getattr(tree, "_fields", range(len(tree)))
    return [(str(n), v) for n, v in zip(names, tree, strict=True)]


def map_tensors(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """The tree with `function` applied to each tensor (and to those at its place in `others`)."""
    if tree is None:
        return None
    if isinstance(tree, Tensor):
        return function(tree, *others)
    rest = [[v for _, v in _children(other)] for other in others]
    children = [map_tensors(function, child, *(r[i] for r in rest)) for i, (_, child) in enumerate(_children(tree))]
    return _rebuild(tree, children)


def leaves(tree: Tree, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """(path, tensor) of every leaf, e.g. ("mean.0", ...), in a fixed order."""
    if isinstance(tree, Tensor):
        yield path, tree
    elif tree is not None:
        for name, child in _children(tree):
            yield from leaves(child, f"{path}.{name}" if path else name)


def save(tree: Tree) -> dict[str, Tensor]:
    """A flat dictionary that `torch.load(weights_only=True)` can read back.

    Each tensor is cloned: a saved view would drag its whole storage along.
    """
    return {path: leaf.detach().clone() for path, leaf in leaves(tree)}


def restore(like: Tree, saved: Mapping[str, Tensor]) -> Tree:
    """The saved values in the shape of `like`.

    Raises:
        InputError: if a path is missing or too many, or a shape differs.
    """
    expected = dict(leaves(like))
    if expected.keys() != saved.keys():
        raise InputError(
            f"the saved state does not belong here: it differs in {sorted(expected.keys() ^ saved.keys())}"
        )
    for path, leaf in expected.items():
        if leaf.shape != saved[path].shape:
            raise InputError(
                f"the saved state does not belong here: {path} is {list(saved[path].shape)}, "
                f"expected {list(leaf.shape)}"
            )
    values = iter([saved[path].to(leaf).clone() for path, leaf in expected.items()])
    return map_tensors(lambda _: next(values), like)


def part(tree: Tree, replicas: slice | Tensor) -> Tree:
    """Some of the replicas; leaves without a replica axis stay as they are."""
    return map_tensors(lambda t: t[replicas] if t.dim() else t, tree)


def where(alive: Tensor, new: Tree, old: Tree) -> Tree:
    """`new` in the replicas that are alive, `old` in the others; leaves without a replica axis are new's.

    Args:
        alive: [R] bool.
        new: a tree whose leaves have a leading replica axis or none at all.
        old: a tree of the same shape.
    """
    if surely(alive):
        return new
    made: dict[tuple[int, int], Tensor] = {}  # what stands in several places stays one tensor

    def pick(n: Tensor, o: Tensor) -> Tensor:
        if n is o or not n.dim():
            return n
        if (id(n), id(o)) not in made:
            made[id(n), id(o)] = torch.where(alive.view(-1, *[1] * (n.dim() - 1)), n, o)
        return made[id(n), id(o)]

    return map_tensors(pick, new, old)


def surely(flags: Tensor) -> bool:
    """Whether all are true, where that is known for free: a device would have to be waited for, and is not asked."""
    return flags.device.type == "cpu" and bool(flags.all())
