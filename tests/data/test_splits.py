"""Splits."""

import numpy as np
import pytest

from explore.data import pool_splits, uci_splits


@pytest.mark.parametrize(("n", "k"), [(506, 20), (45730, 5), (308, 20)])
def test_uci_splits_follow_the_published_recipe(n, k):
    np_random = np.random.mtrand.RandomState(np.random.MT19937(np.random.SeedSequence(0)))
    np_random.seed(1)
    splits = uci_splits(n, k)
    assert len(splits) == k
    for train, test in splits:
        order = np.arange(n)
        np_random.shuffle(order)
        np.testing.assert_array_equal(train, order[: int(np.round(n * 0.9))])
        np.testing.assert_array_equal(test, order[int(np.round(n * 0.9)) :])


def test_uci_splits_pinned():
    train, test = uci_splits(506)[0]
    assert (len(train), len(test)) == (455, 51)
    assert train[:5].tolist() == [307, 343, 47, 67, 362]


@pytest.mark.parametrize("arguments", [(1,), (5, 20, 0.99), (5, 20, 0.01), (506, 0)])
def test_uci_splits_errors(arguments):
    with pytest.raises(ValueError, match="for training: each part needs an example"):
        uci_splits(*arguments)


@pytest.mark.parametrize("share", [0.01, 0.2, 0.5])
def test_validation_parts_leave_the_test_parts_alone(share):
    for (train, _), (kept, held_out) in zip(uci_splits(506, 3), uci_splits(506, 3, validation=share), strict=True):
        np.testing.assert_array_equal(np.concatenate([kept, held_out]), train)
        assert len(held_out) == round(share * 455)


@pytest.mark.parametrize("share", [0.001, 0.9999])
def test_a_validation_part_of_nothing_or_of_everything_is_refused(share):
    with pytest.raises(ValueError, match="training examples leaves none for training or for validation"):
        uci_splits(506, 3, validation=share)


def test_pool_splits_cover_every_example_once():
    split = pool_splits(50, trials=3, initial=4, test=6, seed=0)
    assert split.labelled.shape == (3, 4) and split.test.shape == (3, 6) and split.pool.shape == (3, 40)
    assert all(part.dtype == np.int64 for part in split)
    np.testing.assert_array_equal(np.sort(np.hstack(split), axis=1), np.tile(np.arange(50), (3, 1)))


def test_more_trials_leave_the_first_ones_as_they_are():
    few, many = (pool_splits(50, trials, initial=4, test=6, seed=1) for trials in (2, 5))
    for a, b in zip(few, many, strict=True):
        np.testing.assert_array_equal(a, b[:2])
    rows = {tuple(row) for row in many.pool.tolist()}
    assert len(rows) == 5  # and the trials differ


def test_the_test_examples_depend_on_the_seed_alone():
    split = pool_splits(50, 2, initial=4, test=6, seed=1)
    np.testing.assert_array_equal(split.test, pool_splits(50, 2, initial=9, test=6, seed=1).test)
    assert not np.array_equal(split.test, pool_splits(50, 2, initial=4, test=6, seed=2).test)


def test_pool_splits_use_streams_apart_by_trial():
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence(7, spawn_key=(0, 1))))
    order = rng.permutation(20)
    split = pool_splits(20, trials=2, initial=5, test=3, seed=7)
    np.testing.assert_array_equal(split.test[1], order[:3])
    np.testing.assert_array_equal(split.labelled[1], order[3:8])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"initial": 14}, "14 labelled and 6 test points of 20 leave no pool; use fewer than 20 together"),
        ({"n": 1, "initial": 1, "test": 1}, "1 labelled and 1 test points of 1 leave no pool; at least 3 examples"),
        ({"initial": 0}, "initial=0, test=6: each must be at least 1"),
        ({"test": 0}, "test=0: each must be at least 1"),
        ({"trials": 0}, "trials=0"),
        ({"seed": -1}, "seed is -1; it must be at least 0"),
    ],
)
def test_pool_splits_errors(change, message):
    with pytest.raises(ValueError, match=message):
        pool_splits(**{"n": 20, "trials": 1, "initial": 4, "test": 6, "seed": 0} | change)
