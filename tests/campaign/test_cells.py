"""What cells say, however they are written."""

import datetime
import decimal
import unicodedata
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from explore.campaign import Schema
from explore.campaign.cells import canonical, canonicals, close, fingerprint, same
from explore.campaign.sheet import measurements
from explore.core.errors import InputError
from explore.data.reading import Cells
from tests.seeds import seeds


@pytest.mark.parametrize(
    ("text", "cells"),
    [
        ("1", [1, 1.0, "1", "1.00", " 1 ", "+1", "1e0", "01", np.float32(1), np.int64(1), decimal.Decimal("1.0")]),
        ("0.1", [0.1, "0.10", ".1", "1E-1", np.float32(0.1), np.float64(0.1)]),
        ("0", ["0", "-0", "-0.0", -0.0, 0, "0e5"]),
        ("1e+22", []),
        ("10000000000000000000000", [1e22, "1e22", "10000000000000000000000", 10**22]),
        ("", ["", " ", "NA", "NaN", "nan", None, float("nan"), np.nan, pd.NA, pd.NaT, "#N/A", "null", "NAN"]),
        ("None", ["None", " None "]),  # a treatment, say
        ("true", [True, "TRUE", "True", np.True_]),
        ("false", [False, "FALSE", "false"]),
        ("2024-03-01", ["2024-03-01", "2024-03-01 00:00:00", "2024-03-01T00:00", datetime.date(2024, 3, 1)]),
        ("2024-03-01", [datetime.datetime(2024, 3, 1), pd.Timestamp("2024-03-01"), np.datetime64("2024-03-01")]),
        ("2024-03-01T06:30:00", ["2024-03-01 06:30", pd.Timestamp("2024-03-01 06:30")]),
        ("Äthanol 96", ["Äthanol 96", unicodedata.normalize("NFD", " Äthanol  96"), "Äthanol\u00a096"]),
    ],
)
def test_one_text_for_all_ways_to_write_it(text, cells):
    assert [canonical(cell) for cell in cells] == [text] * len(cells)


def test_different_cells_have_different_texts():
    cells = [
        "1",
        "10",
        "-1",
        "0.1",
        "0.10000000000000002",
        "1.1",
        "",
        "none",
        "true",
        "1 g",
        "1,5",
        "١",
        "1_0",
        "1.2.3",
    ]
    cells += ["2024-03-01", "2024-03-02", "2024-13-01", "9007199254740993", "9007199254740992", "water", "Water"]
    assert len({canonical(cell) for cell in cells}) == len(cells)


def test_a_canonical_text_is_its_own():
    rng = np.random.default_rng(0)
    cells = [*(rng.standard_normal(300) * 10.0 ** rng.integers(-300, 300, 300)).tolist(), "a b", "", True, "2024-03-01"]
    for cell in cells:
        assert canonical(canonical(cell)) == canonical(cell) == canonical(str(cell))


def test_a_fingerprint_is_of_names_and_cells_in_any_order():
    assert fingerprint({"a": "1", "b": "2"}) == fingerprint({"b": "2", "a": "1"})
    others = [
        {"a": "1"},
        {"a": "2", "b": "1"},
        {"a": "12"},
        {"a": "1", "c": "2"},
        {"a1": "", "b": "2"},
        {"a": '1", "b": "2'},
    ]
    assert len({fingerprint(cells) for cells in [*others, {"a": "1", "b": "2"}]}) == len(others) + 1


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("0.123456789012345", "0.123456789"),
        ("1234.567890123", "1234.56789"),
        ("0.0000123456789", "1.23457e-05"),
        ("2.500000000001", "2.5"),
        ("-0.123456789012345", "-0.123456789"),
        ("water", "water"),
    ],
)
def test_rounded_by_a_spreadsheet(a, b):
    assert same(canonical(a), canonical(b)) and same(canonical(b), canonical(a))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("0.1234", "0.1235"), ("1", "2"), ("1700000001", "1700000000"), ("1", "-1"), ("0", "1e-9"), ("", "0"),
        ("water", ""), ("inf", "1"), ("12345678", "12345679"), ("1.00001", "1"),
    ],
)  # fmt: skip
def test_other_numbers(a, b):
    assert not same(a, b) and not same(b, a)


def test_a_failure_is_no_number():
    assert close(None, None) and close("low", "low") and close(2, 2.0)
    assert not close(None, 0.0) and not close("2", 2.0) and not close("low", "high")


def measured(cell, classes=False, keep_na=False, failed=()):
    """() if the target's cell is not measured, (None,) if the experiment failed, else (value,)."""
    schema = Schema(("y",), (), None, classes, keep_na, failed)
    (line,) = measurements(Cells(Path("table.csv"), {"y": [cell]}, (2,)), schema)
    return tuple(line.values())


def test_measurements():
    cells = "1.50", " -2e3 ", 3, np.float32(0.5), "−2"  # noqa: RUF001
    assert [measured(cell) for cell in cells] == [(1.5,), (-2000,), (3,), (0.5,), (-2,)]
    unmeasured = "", "NA", None, float("nan"), " ", "None", "n/a", "-", "--", "?", ".", "Null", "missing", "#N/A"
    assert [measured(cell) for cell in unmeasured] == [()] * len(unmeasured)
    assert [measured(cell) for cell in ("failed", "FAIL", " Error ")] == [(None,)] * 3
    assert measured("-999.0", failed=("-999",)) == (None,)


@pytest.mark.parametrize("cell", ["1,5", "12 %", "n.d.", "inf", "<0.1", True, "yes", "2024-03-01", "1_000", "12.5 mg"])
def test_no_measurements(cell):
    with pytest.raises(InputError, match="is not a finite number"):
        measured(cell)


def test_classes():
    """A mark is a class where it is kept; words that may name one are always."""
    usual = ["NA", "n/a", "nan", "NaN", "-", "?", "null"]
    assert [measured(cell, classes=True) for cell in ["", None, float("nan"), *usual]] == [()] * 10
    assert [measured(cell, classes=True, keep_na=True) for cell in usual] == [(cell,) for cell in usual]
    assert measured("", classes=True, keep_na=True) == measured(None, classes=True, keep_na=True) == ()
    names = ["Na", "none", "None", "missing", "failed", "EU"]
    assert [measured(cell, classes=True, failed=()) for cell in names] == [(cell,) for cell in names]
    assert measured("Failed", classes=True, failed=("failed",)) == (None,)


@pytest.mark.parametrize("seed", seeds(30, 8))
def test_columns_are_as_their_cells(seed):
    rng = np.random.default_rng(seed)
    odd = ["", " 7 ", "1.0", "-0.0", "1e16", "1e400", "nan", "inf", "1e-5", "00012", "12345678901234567890", "0.1000"]
    words = [*odd, "1_000", "water", "Äther", "True", "2024-03-01T00:00:00", "٣", None, 3, 2.5, True]
    for choices in (odd, words, ["1.25", "2.5e-3"]):
        columns = {n: [choices[i] for i in rng.integers(len(choices), size=20)] for n in ("b", 'a\\"é', "c")}
        for column in columns.values():
            assert canonicals(column) == [canonical(cell) for cell in column]
