"""Data frames, Excel and Parquet files, whose cells have types: as the text that a CSV file would have of them."""

import io
import warnings
from collections.abc import Iterator, Sequence
from datetime import date, time, timedelta
from decimal import Decimal
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from explore.data import packed
from explore.data.reading import Cells, assembled, named
from explore.errors import InputError, listed, shown

__all__ = ["of_file", "of_frame"]

INSTALL = "pip install 'explore-bnn[tables]' reads it, or save the table as CSV"


def of_frame(frame: pd.DataFrame, path: Path = Path("the table")) -> Cells:
    """The cells of a data frame, without its index; its rows count from 1.

    Raises:
        InputError: for columns whose names are not distinct, no row, or a cell that is no text, number or date.
    """
    return _of_columns(path, map(str, frame.columns), [frame.iloc[:, i].tolist() for i in range(frame.shape[1])])


def of_file(path: Path, content: bytes) -> Cells | None:
    """The cells of an Excel file's first sheet, or of a Parquet file; None where the content is neither.

    Raises:
        InputError: when it cannot be read, or the library that reads it is not installed.
    """
    if content.startswith(b"\xd0\xcf\x11\xe0"):
        raise InputError(
            f"{path} is a file of an old version of Excel or encrypted; save it as .xlsx or as CSV in UTF-8"
        )
    kind, read = "", None
    if content.startswith(b"PAR1"):
        kind, read = "a Parquet", _parquet
    elif content.startswith(b"PK") and b"xl/" in content:
        kind, read = "an Excel", _excel
    if read is None:
        return None
    try:
        return read(path, content)
    except InputError:
        raise
    except ImportError:
        raise InputError(f"{path} is {kind} file; {INSTALL}") from None
    except Exception as error:  # whatever the bytes make of the reader, the file is what is wrong
        raise InputError(f"{path} is {kind} file that cannot be read ({packed.reason(error)}); replace it") from None


def _parquet(path: Path, content: bytes) -> Cells:
    import pyarrow.parquet as parquet

    file = parquet.ParquetFile(io.BytesIO(content))
    groups = [file.metadata.row_group(i).total_byte_size for i in range(file.metadata.num_row_groups)]
    if max(sum(groups), 8 * file.metadata.num_rows * file.metadata.num_columns) > packed.LIMIT:
        raise InputError(
            f"{path} unpacks to more than {packed.LIMIT // packed.MIB} MiB, the most that is unpacked here"
        )
    table = file.read()
    return _of_columns(path, table.column_names, [column.to_pylist() for column in table.columns])


def _excel(path: Path, content: bytes) -> Cells:
    import openpyxl

    packed.check_workbook(content, packed.LIMIT)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of features that say nothing of the cells
        values, formulas = (
            openpyxl.load_workbook(io.BytesIO(content), read_only=True, data_only=only) for only in (True, False)
        )
        rows = _rows(path, values.worksheets[0], formulas.worksheets[0])
        _, names = next(rows, (1, [""]))
        cells = assembled(path, names, rows, strict=False)._replace(unit="row")
    sheets = [sheet.title for sheet in values.worksheets]
    said = f"{path} has {len(sheets)} sheets, of which the first, {shown(sheets[0])}, is read."
    return cells._replace(notes=(said, *cells.notes)) if len(sheets) > 1 else cells


def _rows(path: Path, values: Any, formulas: Any) -> Iterator[tuple[int, list[str]]]:
    """The texts of a sheet's rows, without the empty cells at their ends.

    A formula whose value is not stored would pass for an empty cell.
    """
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


def _of_columns(path: Path, names: Iterator[str] | Sequence[str], columns: Sequence[Sequence[Any]]) -> Cells:
    header, notes = named(path, names, strict=False)
    rows = len(columns[0])
    if not rows:
        raise InputError(f"{path} has no row")
    texts = {name: _texts(values, path, name) for name, values in zip(header, columns, strict=True)}
    return Cells(path, texts, tuple(range(1, rows + 1)), notes=notes, unit="row")


def _texts(values: Sequence[Any], path: Path, name: str) -> list[str]:
    kinds = set(map(type, values))
    if kinds == {str}:
        return [value.strip() for value in values]
    if kinds == {float}:
        return ["" if value != value else repr(value) for value in values]
    return [_text(value, path, row, name) for row, value in enumerate(values, 1)]


def _text(value: Any, path: Path, row: int, column: str) -> str:
    """What a CSV file would have of a cell."""
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
    if isinstance(value, date):  # and a time on it, which a spreadsheet gives every day
        return value.isoformat().removesuffix("T00:00:00")
    if isinstance(value, Decimal | time | timedelta):
        return str(value)
    raise InputError(
        f"{path}, row {row}, column {shown(column)}: it holds a {type(value).__name__}; "
        f"a cell must be {listed(['a text', 'a number', 'a truth value'])} or a date"
    )
