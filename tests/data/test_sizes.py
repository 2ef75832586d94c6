"""Small files that say they are large, and files that never end: refused before they are read."""

import hashlib
import io
import os
import zipfile

import numpy as np
import openpyxl
import pandas as pd
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from explore.core import files
from explore.core.errors import InputError
from explore.data import load_table, map_parquet, packed
from explore.data.columns import Schema
from explore.images import reading


@pytest.fixture
def pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    return tmp_path / "pipe.png"


@pytest.mark.posix
@pytest.mark.parametrize("device", [True, False])
def test_pipes_and_devices_are_refused_by_every_reader(device, pipe, tmp_path):
    path = "/dev/zero" if device else pipe
    schema = Schema.from_json({"columns": [{"kind": "number", "name": "a", "fill": 0.0, "gaps": False}]})
    (tmp_path / "photos" / "one").mkdir(parents=True)
    (tmp_path / "photos" / "one" / "a.png").symlink_to(path)
    readers = {
        "load_table": lambda: load_table(path, "y"),
        "packed": lambda: packed.read(tmp_path / path),
        "map_parquet": lambda: map_parquet(path, schema, tmp_path / "x.npy"),
        "npz": lambda: packed.arrays(tmp_path / path),
        "images": lambda: reading.read(tmp_path / path),
        "folder": lambda: reading.read(tmp_path / "photos"),
        "inputs": lambda: reading.read_inputs(tmp_path / path, (1, 4, 4)),
        "saved": lambda: files.load(tmp_path / path, "saved model", 1),
    }
    for name, read in readers.items():
        with pytest.raises(InputError, match="is a folder, a pipe or a device; pass a regular file"):
            pytest.fail(f"{name} read {read()}")


def stored(path, **members):
    """An .npz file with members of these bytes."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path


def header(shape, dtype="|u1"):
    """The beginning of an array in NumPy's format."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
    return file.getvalue()


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (((2**40,), "<f8"), ((3,), "<i8")),
        (((3, 2**20, 2**20), "|u1"), ((3,), "<i8")),
        (((3, 4, 4), "|u1"), ((3,), "<U100000000")),
        (((3, 4, 4), "|O"), ((3,), "<i8")),
    ],
)
def test_arrays_that_are_not_there_are_refused(tmp_path, x, y):
    path = stored(tmp_path / "bomb.npz", x=header(*x), y=header(*y))  # of which nothing else is there
    with pytest.raises(InputError, match="bomb.npz: not an .npz archive"):
        reading.read(path)


def test_arrays_that_unpack_to_far_more_are_refused(tmp_path):
    np.savez_compressed(tmp_path / "bomb.npz", x=np.zeros((2**13, 128, 129), np.uint8), y=np.arange(2**13))
    for read in (reading.read, lambda path: reading.read_inputs(path, (1, 128, 129)), packed.arrays):
        with pytest.raises(InputError, match="bomb.npz unpacks to more than 128 MiB, the"):
            read(tmp_path / "bomb.npz")


def test_arrays_that_fit_their_file_are_read(tmp_path):
    x, y = np.zeros((40, 9, 9), np.uint8), np.arange(40) % 2
    np.savez_compressed(tmp_path / "plain.npz", x=x, y=y)
    assert reading.read(tmp_path / "plain.npz").x.shape == (40, 1, 9, 9)


def repeated(path, column):
    """A Parquet file of a few KB with a column of many rows."""
    pyarrow.parquet.write_table(pyarrow.table({"a": column, "y": pyarrow.nulls(len(column), pyarrow.int8())}), path)
    assert path.stat().st_size < 2**17
    return path


def test_a_small_parquet_file_of_many_cells_is_refused(tmp_path):
    text = pyarrow.DictionaryArray.from_arrays(pyarrow.array(np.zeros(2**24, np.int8)), ["water"])
    with pytest.raises(InputError, match="bomb.parquet unpacks to more than 128 MiB, the limit for its size"):
        load_table(repeated(tmp_path / "bomb.parquet", text), "y")
    lists = repeated(tmp_path / "lists.parquet", pyarrow.array([[1, 2], [3]]))
    for read in (load_table, lambda path, _: map_parquet(path, Schema(()), tmp_path / "x.npy")):
        with pytest.raises(InputError, match="column 'a' of .*lists.parquet holds a ndarray; a cell must be a string"):
            read(lists, "y")


def test_a_long_text_of_many_rows_is_in_memory_once(tmp_path):
    """Also where blanks are stripped from it."""
    long = "water " * 100 + "."
    text = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0, 1, None] * 2**13), [f" {long} ", "ethanol"])
    path = repeated(tmp_path / "long.parquet", text)
    cells = load_table(path, "y", allow_missing_target=True).cells.columns["a"]
    assert list(cells[:3]) == [long, "ethanol", ""] and len(set(map(id, cells))) == 3


def test_many_columns_of_which_rows_have_few_are_refused(tmp_path):
    path = tmp_path / "wide.csv"
    path.write_text(",".join(f"c{i}" for i in range(20_000)) + "\n" + "1\n" * 900)
    with pytest.raises(InputError, match="wide.csv unpacks to more than 128 MiB, the"):
        load_table(path, "c0")
    book = openpyxl.Workbook(write_only=True)
    sheet = book.create_sheet()
    for row in [[f"c{i}" for i in range(16_000)], *[[1]] * 1_049]:
        sheet.append(row)
    book.save(tmp_path / "wide.xlsx")
    with pytest.raises(InputError, match="wide.xlsx unpacks to more than 128 MiB, the"):
        load_table(tmp_path / "wide.xlsx", "c0")


@pytest.mark.parametrize("ending", [".gz", ".zip"])
def test_what_a_small_file_may_unpack_to(tmp_path, monkeypatch, ending):
    """At most FREE bytes, or RATIO times its size."""
    frame = pd.DataFrame({"a": np.arange(50_000) % 2, "y": 1})
    path = tmp_path / f"t.csv{ending}"
    frame.to_csv(path, index=False)
    monkeypatch.setattr(packed, "FREE", 2**16)
    with pytest.raises(InputError, match="unpacks to more than"):
        packed.read(path)
    monkeypatch.setattr(packed, "RATIO", 10**4)
    assert len(packed.read(path)) == 200_004


def test_workbooks_and_pictures_of_few_bytes(tmp_path, monkeypatch):
    frame = pd.DataFrame({"a": [0] * 5_000, "y": 1})
    frame.to_excel(tmp_path / "t.xlsx", index=False)
    Image.new("RGB", (2_000, 1_000)).save(tmp_path / "a.png")
    monkeypatch.setattr(packed, "FREE", 2**16)
    monkeypatch.setattr(packed, "RATIO", 2)
    with pytest.raises(InputError, match="t.xlsx unpacks to more than"):
        load_table(tmp_path / "t.xlsx", "y")
    with pytest.raises(InputError, match="a.png unpacks to more than"):
        reading.read_inputs(tmp_path / "a.png", (3, 8, 8))


def test_a_saved_model_whose_parts_are_compressed_is_refused(tmp_path):
    """torch would unpack them, and writes none."""
    path = tmp_path / "model.pt"
    files.save(path, "saved model", 1, {"a": [1.0] * 1000})
    assert files.load(path, "saved model", 1) == {"a": [1.0] * 1000}
    packing = io.BytesIO()
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(packing, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
        new.comment = b" " * files.COMMENT
    archive = packing.getvalue()[: -files.COMMENT]
    path.write_bytes(archive + files.MARK + hashlib.sha256(archive).hexdigest().encode())
    with pytest.raises(InputError, match="is not a saved model of explore"):
        files.load(path, "saved model", 1)
