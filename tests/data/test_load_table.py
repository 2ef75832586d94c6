"""What is said of a table that is not only numbers, and what is refused."""

import datetime
import sys

import numpy as np
import openpyxl
import pandas as pd
import pytest

from explore.core.errors import InputError
from explore.data import Schema, load_table


@pytest.fixture
def csv(tmp_path):
    def write(text, name="lab.csv"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def column(cells, name="a"):
    """A table with one column beside a number and the target."""
    return f"{name},x,y\n" + "".join(f'"{cell}",{(-1) ** i * i / 7},{i}\n' for i, cell in enumerate(cells))


ODD = (
    *(["3.5 mg", "4 mg"], ["12%", "13%"], ["1,234,567", "2"], ["1 000", "2"], ["1_000", "2"], ["٣", "4"]),
    *(["08:30", "09:00"], ["03/04/24", "05/06/24"], ["Jan-24", "feb-24"], ["2-Sep", "1 March"]),
)


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (
            ["1", "3.5 mg"],
            "line 3, column 'a': '3.5 mg' is not a finite number or date .* Write numbers without units",
        ),
        *((cells, f"line 2, column 'a': '{cells[0]}' is not a finite number") for cells in ODD),
        (["1", "<0.1"], "line 3, column 'a': '<0.1' is not a finite number"),
        (["1", "2±1"], "'2±1' is not a finite number"),
        (["1,234", "2,345"], "line 2, column 'a': '1,234' has a comma, which may be a decimal mark;"),
        (["1.5", "2,5", "3,5"], "line 3, .*'2,5' has a comma.*; the column has 2 such cells"),
        (["1", "−1,5"], "'−1,5' has a comma, which may be a decimal mark;"),
        (["1", "inf"], "'inf' is not a finite number"),
        (["1", "1e999"], "'1e999' is not a finite number"),
        (["1", "2", "wet"], "line 4, column 'a': 'wet' is not a finite number or date like the other cells"),
        (["1", "#DIV/0!"], "'#DIV/0!' is not a finite number"),
        (["03/04/2024", "05/06/2024"], "'03/04/2024' may start with the day or with the month"),
        (["01/01/2024", "01/01/2024"], "'01/01/2024' may start with the day or with the month"),
        (["04/04/2024", "05/06/2024"], "line 3, column 'a': '05/06/2024' may start with the day or"),
        (["2024-01-05", "13/01/2024", "2024-01-06"], "line 3, .*'13/01/2024' is not a finite number or date"),
        (["2024-01-05", "2024-02-30", "2024-01-06"], "line 3, .*'2024-02-30' is not a finite number or date"),
        (
            ["2024-01-05T10:00Z", "2024-01-05T10:00"],
            "'2024-01-05T10:00Z' is not a finite number or date .*a time zone in all or none",
        ),
        (["2024-01-05", "yesterday", "2024-01-06"], "line 3, column 'a': 'yesterday' is not a finite number or date"),
        (["(other)", "b", "b"], r"has a cell \(other\) or \(missing\), which"),
    ],
)
def test_what_cannot_be_told_for_certain_is_refused_by_its_cell(csv, cells, message):
    with pytest.raises(InputError, match=message) as found:
        load_table(csv(column(cells)), "y")
    assert str(found.value).isprintable()


@pytest.mark.parametrize(
    ("name", "cells", "why"),
    [
        ("a", ["r1", "r2", "r3", "r4"], "has a different text in every row and is left out"),
        ("sample id", ["11", "7", "9", "8"], "numbers the rows and is left out; use"),
        ("Run no.", ["1", "2", "4", "3"], "numbers the rows and is left out; use"),
        ("", ["0", "1", "2", "3"], "numbers the rows and is left out; use"),
        ("a", ["", "NA", "-", ""], "is empty and left out"),
        ("a", ["all went well, I think", "ok", "the flask broke in half", "so we changed the stirrer"], "is free text"),
        ("a", [*(f"r{i}" for i in range(250)), "r0"], "has a different text in nearly every row"),
    ],
)  # fmt: skip
def test_columns_left_out(csv, name, cells, why):
    table = load_table(csv(column(cells, name)), "y")
    assert table.dataset.features == ("x",) and any(why in note for note in table.notes)
    assert table.dataset.note == "\n".join(table.notes)


def test_codes_dates_and_identifiers_can_be_categories(csv):
    cells = ["03/04/2024", "05/06/2024", "03/04/2024", "05/06/2024"]
    table = load_table(csv(column(cells)), "y", categorical=["a"])
    assert table.dataset.features == ("a = 03/04/2024", "a = 05/06/2024", "x")
    with pytest.raises(InputError, match=": no category occurs in two or more rows. Leave it out"):
        load_table(csv(column(["r1", "r2", "r3"])), "y", categorical=["a"])
    with pytest.raises(InputError, match="unknown categorical column 'b'; allowed: a, x"):
        load_table(csv(column(cells)), "y", categorical=["b"])


def test_rare_categories_are_pooled_and_new_ones_join_them(csv):
    cells = ["water"] * 5 + ["ethanol"] * 3 + ["acetone", "hexane"]
    table = load_table(csv(column(cells)), "y")
    assert table.dataset.features[:3] == ("a = ethanol", "a = water", "a = (other)")
    assert "Column 'a' has 2 rare categories, merged into one: 'acetone', 'hexane'." in table.notes
    new = load_table(csv(column(["water", "toluene", "acetone", "toluene"])), "y", schema=table.schema)
    np.testing.assert_array_equal(new.dataset.x[:, :3], [[0, 1, 0], [0, 0, 1], [0, 0, 1], [0, 0, 1]])
    assert new.notes == ("Column 'a': encoded 2 unknown values, such as 'toluene' in line 3, as (other).",)
    # The most are thirty, the last of which stands for all others.
    many = load_table(csv(column([f"c{i // 3}" for i in range(120)])), "y")
    assert len(many.dataset.features) == 31 and "a = (other)" in many.dataset.features


def test_without_a_pool_a_new_category_is_none_of_the_known_ones(csv):
    table = load_table(csv(column(["u", "u", "v", "v"])), "y")
    new = load_table(csv(column(["u", "w", ""])), "y", schema=table.schema)
    np.testing.assert_array_equal(new.dataset.x[:, :2], [[1, 0], [0, 0], [0, 0]])
    assert "'w' in line 3, as none of the known categories." in new.notes[1]
    assert "encoded 1 empty cell as none of the known categories; no cell was empty when" in new.notes[0]


def test_gaps_that_are_new_count_as_the_median_and_are_said(csv):
    table = load_table(csv(column(["1", "2", "10"])), "y")
    new = load_table(csv(column(["5", "-"])), "y", schema=table.schema)
    np.testing.assert_array_equal(new.dataset.x[:, 0], [5, 2])
    late = "no cell was empty when the schema was made"
    assert new.notes == (f"Column 'a': imputed 1 empty cell, such as '-' in line 3, with the median, 2; {late}.",)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (["1", "2"], ["1", "two"], "line 3, column 'a': 'two' is not a finite number"),
        (["1", "2"], ["1", "83.7 C"], "'83.7 C' is not a finite number without a unit"),
        (["yes", "no"], ["yes", "maybe"], "line 3, column 'a': 'maybe' is not one of no, yes"),
        (
            ["2024-01-05", "2024-01-06"],
            ["2024-01-05", "06/01/2024"],
            "line 3, .*: '06/01/2024' is not a date in the format of the column, or like",
        ),
    ],
)
def test_new_cells_of_another_kind_are_refused(csv, old, new, message):
    schema = load_table(csv(column(old)), "y").schema
    with pytest.raises(InputError, match=message):
        load_table(csv(column(new)), "y", schema=schema)


def test_a_spreadsheet_may_save_dates_in_another_form(csv):
    table = load_table(csv(column(["13.01.2024", "02.03.2024"])), "y")
    assert table.dataset.features[0] == "a (days since 2024-01-13)"
    assert "Column 'a' has dates: '02.03.2024' is read as 2024-03-02." in table.notes
    new = load_table(csv(column(["2024-01-12", "2024-01-14T12:00"])), "y", schema=table.schema)
    np.testing.assert_array_equal(new.dataset.x[:, 0], [-1, 1.5])


def test_a_schema_wants_its_columns_and_ignores_others(csv):
    schema = load_table(csv(column(["1", "2"])), "y").schema
    with pytest.raises(InputError, match="has no column 'a'; its columns: b, x, y"):
        load_table(csv(column(["1", "2"], "b")), "y", schema=schema)
    more = load_table(csv("z,y,x,a\nq,1,2,3\n"), "y", schema=schema)
    assert more.dataset.x.tolist() == [[3, 2]]
    assert more.notes == ("Ignored columns that are not in the schema: z.",)
    with pytest.raises(InputError, match="target 'a' is a feature of the schema. Make"):
        load_table(csv(column(["1", "2"])), "a", schema=schema)


@pytest.mark.parametrize(
    "value",
    [
        None, [], {}, {"columns": 3}, {"columns": [{}]}, {"columns": [{"kind": "text"}]},
        {"columns": [{"kind": "number", "name": "a"}]},
        {"columns": [{"kind": "number", "name": "a", "fill": "1", "gaps": False}]},
        {"columns": [{"kind": "number", "name": "a", "fill": float("nan"), "gaps": False}]},
        {"columns": [{"kind": "date", "name": "a", "fill": 1.0, "gaps": False}]},
        {"columns": [{"kind": "truth value", "name": "a", "fill": 1.0, "gaps": False, "words": ["yes"]}]},
        {"columns": [{"kind": "category", "name": "a", "levels": [1], "rare": [], "gaps": False}]},
    ],
)  # fmt: skip
def test_what_is_no_schema_is_refused(value):
    with pytest.raises(InputError, match="is not a table schema"):
        Schema.from_json(value)


def test_numbers_among_a_majority_of_texts_are_names_and_said(csv):
    table = load_table(csv(column(["RT", "40", "RT", "60", "RT"] * 6)), "y")
    assert table.dataset.features == ("a = 40", "a = 60", "a = RT", "x")
    assert table.notes == (
        "Column 'a' contains text in most rows, so numbers such as '40' are treated as categories too.",
    )
    with pytest.raises(InputError, match="line 4, column 'a': 'RT' is not a finite number"):
        load_table(csv(column(["40", "60", "RT", "RT"])), "y")


def test_codes_stay_as_they_are_written(csv):
    """With leading zeros, with more digits than a number keeps, and between names."""
    padded = load_table(csv(column(["007", "7", "012", "007", "7", "012"])), "y")
    assert padded.dataset.features == ("a = 007", "a = 012", "a = 7", "x")
    assert padded.notes == (
        "Column 'a' has leading zeros, as in '007', so it is read as a category; use --feature 'a' to read numbers.",
        "Column 'a' has '007' and '7', read as two categories.",
    )
    one, other = 2**53, 2**53 + 1
    large = load_table(csv(column([one, other] * 3)), "y")
    assert large.dataset.features == (f"a = {one}", f"a = {other}", "x")
    assert large.dataset.x[:, 1].tolist() == [0, 1] * 3
    assert (
        "has more digits than a number keeps, as in '9007199254740993', so it is read as a category" in large.notes[0]
    )
    wells = load_table(csv(column(["A1", "1E2", "A1", "1E2", "B1", "A1", "100", "100", "B1"])), "y")
    assert wells.dataset.features == ("a = 100", "a = 1E2", "a = A1", "a = B1", "x")
    asked = load_table(csv(column(["1.10", "1.1", "1.10", "1.1", "007", "007"])), "y", categorical=["a"])
    assert asked.dataset.features == ("a = 007", "a = 1.1", "a = 1.10", "x")
    assert asked.notes == ("Column 'a' has '1.10' and '1.1', read as two categories.",)


def test_codes_are_numbers_where_that_is_asked_for_or_said(csv):
    table = load_table(csv(column(["007", "7", "012"])), "y", feature=["a"])
    assert table.dataset.features == ("a", "x") and table.dataset.x[:, 0].tolist() == [7, 7, 12]
    table = load_table(csv(column(["1E2", "3", "2E1"])), "y")
    assert table.dataset.x[:, 0].tolist() == [100, 3, 20]
    assert table.notes == (
        "Column 'a' has '1E2', read as 100; use --categorical if it is a name.",
    )  # fmt: skip
    for plain in (["1e+05", "1e-3", "1.5e3"], ["0.50", "0", "-0.5"], [str(2**53), str(10**18), "7"]):
        assert not load_table(csv(column(plain)), "y").notes
    with pytest.raises(InputError, match="unknown feature 'b'; allowed: a, x"):
        load_table(csv(column(["1", "2"])), "y", feature="b")
    with pytest.raises(
        InputError, match="'a' of .* has a different text in every row and is left out; it cannot be a feat"
    ):
        load_table(csv(column(["r1", "r2", "r3"])), "y", feature="a")


def test_a_code_that_a_spreadsheet_has_changed_is_found_by_its_number(csv):
    table = load_table(csv(column(["007", "012", "1E2"] * 3)), "y", categorical=["a"])
    new = load_table(csv(column(["7", "12", "100", "0012"])), "y", schema=table.schema)
    assert new.dataset.x[:3, :3].tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    assert "Column 'a': '7' is read as '007', the same number." in new.notes
    both = load_table(csv(column(["007", "07", "5"] * 3)), "y", schema=None, categorical=["a"]).schema
    unclear = load_table(csv(column(["7"])), "y", schema=both, allow_missing_target=True)
    assert unclear.dataset.x[0, :3].tolist() == [0, 0, 0] and "unknown value" in unclear.notes[0]


def test_classes_beyond_double_precision_are_two(csv):
    one, other = 2**53, 2**53 + 1
    found = load_table(csv(f"a,y\n1,{one}\n3,{other}\n2,{one}\n5,{other}\n"), "y", task="classification")
    assert found.dataset.classes == (str(one), str(other)) and found.dataset.y.tolist() == [0, 1, 0, 1]


def test_spellings_of_one_category_and_of_two_are_said(csv):
    notes = load_table(csv(column(["7", "7.0", "8", "8"])), "y", categorical=["a"]).notes
    assert notes == ("Column 'a' has '7' and '7.0', read as one category.",)
    notes = load_table(csv(column(["Water", "water", "water", "Water"])), "y").notes
    assert notes == ("Column 'a' has 'Water' and 'water', read as two categories.",)


@pytest.mark.parametrize(
    ("cell", "other", "feature"),
    [("4", "5", "a"), ("yes", "no", "a = yes"), ("2024-01-05", "2024-01-06", "a (days since 2024-01-05)")],
)
def test_a_constant_column_is_kept_and_said_and_so_are_other_values_later(csv, cell, other, feature):
    table = load_table(csv(column([cell, cell])), "y")
    assert table.dataset.features == (feature, "x")
    assert table.notes == ("Column 'a' is constant, so the model cannot learn its effect.",)
    later = csv(column([cell, other, "", other]))
    found = load_table(later, "y", schema=Schema.from_json(table.schema.to_json())).notes
    assert found[1:] == (
        f"Column 'a': 2 new values, such as '{other}' in line 3; the column was constant when the "
        "schema was made, so the model has not learnt its effect.",
    )
    old = table.schema.to_json()  # as it was kept before this was known
    del old["columns"][0]["same"]
    assert len(load_table(later, "y", schema=Schema.from_json(old)).notes) == 1


def test_rows_without_a_target(csv):
    path = csv("a,b,y\n1,2,3\n2,3,\n3,4,NA\n")
    with pytest.raises(
        InputError,
        match="column 'y': empty .line 3., 'NA' .line 4.; .*; for tables with unmeasured rows use explore suggest",
    ):
        load_table(path, "y")
    table = load_table(path, "y", allow_missing_target=True)
    assert table.measured.tolist() == [True, False, False] and table.notes == ("2 of 3 rows have no value of y yet.",)
    np.testing.assert_array_equal(table.dataset.y, [[3], [np.nan], [np.nan]])
    both = load_table(path, ["y", "b"], allow_missing_target=True)
    np.testing.assert_array_equal(both.dataset.y, [[3, 2], [np.nan, 3], [np.nan, 4]])
    with pytest.raises(InputError, match="line 3, column 'y': 'soon' is not a finite number"):
        load_table(csv("a,y\n1,2\n2,soon\n"), "y", allow_missing_target=True)
    classes = load_table(csv("a,y\n1,u\n2,\n3,v\n4,NA\n"), "y", task="classification", allow_missing_target=True)
    assert classes.dataset.y.tolist() == [0, -1, 1, -1] and classes.dataset.classes == ("u", "v")
    none = load_table(csv("a,y\n1,\n2,\n"), "y", task="classification", allow_missing_target=True)
    assert not none.measured.any() and none.dataset.classes == ()


def test_text_files_as_spreadsheets_write_them(csv):
    semicolons = load_table(csv("a;größe, mm;y\n1,5;ü;3\n2,5;ü;4,25\n".encode("cp1252")), "y", decimal=",")
    assert semicolons.dataset.features == ("a", "größe, mm = ü") and semicolons.dataset.y.tolist() == [[3], [4.25]]
    assert semicolons.notes[0].startswith(f"{csv('')} is not UTF-8 and was read as Latin-1 (Windows-1252)")
    assert "Check line 1: " in semicolons.notes[0] and "größe" in semicolons.notes[0]
    assert semicolons.notes[1] == f"The columns of {csv('')} are separated by ';'."
    with pytest.raises(InputError, match="line 2, is not encoded in UTF-8; save the table as CSV in UTF-8"):
        load_table(csv(b"a,y\n1\x81,3\n"), "y")
    with pytest.raises(InputError, match="line 2, column 'a': '1.5' is not"):
        load_table(csv("a;y\n1.5;3\n2.5;4\n"), "y", decimal=",")
    with pytest.raises(InputError, match="unknown decimal mark ';'; allowed: ,, ."):
        load_table(csv("a;y\n1.5;3\n"), "y", decimal=";")
    with pytest.raises(InputError, match=", line 1, has a NUL byte, so it is not UTF-8 text; save the table as CSV"):
        load_table(csv("a,y\n1,3\n".encode("utf-16")), "y")


def test_a_minus_of_typesetting_is_a_minus(csv):
    table = load_table(csv("a,c,y\n−0.5,−1,−2e−1\n1,-1,3\n2,2,4\n3,2.0,5\n"), "y", categorical=["c"])
    assert table.dataset.features == ("a", "c = -1", "c = 2") and table.notes[0].endswith("read as one category.")
    assert table.dataset.x[:, 0].tolist() == [-0.5, 1, 2, 3] and table.dataset.y[:, 0].tolist() == [-0.2, 3, 4, 5]


@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
def test_a_first_line_that_names_the_separator_is_no_row(csv, mark):
    table = load_table(csv(f"sep={mark}\r\na{mark}b{mark}y\r\n1{mark}2{mark}3\r\n4{mark}5{mark}6\r\n"), "y")
    assert table.dataset.features == ("a", "b") and table.dataset.lines == (3, 4)
    with pytest.raises(InputError, match="first line of .* is blank"):
        load_table(csv(f"sep={mark}\n"), "y")


def test_points_that_may_mark_thousands_are_said(csv):
    table = load_table(csv("a;b;c;y\n950;1.5;1.200;1.200\n;2;3.400;950\n12.500;3.125;5.600;7\n"), "y")
    np.testing.assert_array_equal(table.dataset.x[[0, 2], 0], [950, 12.5])
    assert table.notes[1:3] == (
        "Column 'a': '12.500' is read as 12.5; if the point separates thousands, write 12500.",
        "Column 'y': '1.200' is read as 1.2; if the point separates thousands, write 1200.",
    )
    plain = ("950;0.125", "1200;1.200", "1;1.2", "1.125;1.250", "2;3")
    for cells in plain:  # leading zeros, thousands without a point, other digits: numbers as they stand
        text = "a;y\n" + "".join(f"{cell};{i / 4}\n" for i, cell in enumerate(cells.split(";")))
        assert not any("thousands" in note for note in load_table(csv(text), "y").notes), cells
    assert not any("thousands" in note for note in load_table(csv("a,y\n950,1\n1.200,2\n"), "y").notes)


def workbook(path, *sheets):
    book = openpyxl.Workbook()
    book.remove(book.active)
    for i, rows in enumerate(sheets):
        sheet = book.create_sheet(f"sheet {i}")
        for row in rows:
            sheet.append(row)
    book.save(path)
    return path


def test_excel(tmp_path):
    day = datetime.datetime(2024, 3, 1, 12)
    rows = [["a", "when", "ok", None, "y"], [1, day, True, None, 2.5], [], [None, None, False, None, 3]]
    table = load_table(workbook(tmp_path / "b.xlsx", rows, [["other"]]), "y", feature="when")
    assert table.dataset.features == (
        "a", "a = (missing)", "when (days since 2024-03-01)", "when = (missing)", "ok = true"
    )  # fmt: skip
    assert table.dataset.x.tolist() == [[1, 0, 0.5, 0, 1], [1, 1, 0.5, 1, 0]] and table.dataset.lines == (2, 4)
    several = "has several sheets (sheet 'sheet 0' was read; --sheet reads another: 'sheet 1')."
    assert table.notes[0] == f"{tmp_path / 'b.xlsx'} {several}"
    with pytest.raises(InputError, match="b.xlsx, row 3, column 'a': '3 mg' is not a finite number"):
        load_table(workbook(tmp_path / "b.xlsx", [["a", "y"], [1, 2], ["3 mg", 2]]), "y")
    with pytest.raises(InputError, match="row 2, column 1: the formula '=1\\+1' has no stored value"):
        load_table(workbook(tmp_path / "b.xlsx", [["a", "y"], ["=1+1", 2]]), "y")
    with pytest.raises(InputError, match="is blank. It must name the columns"):
        load_table(workbook(tmp_path / "b.xlsx", []), "y")


def test_sheets_are_named_where_one_is_missing_or_wrong(tmp_path):
    """The second sheet is read by its name, and each refusal of the first one names the others."""
    rows = [["a", "y"], [1.5, 2], [0.5, 3], [2.5, 1]]
    path = workbook(tmp_path / "b.xlsx", [["Read me", "of"], ["about the data", "us"]], rows, [])
    with pytest.raises(
        InputError, match=r"has no target 'y'; its columns: Read me, of \(sheet 'sheet 0' was read; --sheet re"
    ):
        load_table(path, "y")
    table = load_table(path, "y", sheet="sheet 1")
    assert table.dataset.x[:, 0].tolist() == [1.5, 0.5, 2.5] and table.notes == ()
    with pytest.raises(InputError, match=r"unknown sheet of \S*b.xlsx 'Data'; allowed: sheet 0, sheet 1, sheet 2"):
        load_table(path, "y", sheet="Data")
    with pytest.raises(
        InputError, match=r"is blank.*\(sheet 'sheet 2' was read; --sheet reads another: 'sheet 0', 'she"
    ):
        load_table(path, "y", sheet="sheet 2")
    with pytest.raises(InputError, match=r"has no column 'a'; .*--sheet reads another: 'sheet 1'"):
        load_table(path, "Read me", schema=table.schema)
    (tmp_path / "b.csv").write_text("a,y\n1,2\n")
    for source in (tmp_path / "b.csv", pd.DataFrame({"a": [1], "y": [2]})):
        with pytest.raises(
            InputError,
            match="applies to Excel files",
        ):
            load_table(source, "y", sheet="sheet 1")


def test_decimal_commas_in_texts_of_excel_and_data_frames(tmp_path):
    rows = [["0,5", 1.5, "RT, wet", "1,5"], [2, 2.5, "dry", 3], ["-1,25e1", 3, "dry", 4], [3, 1, "RT, wet", 5]]
    names = ["a", "b", "c", "y"]
    frame = pd.DataFrame(rows, columns=names)
    for source in (workbook(tmp_path / "b.xlsx", [names, *rows]), frame):
        dataset = load_table(source, "y", decimal=",").dataset
        assert dataset.features == ("a", "b", "c = RT, wet", "c = dry")
        assert dataset.x[:, 0].tolist() == [0.5, 2, -12.5, 3] and dataset.y[:, 0].tolist() == [1.5, 3, 4, 5]
        with pytest.raises(InputError, match="'0,5' has a comma, which may be a decimal mark;"):
            load_table(source, "y")


def test_damaged_and_old_binary_files(tmp_path):
    good = workbook(tmp_path / "b.xlsx", [["a", "y"], [1, 2], [2, 3]])
    pd.DataFrame({"a": [1, 2], "y": [2, 3]}).to_parquet(tmp_path / "p.parquet")
    rng = np.random.default_rng(0)
    for path in (good, tmp_path / "p.parquet"):
        content = path.read_bytes()
        for size in [*rng.integers(4, len(content), 10), len(content) - 1]:
            path.write_bytes(content[:size])
            with pytest.raises(InputError) as found:
                load_table(path, "y")
            assert str(found.value).isprintable()
    old = tmp_path / "old.xls"
    old.write_bytes(b"\xd0\xcf\x11\xe0" + b"\0" * 600)
    with pytest.raises(InputError, match="has an old Excel format, or is encrypted. Save it as .xlsx, or as"):
        load_table(old, "y")
    frame = pd.DataFrame({"a": [[1], [2]], "y": [1, 2]})
    with pytest.raises(InputError, match="column 'a' of the table holds a list; a cell must be a string"):
        load_table(frame, "y")


@pytest.mark.parametrize(("library", "name"), [("openpyxl", "b.xlsx"), ("pyarrow.parquet", "b.parquet")])
def test_a_library_that_is_not_there_is_named_by_its_extra(tmp_path, monkeypatch, library, name):
    path = tmp_path / name
    frame = pd.DataFrame({"a": [1, 2], "y": [2, 3]})
    frame.to_excel(path, index=False) if name.endswith("x") else frame.to_parquet(path)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(
        InputError, match=r"file; install 'explore-bnn\[tables\]' with pip to read it, or save the table as CSV"
    ):
        load_table(path, "y")


@pytest.mark.slow
def test_large_tables_take_seconds(tmp_path):
    import time

    rng = np.random.default_rng(0)
    numbers = {f"x{i}": rng.standard_normal(200_000) for i in range(15)}
    words = {f"c{i}": rng.choice(["u", "v", "w"], 200_000) for i in range(5)}
    path = tmp_path / "large.csv"
    pd.DataFrame(numbers | words | {"y": rng.standard_normal(200_000)}).to_csv(path, index=False)
    begin = time.process_time()
    assert load_table(path, "y").dataset.x.shape == (200_000, 30)
    assert time.process_time() - begin < 20  # 5 on a machine that does nothing else


CONTINENTS = "size,continent\n1,EU\n2,NA\n3,NA\n4,EU\n5,\n6,-\n7,none\n3,none\n"


@pytest.mark.parametrize("frame", [False, True])
def test_marks_are_classes_only_where_they_are_kept(csv, frame):
    """In a data frame too, where None and NaN never are."""
    source = csv(CONTINENTS)
    if frame:
        source = pd.read_csv(source, keep_default_na=False)
        source.loc[4, "continent"] = np.nan
        source = pd.concat([source, pd.DataFrame({"size": [9], "continent": [None]})], ignore_index=True)

    def loaded(*keep_na):
        return load_table(source, "continent", task="classification", allow_missing_target=True, keep_na=keep_na)

    table, note = (
        loaded(),
        (
            "Column 'continent' reads '-' (1 cell), 'NA' (2 cells) as not measured (use --keep-na continent, in Python "
            "keep_na, to read them as classes), and 'none' (2 cells) as classes."
        ),
    )
    assert table.dataset.classes == ("EU", "none") and any(note in said for said in table.notes)
    assert np.flatnonzero(table.measured).tolist() == [0, 3, 6, 7]
    table, note = (
        loaded("continent"),
        "Column 'continent' reads '-' (1 cell), 'NA' (2 cells), 'none' (2 cells) as classes.",
    )
    assert table.dataset.classes == ("-", "EU", "NA", "none") and any(note in said for said in table.notes)
    assert np.flatnonzero(table.measured).tolist() == [0, 1, 2, 3, 5, 6, 7]
    with pytest.raises(InputError, match="'NA' marks a missing value.*or keep it .* --keep-na conti"):
        load_table(source, "continent", task="classification")
    with pytest.raises(InputError, match="keep_na .* names 'size', which is not a class target of"):
        loaded("size")


def test_marks_beside_numbers_that_name_classes(csv):
    loaded = load_table(csv("a,y\n1,0\n2,nan\n3,1\n4,nan\n5,0\n3,1\n"), "y", task="classification", keep_na="y")
    assert loaded.dataset.classes == ("0", "1", "nan") and loaded.dataset.y.tolist() == [0, 2, 1, 2, 0, 1]
    marked = load_table(csv("a,y\n1,0\n2,NA\n3,1\n4,NA\n"), "y", task="classification", keep_na=["y"])
    assert marked.dataset.classes == ("0", "1", "NA")


def test_failed_experiments_have_no_number(csv):
    text = "a,y\n1,2\n2,Failed\n3,\n4,5\n5,n/a\n3,4\n"
    loaded = load_table(csv(text), "y", allow_missing_target=True)
    assert loaded.measured.tolist() == [1, 0, 0, 1, 0, 1] and "1 failed experiment in y." in loaded.notes
    with pytest.raises(
        InputError,
        match="3 cells of targets .* column 'y': 'Failed' .line 3., empty .line 4., 'n/a' .*leave out the row",
    ):
        load_table(csv(text), "y")
    wrong = csv(text.replace("Failed", ">95").replace("1,2", "1,12.5 mg"))
    with pytest.raises(
        InputError, match="2 cells of targets are not finite .* '12.5 mg' .line 2., '>95' .line 3.; write"
    ):
        load_table(wrong, "y", allow_missing_target=True)
