"""Columns that number the rows, or say when they were measured, and what is learnt from all the same."""

import numpy as np
import pandas as pd
import pytest

from explore.core.errors import InputError
from explore.data import load_table
from explore.data.recognition import counts, moves
from tests.seeds import seeds

RNG = np.random.default_rng(0)


def features(values, name="a", **more):
    """What is learnt from a column beside a number, and what is said of it."""
    n = len(values)
    x, y = np.random.default_rng(1).permutation(n) / 7, np.arange(n)
    table = load_table(pd.DataFrame({name: values, "x": x, "y": y}), "y", **more)
    assert table.dataset.features[-1] == "x"
    return table.dataset.features[:-1], [note for note in table.notes if f"Column {name!r}" in note]


@pytest.mark.parametrize(
    ("values", "counting"),
    [
        (range(1, 11), True),
        (range(-3, 9), True),
        (range(1000, 1006), True),
        (range(9, -1, -1), True),
        (RNG.permutation(12), True),  # a plan in random order
        ([1, 2, 3, 5, 6, 7, 9, 10], True),  # two rows were deleted
        (RNG.permutation([*range(15), *range(17, 30)]), True),
        (range(4), False),  # too few
        ([20, 22, 24, 26, 28, 30], False),
        ([1, 2, 4, 8, 16, 32], False),
        ([1, 3, 2, 5, 6, 9], False),  # gaps, and in any order: a factor of few rows may be so
        ([1, 2, 3] * 4, False),  # levels of a factor
        (list(range(1, 13)) * 3, False),  # months
        ([1.5, 2.5, 3.5, 4.5, 5.5], False),
        ([0, 1, 2, 3, 4.5], False),
        ([np.nan] * 8, False),
    ],
)
def test_what_counts_rows(values, counting):
    assert counts(np.array(values, float)) == counting
    if not np.isnan(np.array(values, float)).all():
        assert features(np.array(values, float))[0] == (() if counting else ("a",))


@pytest.mark.parametrize("seed", seeds(40, 10))
def test_counting_does_not_depend_on_the_start_nor_on_the_order(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(5, 60))
    values = np.arange(n) + float(rng.integers(-1000, 1000))
    assert counts(values) and counts(rng.permutation(values)) and counts(np.where(np.arange(n) == n, np.nan, values))
    kept = np.sort(rng.choice(n, max(5, n - n // 6), replace=False))  # of which others were deleted
    assert counts(values[kept])
    assert not counts(rng.integers(0, max(2, n // 2), n).astype(float))  # some value twice
    assert not counts(2 * values) and not counts(values + 0.5)


@pytest.mark.parametrize(
    "name",
    ["run", "Run", "RUN ORDER", "run_order", "StdOrder", "std order", "Standard Order", "index", "Unnamed: 0", "",
     "idx", "unnamed_0", "__index_level_0__", "level_0", "Run #", "run no.", "Sample-Nr", "runID"],
)  # fmt: skip
def test_names_of_columns_that_number_rows(name):
    learnt, notes = features([3, 1, 1, 2, 3, 1], name or "column 1")  # as joined tables have them
    assert not learnt and "numbers the rows and is left out; use --feature" in notes[0]


@pytest.mark.parametrize(
    "name",
    ["refractive index", "order", "row", "number", "NO", "atomic number", "runtime", "stdev", "standard", "sample"],
)
def test_names_of_other_columns(name):
    assert features([3, 1, 1, 2, 3, 1], name) == ((name,), [])


def test_times_of_measurement_are_left_out_and_days_are_not():
    days = pd.date_range("2024-01-05", periods=6)[[2, 0, 1, 5, 3, 4]]
    assert features(days)[0] == ("a (days since 2024-01-05)",)
    times = days + pd.Timedelta("9h")
    assert features(times) == (
        (),
        ["Column 'a' says when rows were measured and is left out; use --feature 'a' to include it."],
    )
    assert features(times, feature="a")[0] == ("a (days since 2024-01-05)",)
    for name, values in (("Time Stamp", days), ("timestamp", [1.7e9, 1.8e9, 1.75e9, 1.6e9, 1.7e9, 1.9e9])):
        assert not features(values, name)[0]


def test_other_columns_that_go_one_way_are_learnt_from_and_said():
    said = ["Column 'a' only rises or only falls from row to row; drop it if it is an order or a time of measurement."]
    for values in ([0.1, 0.2, 0.5, 0.7, 1.1], [10, 8, 6, 4, 2, 2], pd.date_range("2024-01-05", periods=6, freq="2D")):
        learnt, notes = features(values)
        assert len(learnt) == 1 and notes == said
    for values in (
        [0.1, 0.5, 0.2, 0.7, 1.1],
        [1, 1, 1, 1, 2, 2, 2, 2],
        [1.5, 1.5, 1.5, 1.5, 1.5],
        [0.1, 0.2, 0.5, 0.7],
    ):
        assert not moves(np.array(values))
        assert not any("one way" in note for note in features(values)[1])


def test_a_factor_with_a_row_for_each_degree_is_taken_in_by_its_name():
    frame = pd.DataFrame({"temp": range(20, 30), "y": range(10)})
    with pytest.raises(
        InputError, match="no column left .*: Column 'temp' numbers the rows and is left out; use --feature 'temp'"
    ):
        load_table(frame, "y")
    table = load_table(frame, "y", feature="temp")
    assert table.dataset.x[:, 0].tolist() == list(range(20, 30)) and table.notes == ()
