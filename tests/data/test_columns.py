"""Columns as they come: generated tables against an oracle in plain Python."""

import datetime
import gzip
import json
import statistics
from collections import Counter

import numpy as np
import pandas as pd
import pytest

from explore.core.errors import InputError
from explore.data import Schema, load_table, texts
from explore.data.reading import of_frame
from tests.seeds import seeds

NAMES = ("category", "code", "padded", "well", "large")  # kinds whose cells are names; of all but code as they stand
KINDS = ("number", "whole", "flag", "date", *NAMES)
NOTHING = {"number": ["", "NA", "n/a", "NaN", "-", "?"], "category": ["", "NA", "N/A", "null"]}
DATES = ("%Y-%m-%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d %b %Y", "%B %d, %Y", "%Y-%m-%dT%H:%M:%S")
WORDS = ("water", "Ethanol", "größe", "a, b", 'say "so"', "x;y", "2-propanol", "Na", "none", "7732-18-5")


def made(seed):
    """(values by name of column, kind by name), None where a value is missing; the targets are in `y`."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(25, 90))
    columns, kinds = {}, {}
    for i in range(rng.integers(1, 7)):
        kind = str(rng.choice(KINDS))
        values = {
            # Ten digits, as openpyxl writes no more than sixteen.
            "number": lambda: [float(f"{v:.10g}") for v in rng.standard_normal(n) * 10.0 ** rng.integers(-8, 8)],
            "whole": lambda: rng.integers(-3, 9, n).tolist(),
            "flag": lambda: (rng.random(n) < 0.6).tolist(),
            # One day beyond the twelfth tells days from months.
            "date": lambda: [
                datetime.date(2020, 1, 13),
                *(datetime.date(2020, 1, 1) + datetime.timedelta(int(d)) for d in rng.integers(0, 900, n - 1)),
            ],
            "category": lambda: rng.choice(rng.choice(WORDS, 4, replace=False), n, p=[0.55, 0.3, 0.12, 0.03]).tolist(),
            "code": lambda: rng.choice([3, 17, 101, 102], n, p=[0.55, 0.3, 0.12, 0.03]).tolist(),
            "padded": lambda: ["007", *rng.choice(["007", "7", "0100", "100"], n - 1).tolist()],
            "well": lambda: ["A1", *rng.choice(["A1", "B12", "1E2", "100"], n - 1, p=[0.5, 0.3, 0.12, 0.08]).tolist()],
            "large": lambda: [2**53 + 1, *rng.choice([2**53, 2**53 + 1, 2**60 - 1], n - 1).tolist()],
        }[kind]()
        if rng.random() < 0.5:
            values = [value if k == 0 or rng.random() > 0.15 else None for k, value in enumerate(values)]
        columns[f"c{i} {kind}"], kinds[f"c{i} {kind}"] = values, kind
    return columns | {"y": rng.standard_normal(n).round(9).tolist()}, kinds


def expected(columns, kinds):
    """Features by name, in the order of the columns."""
    features = {}
    for name, kind in kinds.items():
        values = columns[name]
        there = [value for value in values if value is not None]
        if kind in NAMES:
            counts = Counter(there)
            rare = {value for value, count in counts.items() if count < 2}
            for level in sorted(map(str, counts.keys() - rare)):
                features[f"{name} = {level}"] = [float(str(value) == level) for value in values]
            if rare:
                features[f"{name} = (other)"] = [float(value in rare) for value in values]
            if None in values:
                features[f"{name} = (missing)"] = [float(value is None) for value in values]
            continue
        label = name
        if kind == "date":
            start = min(there)
            there, values = ([v and (v - start).days for v in part] for part in (there, values))
            label = f"{name} (days since {start})"
        elif kind == "flag":
            label = f"{name} = yes"
        fill = statistics.median(there) if kind != "flag" else float(2 * sum(there) > len(there))
        features[label] = [float(fill if value is None else value) for value in values]
        if None in values:
            features[f"{name} = (missing)"] = [float(value is None) for value in values]
    return features


def written(columns, kinds, rng, order, rows, separator=",", decimal="."):
    """CSV with the columns and rows in this order, each column in a spelling of its own."""
    spelled = {}
    for name in order:
        kind = kinds.get(name, "number")
        nothing = NOTHING["category" if kind in NAMES else "number"]
        form = rng.choice(DATES) if kind == "date" else ""
        cells = []
        for value in columns[name]:
            if value is None:
                cells.append(str(rng.choice(nothing)))
            elif kind == "flag":
                cells.append(str(rng.choice(["yes", "Yes", "YES"] if value else ["no", "No"])))
            elif kind == "date":
                cells.append(value.strftime(form))
            elif kind in NAMES and kind != "code":
                cells.append(str(value))
            elif kind == "code":
                cells.append(str(rng.choice([f"{value}", f"{value}{decimal}0"])))
            elif kind == "whole":
                cells.append(str(value))
            else:
                cells.append(repr(value).replace(".", decimal))
        spelled[name] = ['"' + cell.replace('"', '""') + '"' if {separator, '"'} & {*cell} else cell for cell in cells]
    lines = [separator.join(order), *(separator.join(spelled[name][row] for name in order) for row in rows)]
    return "\n".join(lines) + "\n"


def saved(tmp_path, text, rng):
    """The file in one of several encodings and packings."""
    encoding = str(rng.choice(["utf-8", "utf-8-sig", "cp1252"]))
    content = text.encode(encoding)
    path = tmp_path / "table.csv"
    if rng.random() < 0.3:
        path, content = tmp_path / "table.csv.gz", gzip.compress(content)
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("seed", seeds(40, 10))
def test_features_are_those_of_the_row_whatever_the_order_and_the_spelling(seed, tmp_path):
    columns, kinds = made(seed)
    rng = np.random.default_rng((1, seed))
    n = len(columns["y"])
    codes = [name for name, kind in kinds.items() if kind == "code"]
    for separator, decimal in ((",", "."), (";", ","), ("\t", "."), (",", ",")):
        order, rows = rng.permutation(list(columns)).tolist(), rng.permutation(n).tolist()
        path = saved(tmp_path, written(columns, kinds, rng, order, rows, separator, decimal), rng)
        table = load_table(path, "y", categorical=codes, decimal=decimal)
        features = expected(columns, {name: kinds[name] for name in order if name != "y"})
        assert table.dataset.features == tuple(features)
        np.testing.assert_array_equal(table.dataset.x, np.array(list(features.values())).T[rows])
        np.testing.assert_array_equal(table.dataset.y[:, 0], np.array(columns["y"])[rows])
        assert table.dataset.lines == tuple(range(2, n + 2)) and table.measured.all()
        check_round_trip(table)


def check_round_trip(table):
    """The same bits from the schema's JSON, and of some of the rows alone those that they have among all."""
    schema = Schema.from_json(json.loads(json.dumps(table.schema.to_json(), allow_nan=False)))
    assert schema == table.schema
    assert schema.apply(table.cells).x.tobytes() == table.dataset.x.tobytes()
    chosen = list(range(0, len(table.dataset.x), 3))
    columns = {name: [cells[row] for row in chosen] for name, cells in reversed(table.cells.columns.items())}
    part = table.cells._replace(columns=columns, lines=tuple(table.cells.lines[row] for row in chosen))
    assert schema.apply(part).x.tobytes() == table.dataset.x[chosen].tobytes()


@pytest.mark.parametrize("seed", seeds(15, 5))
def test_excel_parquet_and_data_frames_give_what_csv_gives(seed, tmp_path):
    columns, kinds = made(seed)
    codes = [name for name, kind in kinds.items() if kind == "code"]
    rng = np.random.default_rng(seed)
    path = saved(tmp_path, written(columns, kinds, rng, list(columns), range(len(columns["y"]))), rng)
    plain = load_table(path, "y", categorical=codes)
    texts = {
        name: ["yes" if v else "no" if v is not None else None for v in columns[name]]
        for name in kinds
        if kinds[name] == "flag"
    }
    whole = {
        name: pd.array(columns[name], "Int64") for name in kinds if kinds[name] == "large"
    }  # else floats with gaps
    frame = pd.DataFrame(columns | texts | whole)
    frame.astype(dict.fromkeys(whole, str)).replace("<NA>", None).to_excel(tmp_path / "table.xlsx", index=False)
    frame.to_parquet(tmp_path / "table.parquet")
    for source in (frame, tmp_path / "table.xlsx", tmp_path / "table.parquet"):
        table = load_table(source, "y", categorical=codes)
        assert table.schema.features == plain.schema.features
        assert table.dataset.x.tobytes() == plain.dataset.x.tobytes()
        assert table.dataset.y.tobytes() == plain.dataset.y.tobytes()
        assert plain.schema.apply(table.cells).x.tobytes() == plain.dataset.x.tobytes()


@pytest.mark.parametrize("kind", "?bhilqBHILQefdg")
def test_numbers_become_the_same_cells_in_columns_of_any_type(kind):
    values = np.random.default_rng(0).normal(size=200) * np.logspace(-3, 3, 200)
    values = np.append(values, [np.nan, np.inf, -np.inf, 0.0, -0.0] if kind in "efdg" else [0, 1]).astype(kind)
    plain = [[value] for value in values.tolist()]  # each in a column of objects
    frame = pd.DataFrame({"a": values})
    assert list(of_frame(frame).columns["a"]) == list(
        of_frame(pd.DataFrame(plain, columns=["a"], dtype=object)).columns["a"]
    )


JUNK = (
    *("NA - nan inf 1e999 1 2.5 -3 007 +-5 9007199254740993 1E2 '=x 1,5 1.234,5 12% <0.1 1_0 yes no TRUE n".split()),
    *("2024-01-05 2024-02-30 03/04/2024 13/04/2024 08:30 water Water (other) (missing) #DIV/0! ٣ é ' \x07".split()),
    *("", "0x1F", "3.5 mg", "5 May 2024", "a b c d e f", "x" * 500),
)


@pytest.mark.parametrize("seed", seeds(100, 20))
def test_any_cells_give_a_matrix_or_a_sentence(seed, tmp_path):
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(1, 30)), int(rng.integers(1, 5))
    cells = [rng.choice(rng.choice(JUNK, rng.integers(1, 4)), n).tolist() for _ in range(d)]
    names = rng.choice(["id", "a", "a = b", "", "no", "é", "b"], d, replace=False).tolist()
    separator = str(rng.choice([",", ";", "\t", "|"]))
    rows = [[*names, "y"], *([*row, "1"] for row in zip(*cells, strict=True))]
    quoted = (separator.join(f'"{cell}"' for cell in row) for row in rows)
    path = tmp_path / "junk.csv"
    path.write_text("\n".join(quoted), encoding=str(rng.choice(["utf-8", "utf-8-sig"])))
    categorical = [name for name in names if name and rng.random() < 0.2]
    try:
        table = load_table(path, "y", categorical=categorical, decimal=str(rng.choice([".", ","])))
    except InputError as error:
        assert str(error).isprintable() and len(str(error)) < 1000
        return
    assert np.isfinite(table.dataset.x).all() and len(set(table.dataset.features)) == table.dataset.x.shape[1] > 0
    assert all(note.endswith(".") and "\n" not in note for note in table.notes)
    check_round_trip(table)


def test_dates_of_any_form_as_iso():
    cells = ["3/31/2024", "12/1/2023", "", "NA"]
    assert texts.iso(cells, "%m/%d/%Y") == ["2024-03-31", "2023-12-01", "", "NA"]
    assert texts.iso(cells, texts.ISO) == ["2024-03-31", "2023-12-01", "", "NA"]  # one form alone reads them all
    assert texts.iso(["31.3.2024 14:30", "1.4.2024 00:00"], "%d.%m.%Y %H:%M") == ["2024-03-31T14:30:00", "2024-04-01"]
    for left in (["03/04/2024"], ["2024-03-31", "3/31/2024"], ["water"], [""], []):
        assert texts.iso(left, texts.ISO) == left
