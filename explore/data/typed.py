"""Typed tables (data frames, Excel and Parquet files), converted to the text of a CSV file.

A Parquet file that is larger than memory becomes features in a memory map.
"""

import io
import os
import warnings
from collections.abc import Iterator, Sequence
from datetime import date, time, timedelta
from decimal import Decimal
from numbers import Integral, Real
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from explore.core.errors import InputError, one_of, shown
from explore.core.files import check_regular
from explore.data import packed
from explore.data.columns import Schema
from explore.data.reading import POINTER, Cells, assembled, named, other_sheets, restored

ROWS = 2**14  # of a Parquet file, whose values are in memory at one time
ALLOWED = "a cell must be a text, a number, a truth value or a date"
INSTALL = "pip install 'explore-bnn[tables]' reads it, or save the table as CSV"


def of_frame(frame: pd.DataFrame) -> Cells:
    """The cells of a data frame, without its index; its rows count from 1."""
    path = Path("the table")
    header, notes = named(path, map(str, frame.columns))
    columns = {name: _texts(frame.iloc[:, i].tolist(), path, name) for i, name in enumerate(header)}
    return _complete(path, columns, notes)


def of_file(path: Path, content: bytes, sheet: str | None = None, strict: bool = True) -> Cells | None:
    """The cells of a sheet of an Excel file (None: the first), or of a Parquet file; None for other content.

    Unless `strict`, the first sheet is read in place of one that does not exist.
    """
    if content.startswith(b"\xd0\xcf\x11\xe0"):
        raise InputError(
            f"{path} is a file of an old version of Excel or encrypted; save it as .xlsx or as CSV in UTF-8"
        )
    parquet, excel = content.startswith(b"PAR1"), content.startswith(b"PK") and b"xl/" in content
    if sheet is not None and strict and not excel:
        raise InputError(f"{path} is no Excel file and has no sheets; leave --sheet out")
    if not (parquet or excel):
        return None
    kind = "a Parquet" if parquet else "an Excel"
    try:
        return _parquet(path, content) if parquet else _excel(path, content, sheet, strict)
    except InputError:
        raise
    except ImportError:
        raise InputError(f"{path} is {kind} file; {INSTALL}") from None
    except Exception as error:  # any reader error means the file is corrupt
        raise InputError(f"{path} is {kind} file that cannot be read ({packed.reason(error)}); replace it") from None


def _parquet(path: Path, content: bytes) -> Cells:
    file = _parquet_file(io.BytesIO(content))
    groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
    cells = sum(group.column(i).num_values for group in groups for i in range(group.num_columns))
    needed = POINTER * cells + sum(group.total_byte_size for group in groups)
    packed.check_size(needed, len(content), path)
    header, notes = named(path, file.schema_arrow.names)
    columns: dict[str, list[str]] = {name: [] for name in header}
    distinct: dict[str, str] = {}  # so that a text which many cells have is in memory once
    for batch in file.iter_batches(ROWS):
        for name, values in zip(header, batch.columns, strict=True):
            column = columns[name]
            new = _texts(_values(values), path, name, len(column) + 1)
            packed.check_size(needed := needed + sum(map(len, new)), len(content), path)
            column += [distinct.setdefault(text, text) for text in new]
    return _complete(path, columns, notes)


class MappedTable(NamedTuple):
    """The features of a file."""

    x: np.memmap  # float64 [N, D], read-only
    notes: tuple[str, ...]  # sentences on imputed and unknown cells, with the rows, which count from 1


def map_parquet(source: str | os.PathLike[str], schema: Schema, target: str | os.PathLike[str]) -> MappedTable:
    """Write the features of a Parquet file's rows, in their order, to a file of NumPy (.npy), and map it.

    Args:
        source: the Parquet file; columns that are not in the schema are ignored.
        schema: `load_table(measured, ...).schema` of the rows that are measured.
        target: the file to write, from which the map reads for as long as it is used.

    Raises:
        InputError: when the file cannot be read, has no row, lacks a column, or has a cell that is not of its
            column's kind.
    """
    import pyarrow

    path = shown(os.fspath(source))
    try:
        check_regular(Path(source))
        file = _parquet_file(source)
    except (OSError, pyarrow.ArrowInvalid) as error:
        raise InputError(f"{path} is no Parquet file that can be read ({error})") from None
    if not file.metadata.num_rows:
        raise InputError(f"{path} has no row")
    x = np.lib.format.open_memmap(target, "w+", np.float64, (file.metadata.num_rows, len(schema.features)))
    start, notes = 0, []
    for batch in file.iter_batches(ROWS):
        matrix, stop = schema.apply(of_frame(batch.to_pandas())), start + len(batch)
        x[start:stop] = matrix.x
        notes += [f"Rows {start + 1} to {stop}: {note}" for note in matrix.notes]
        start = stop
    x.flush()
    return MappedTable(np.load(Path(target), mmap_mode="r"), tuple(notes))


def _parquet_file(source: Any) -> Any:
    """Open a Parquet file so that repeated texts are in memory once; refuse columns of lists or records."""
    import pyarrow
    import pyarrow.parquet as parquet

    schema = parquet.read_schema(source)
    for field in schema:
        if pyarrow.types.is_nested(field.type):
            raise InputError(f"column {shown(field.name)} holds a {field.type}; {ALLOWED}")
    texts = [f.name for f in schema if pyarrow.types.is_string(f.type) or pyarrow.types.is_large_string(f.type)]
    return parquet.ParquetFile(source, read_dictionary=texts)


def _values(array: Any) -> list[Any]:
    """The values of an array of a Parquet file; equal ones in a dictionary are one object."""
    import pyarrow

    if not isinstance(array, pyarrow.DictionaryArray):
        return list(array.to_pylist())
    used = array.indices.unique()
    values = dict(zip(used.to_pylist(), array.dictionary.take(used).to_pylist(), strict=True))
    return [values[i] for i in array.indices.to_pylist()]


def _excel(path: Path, content: bytes, sheet: str | None, strict: bool) -> Cells:
    import openpyxl

    packed.check_workbook(content, path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of features that do not concern the cells
        values, formulas = (
            openpyxl.load_workbook(io.BytesIO(content), read_only=True, data_only=only) for only in (True, False)
        )
        sheets = [sheet.title for sheet in values.worksheets]
        if sheet is not None and sheet not in sheets and strict:
            raise one_of(f"sheet of {path}", sheet, sheets)
        number = sheets.index(sheet) if sheet in sheets else 0
        sheets.insert(0, sheets.pop(number))
        try:
            rows = _rows(path, values.worksheets[number], formulas.worksheets[number])
            _, names = next(rows, (1, [""]))
            cells = restored(assembled(path, names, rows, len(content)))
        except InputError as error:
            raise InputError(f"{error}{other_sheets(sheets)}") from None
    notes = cells.notes
    if sheet is None and len(sheets) > 1:
        notes = (f"{path} has several sheets{other_sheets(sheets)}.", *notes)
    return cells._replace(unit="row", sheets=tuple(sheets), notes=notes)


def _rows(path: Path, values: Any, formulas: Any) -> Iterator[tuple[int, list[str]]]:
    """The texts of a sheet's rows, without the empty cells at their ends; a formula needs a stored value."""
    values.reset_dimensions()  # some programs write wrong ones
    formulas.reset_dimensions()
    both = zip(values.iter_rows(values_only=True), formulas.iter_rows(values_only=True), strict=True)
    for number, (row, written) in enumerate(both, 1):
        for column, (value, text) in enumerate(zip(row, written, strict=True), 1):
            if value is None and text is not None:
                raise InputError(
                    f"{path}, row {number}, column {column}: the formula {shown(text)} has no stored value; open "
                    "the file in a spreadsheet program and save it, or save it as CSV"
                )
        texts = [_text(value, path, number, str(column + 1)) for column, value in enumerate(row)]
        while texts and not texts[-1]:
            texts.pop()
        yield number, texts or [""]


def _complete(path: Path, columns: dict[str, list[str]], notes: tuple[str, ...]) -> Cells:
    rows = len(next(iter(columns.values())))
    if not rows:
        raise InputError(f"{path} has no row")
    return Cells(path, columns, tuple(range(1, rows + 1)), notes=notes, unit="row")


def _texts(values: Sequence[Any], path: Path, name: str, first: int = 1) -> list[str]:
    """The texts of a column's values, starting in row `first`; equal texts are one object."""
    stripped = {value: value.strip() for value in {v for v in values if type(v) is str}}
    return [
        stripped[value] if type(value) is str else _text(value, path, row, name)
        for row, value in enumerate(values, first)
    ]


def _text(value: Any, path: Path, row: int, column: str) -> str:
    """The text in a CSV file."""
    if type(value) is float:  # as most are
        return "" if value != value else repr(value)
    if value is None or value is pd.NaT or value is pd.NA or value != value:
        return ""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, bool | np.bool_):
        return str(value).lower()
    if isinstance(value, Integral):
        return str(int(value))
    if isinstance(value, Real):
        return repr(float(value))
    if isinstance(value, date):  # a spreadsheet adds a time to every day
        return value.isoformat().removesuffix("T00:00:00")
    if isinstance(value, Decimal | time | timedelta):
        return str(value)
    raise InputError(f"{path}, row {row}, column {shown(column)}: it holds a {type(value).__name__}; {ALLOWED}")
