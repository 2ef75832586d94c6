"""Trees of tensors: walking, saving, restoring."""

from typing import NamedTuple

import pytest
import torch

from explore.core import tree
from explore.core.errors import InputError


class Inner(NamedTuple):
    a: torch.Tensor
    b: torch.Tensor | None


class Outer(NamedTuple):
    layers: tuple[torch.Tensor, ...]
    inner: Inner
    table: dict[str, torch.Tensor]


def example(value=1.0):
    t = torch.full((2, 3), value)
    return Outer((t, t + 1), Inner(torch.tensor(7), None), {"x": t + 2})


def test_leaves_in_order_with_their_paths():
    found = dict(tree.leaves(example()))
    assert list(found) == ["layers.0", "layers.1", "inner.a", "table.x"]
    assert found["table.x"][0, 0] == 3


def test_tensors_are_the_leaves():
    made = example()
    assert list(map(id, tree.tensors(made))) == [id(leaf) for _, leaf in tree.leaves(made)]


def test_map_tensors_keeps_types_and_meets_other_trees_leaf_by_leaf():
    total = tree.map_tensors(torch.add, example(1.0), example(10.0))
    assert isinstance(total, Outer) and isinstance(total.inner, Inner) and total.inner.b is None
    assert [float(t.flatten()[0]) for _, t in tree.leaves(total)] == [11, 13, 14, 15]


def test_save_copies_and_restore_rebuilds():
    big = torch.arange(1000.0)
    state = example()._replace(layers=(big[:2].view(1, 2), big[5:6].view(1, 1)))
    saved = tree.save(state)
    assert saved["layers.0"].untyped_storage().nbytes() == 8  # not the storage it was a view of
    back = tree.restore(example()._replace(layers=(torch.zeros(1, 2), torch.zeros(1, 1))), saved)
    assert type(back) is Outer and torch.equal(back.layers[1], torch.tensor([[5.0]])) and back.inner.a == 7
    back.layers[0].zero_()
    assert saved["layers.0"][0, 1] == 1


def test_restore_takes_the_type_of_the_target():
    like = tree.map_tensors(lambda t: t.double(), example())
    assert tree.restore(like, tree.save(example())).layers[0].dtype == torch.float64


def test_restore_refuses_what_does_not_fit():
    saved = tree.save(example())
    missing = {k: v for k, v in saved.items() if k != "inner.a"}
    for wrong, message in (
        (missing, "inner.a"),
        (saved | {"more": torch.zeros(1)}, "more"),
        (saved | {"table.x": torch.zeros(5, 3)}, r"table.x has shape \[5, 3\]; expected \[2, 3\]"),
    ):
        with pytest.raises(InputError, match=message):
            tree.restore(example(), wrong)


def test_where_freezes_replicas():
    mixed = tree.where(torch.tensor([True, False]), example(5.0), example(1.0))
    assert mixed.layers[0].tolist() == [[5] * 3, [1] * 3] and mixed.inner.a == 7 and mixed.inner.b is None
    new = example(5.0)
    assert tree.where(torch.tensor([True, True]), new, example(1.0)) is new


def test_part_takes_replicas_and_leaves_what_has_none():
    part = tree.part(example(), slice(1, 2))
    assert isinstance(part, Outer) and [t.shape for _, t in tree.leaves(part)] == [(1, 3), (1, 3), (), (1, 3)]


def test_what_is_small_on_a_device_is_selected_side_by_side(monkeypatch):
    """The same, and what stands in several places stays one tensor."""
    g = torch.Generator().manual_seed(0)
    shapes = [(3,), (3, 2, 4), (3, 4, 2), (3, 1)]
    new, old = ([torch.randn(shape, generator=g) for shape in shapes] for _ in range(2))
    new[2] = new[2].mT.contiguous().mT  # of another layout
    new[0][1], kept = torch.nan, torch.tensor([True, False, True])

    def state(t, count):
        counts = {"count": torch.full((3,), count), "n": torch.tensor(count)}
        return {"a": (t[0], t[1]), "b": (t[1], t[2]), "c": t[3]} | counts

    expected = tree.where(kept, state(new, 1), state(old, 0))
    monkeypatch.setattr(tree, "bundled", lambda _: True)
    found = tree.where(kept, state(new, 1), state(old, 0))
    assert found["a"][1] is found["b"][0]
    for (path, ours), (_, theirs) in zip(tree.leaves(found), tree.leaves(expected), strict=True):
        assert torch.equal(ours, theirs), path


def test_what_did_not_change_is_not_selected():
    t = torch.ones(2, 3)
    assert tree.where(torch.tensor([True, False]), (t,), (t,))[0] is t
