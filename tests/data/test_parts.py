import numpy as np
import pandas as pd
import pytest

from explore.core.errors import InputError
from explore.data import load_table
from explore.data.parts import Columns, Places, cells_of


@pytest.fixture
def frame():
    """A table with all types of columns, and gaps."""
    rng = np.random.default_rng(0)
    x, n = rng.normal(size=(90, 2)), 90
    return pd.DataFrame(
        {
            "a": np.where(rng.random(n) < 0.1, np.nan, x[:, 0]),
            "count": pd.array(rng.integers(0, 9, n), dtype="Int64"),
            "kind": rng.choice(["red", "blue", "grün "], n),
            "on": rng.random(n) < 0.5,
            "day": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 99, n), "D"),
            "y": np.where(rng.random(n) < 0.4, np.nan, x[:, 1]),
        }
    )


def write(frame, folder, sizes):
    """Write a frame in parts; return the folder."""
    folder.mkdir(exist_ok=True)
    ends = np.cumsum([0, *sizes])
    for i, (start, stop) in enumerate(zip(ends[:-1], ends[1:], strict=True)):
        frame[start:stop].to_parquet(folder / f"part-{i}.parquet", index=False)
    return folder


def test_a_folder_is_the_table_of_its_parts(frame, tmp_path):
    folder = write(frame, tmp_path / "pool", (30, 0, 41, 19))
    (folder / "_SUCCESS").touch()
    frame.to_parquet(tmp_path / "pool.parquet", index=False)
    loaded, whole = (load_table(path, "y", allow_missing_target=True) for path in (folder, tmp_path / "pool.parquet"))
    for old, new in zip(whole.dataset[:6], loaded.dataset[:6], strict=True):
        np.testing.assert_array_equal(new, old)
    assert loaded.schema == whole.schema
    assert loaded.notes == tuple(note.replace("row 6,", "row 6 of part-0.parquet,") for note in whole.notes)
    assert loaded.cells.columns["kind"] == whole.cells.columns["kind"]
    assert loaded.dataset.lines[30] == "1 of part-2.parquet" and loaded.dataset.lines[89] == "19 of part-3.parquet"


def test_a_few_rows_are_read_from_their_parts(frame, tmp_path):
    cells = cells_of(write(frame, tmp_path / "pool", (30, 41, 19)))
    rows = [71, 3, 30, 29, 89]
    assert isinstance(cells.columns, Columns)
    assert cells.columns.of(rows) == {name: [column[row] for row in rows] for name, column in cells.columns.items()}


def test_names_of_rows_are_found_again():
    places = Places(("a.parquet", "3 of b.parquet"), (2, 5))
    assert [places.row(places[row]) for row in range(5)] == [0, 1, 2, 3, 4]
    wrong = ("0 of a.parquet", "3 of a.parquet", "4 of 3 of b.parquet", "1 of c", "x of a.parquet", "", "1")
    assert [places.row(name) for name in wrong] == [None] * len(wrong)


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (lambda folder: [path.unlink() for path in folder.iterdir()], r"has no Parquet files \(\*.parquet\)"),
        (lambda folder: (folder / "notes.txt").touch(), "also has files that are not Parquet: notes.txt"),
        (lambda folder: (folder / "part-1.parquet").write_bytes(b"PAR1"), "part-1.parquet as a Parquet file"),
        (
            lambda folder: pd.DataFrame({"a": [1], "y": [2.0]}).to_parquet(folder / "part-1.parquet"),
            "column 'a' is double in part-0.parquet, but int64 in part-1.parquet. All parts need the same columns",
        ),
        (
            lambda folder: pd.DataFrame({"a": [1.0], "z": [2.0]}).to_parquet(folder / "part-1.parquet"),
            "column 'y' is double in part-0.parquet, but missing in part-1.parquet",
        ),
    ],
)
def test_parts_that_do_not_fit_are_refused(tmp_path, break_it, words):
    folder = write(pd.DataFrame({"a": [1.0, 2.0], "y": [1.0, 2.0]}), tmp_path / "pool", (1, 1))
    break_it(folder)
    with pytest.raises(InputError, match=words):
        load_table(folder, "y")


@pytest.mark.parametrize("options", [{"decimal": ","}, {"sheet": "first"}])
def test_options_of_files_are_refused(tmp_path, options):
    folder = write(pd.DataFrame({"a": [1.0], "y": [2.0]}), tmp_path / "pool", (1,))
    with pytest.raises(InputError, match="is a folder, which is read as Parquet files. Leave out decimal"):
        load_table(folder, "y", **options)
