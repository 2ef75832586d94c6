"""Texts that spreadsheet programs would take for formulas: in files that are written, and read back."""

import numpy as np
import openpyxl
import pandas as pd
import pytest

from explore.cli import tables
from explore.core.errors import InputError
from explore.data import texts
from explore.data.table import cells_of
from tests.seeds import seeds

FORMULAS = ("=1+1", "=cmd|' /C calc'!A0", "@SUM(A1)", "+1+1", "-2+3", "-x", "＝1+1", '=HYPERLINK("x";"y")', "=a, b")
PLAIN = ("-3.5", "+2", "-1e5", "-0,5", "-", "+", "water", "'", "it's", "'water'", "", "1=2", "#N/A", "−7", "=")


def test_what_is_taken_for_a_formula():
    for cell in FORMULAS:
        assert texts.neutralised(cell) == f"'{cell}" and texts.restored(f"'{cell}") == cell == texts.restored(cell)
    for cell in PLAIN:
        assert texts.neutralised(cell) == cell == texts.restored(cell)
    for cell in ("'=1+1", "''=1+1", "'-2+3", "\t=1", "\r=1"):
        assert texts.restored(texts.neutralised(cell)) == cell != texts.neutralised(cell)
    assert texts.restored("'-3.5") == "'-3.5"  # a text: without its apostrophe it would be a number


@pytest.mark.parametrize("kind", [".csv", ".xlsx", ".parquet"])
@pytest.mark.parametrize("seed", seeds(10, 3))
def test_what_is_written_is_read_back(seed, kind, tmp_path):
    rng, out = np.random.default_rng(seed), tmp_path / f"out{kind}"
    pieces = np.array([*FORMULAS, *PLAIN, *(f"'{text}" for text in FORMULAS), "''=1", "7", "ü"], object)
    columns = {name: rng.choice(pieces, 12).tolist() for name in ("a", "=b+1", "c", "-d")}
    columns["n"] = [f"{value:.3f}" for value in rng.normal(size=12)]
    cells = cells_of(pd.DataFrame(columns))
    more = pd.DataFrame({"_class": rng.choice(pieces, 12), "_mean": rng.normal(size=12).round(3)})
    notes = tables.write(out, cells, more)
    back = cells_of(out)
    if kind == ".parquet":  # which spreadsheet programs do not open
        back = back._replace(notes=())
    for name, column in columns.items():
        assert list(map(str.strip, column)) == list(back.columns[name]) or name == "n"
        if name == "n":
            assert list(map(float, column)) == list(map(float, back.columns[name]))
    assert list(more["_class"]) == list(back.columns["_class"])
    if kind == ".csv":
        raw = pd.read_csv(out, dtype=str, keep_default_na=False)
        for cell in [*raw, *raw.to_numpy().ravel()]:
            assert (
                not cell
                or cell[0] not in "=+-@\t\r"
                or len(cell) == 1
                or texts.number(cell.replace(",", ".")) is not None
            )
        assert len(notes) == 1 and f"in {out}, since spreadsheet programs would" in notes[0]
    if kind == ".xlsx":
        assert not notes
        sheet = openpyxl.load_workbook(out).active
        assert not [cell for row in sheet for cell in row if cell.data_type in ("f", "e")]


def test_numbers_of_a_text_file_stay_numbers(tmp_path):
    cells = cells_of(pd.DataFrame({"a": ["-3.5", "+2"], "b": [-1, 2]}))
    assert tables.write(tmp_path / "out.csv", cells, pd.DataFrame({"_mean": [-0.5, 1.0]})) == []
    assert (tmp_path / "out.csv").read_text() == "a,b,_mean\n-3.5,-1,-0.5\n+2,2,1\n"


@pytest.mark.parametrize("kind", [".csv", ".xlsx", ".parquet"])
def test_codes_are_written_as_they_stand(tmp_path, kind):
    columns = {"a": ["007", "7"], "b": ["9007199254740993", "1"], "c": ["1E2", "3"], "d": ["A1", "1e5"]}
    tables.write(tmp_path / f"out{kind}", cells_of(pd.DataFrame(columns)), pd.DataFrame({"_mean": [0.5, 1.0]}))
    back = cells_of(tmp_path / f"out{kind}").columns
    assert {name: list(back[name]) for name in columns} == columns


def test_an_apostrophe_that_is_left_out_is_said(tmp_path):
    (tmp_path / "t.csv").write_text("a,'=b\n'=x,1\n=x,2\n'-5,3\n")
    cells = cells_of(tmp_path / "t.csv")
    assert cells.columns == {"a": ["=x", "=x", "'-5"], "=b": ["1", "2", "3"]}
    assert cells.notes == (
        "Column 'a': the apostrophe before '=x' is ignored; it only keeps spreadsheet programs from reading a formula.",
    )


@pytest.mark.parametrize("text", ["a\x07b", "x" * 32_768])
def test_what_an_excel_file_cannot_hold_is_refused(tmp_path, text):
    with pytest.raises(InputError, match="column 'a': an Excel file cannot store .* Write .csv instead"):
        tables.write(tmp_path / "out.xlsx", cells_of(pd.DataFrame({"a": [text]})), pd.DataFrame({"_mean": [1.0]}))
    assert not (tmp_path / "out.xlsx").exists()
