"""Readers of text, Excel and Parquet files and data frames; cells become strings with line numbers."""

import csv
import io
import re
import unicodedata
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, time, timedelta
from decimal import Decimal
from itertools import islice, zip_longest
from numbers import Integral, Real
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from explore.core.errors import InputError, listed, one_of, shown
from explore.core.files import check_regular
from explore.data import packed, texts

AS_CSV = f"save the table as CSV in UTF-8 with commas, plain or packed ({listed(packed.PACKED)})"
SEPARATORS = ",;\t|"  # if several fit, the first wins
Names = Collection[str]  # of columns
NUMERIC = [np.dtype(code) for code in "bhilqBHILQefd"]  # whose values become Python numbers
POINTER = 8  # bytes per cell, in addition to its string

_MAYBE_THOUSANDS = re.compile(r"|[+-]?(\d{1,3}|[1-9]\d{0,2}\.\d{3})", re.ASCII)
_DECLARED = re.compile(rf"sep=([{SEPARATORS}])\r?\n", re.IGNORECASE)  # a first line that tells Excel the separator
_CONVERSIONS: tuple[tuple[Any, Callable[[Any], str]], ...] = (
    ((bool, np.bool_), lambda value: str(value).lower()),
    (Integral, lambda value: str(int(value))),
    (Real, lambda value: repr(float(value)) if value == value else ""),
    (date, lambda value: value.isoformat().removesuffix("T00:00:00")),  # spreadsheets add a time to dates
    ((str, Decimal, time, timedelta), lambda value: str(value).strip()),
)


class NoRows(InputError):
    """The error for a table without rows."""


class Cells(NamedTuple):
    """The cells of a table as stripped strings, without blank rows."""

    path: Path
    columns: Mapping[str, Sequence[str]]  # by name; cells that a short line lacks are ""
    lines: Sequence[int | str]  # the line where each row begins in the file, from 1; in a folder also its file
    decimal: str = "."  # the decimal mark of its numbers
    notes: tuple[str, ...] = ()  # sentences on how it was read
    unit: str = "line"  # what `lines` counts: "line" or "row"
    sheets: tuple[str, ...] = ()  # sheet names of an Excel file, first the one that was read

    def require(self, names: Iterable[str], role: str = "column", known: str = "") -> None:
        """Raise InputError if a column is missing, with its role and the known names (default: of all columns)."""
        if missing := [name for name in names if name not in self.columns]:
            known = known or f"its columns: {listed(self.columns)}"
            raise InputError(f"{self.path} has no {role} {shown(missing[0])}; {known}{other_sheets(self.sheets)}")

    def where(self, row: int, column: str) -> str:
        """Return the path, line and column of a cell, for messages."""
        return f"{self.path}, {self.unit} {self.lines[row]}, column {shown(column)}"


def other_sheets(sheets: Sequence[str]) -> str:
    """Return a remark that only the first of `sheets` was read; "" if there is only one sheet."""
    if len(sheets) < 2:
        return ""
    return f" (sheet {shown(sheets[0])} was read; --sheet reads another: {listed(map(shown, sheets[1:]), 20)})"


def called(name: str) -> str:
    """Strip a name and normalise it to Unicode NFC, because "ü" may be one character or two (as on macOS)."""
    return unicodedata.normalize("NFC", name).strip()


def named(path: Path, names: Iterable[str]) -> tuple[list[str], tuple[str, ...]]:
    """Return normalised column names and notes; name unnamed columns by position. Names must be distinct."""
    stripped = [called(name) for name in names]
    if not any(stripped):
        raise InputError(f"the first line of {path} is blank. It must name the columns")
    unnamed = [f"column {i}" for i, name in enumerate(stripped, 1) if not name]
    header = [name or f"column {i}" for i, name in enumerate(stripped, 1)]
    if twice := [name for name, count in Counter(header).items() if count > 1]:
        raise InputError(f"{path} has several columns named {listed(twice)}. Rename them")
    return header, (f"Named columns of {path} without a name {listed(unnamed, 5)}.",) if unnamed else ()


def assembled(path: Path, rows: Iterator[tuple[int, list[str]]], size: int) -> Cells:
    """Build `Cells` from rows (line, cells), header first; refuse cells that need far more memory than `size` bytes."""
    header, notes = named(path, next(rows, (1, [""]))[1])
    lines, filled = [], []
    for line, cells in rows:
        if len(cells) > len(header):
            raise InputError(f"{path}, line {line}: {len(cells)} cells, but the first line names {len(header)} columns")
        if any(map(str.strip, cells)):
            lines.append(line)
            filled.append(cells)
    if not lines:
        raise NoRows(f"{path} has no rows below its header")
    packed.check_size(POINTER * len(header) * len(lines), packed.most_of(size), path)
    columns = zip_longest(header, *filled, fillvalue="")
    return Cells(path, {name: list(map(str.strip, column)) for name, *column in columns}, tuple(lines), notes=notes)


def parsed(path: Path, content: bytes, decimal: str = ".") -> Cells:
    """Parse a text file with a header, in UTF-8 or Windows-1252."""
    notes = []
    if (zero := content.find(b"\0")) >= 0:
        line = content.count(b"\n", 0, zero) + 1
        raise InputError(f"{path}, line {line}, has a NUL byte, so it is not UTF-8 text; {AS_CSV}")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        try:
            text = content.decode("cp1252")  # the Windows variant of Latin-1
        except UnicodeDecodeError:
            raise InputError(f"{path}, line {line}, is not encoded in UTF-8; {AS_CSV}") from None
        example = shown(text[max(0, error.start - 20) :][:40])
        notes = [f"{path} is not UTF-8 and was read as Latin-1 (Windows-1252). Check line {line}: {example}."]
    if not text.strip():
        raise InputError(f"{path} is empty. Its first line must name the columns")
    declared = _DECLARED.match(text)
    mark = declared[1] if declared else max(SEPARATORS, key=lambda mark: _widths(text, mark))
    if mark != ",":
        notes.append(f"The columns of {path} are separated by {mark!r}.")
    cells = assembled(path, islice(_rows(path, text, mark), bool(declared), None), len(content))
    notes += cells.notes
    for name, column in cells.columns.items() if (mark, decimal) == (";", ".") else ():  # such as 950, 1.200, 12.500
        marked = next((cell for cell in column if "." in cell), "")
        if marked and all(map(_MAYBE_THOUSANDS.fullmatch, column)) and any(map(str.isdecimal, column)):
            advice = f"if the point separates thousands, write {marked.replace('.', '')}"
            notes.append(f"Column {shown(name)}: {shown(marked)} is read as {float(marked):g}; {advice}.")
    return cells._replace(decimal=decimal, notes=tuple(notes))


def _widths(text: str, mark: str) -> tuple[bool, int]:
    """Return whether delimiter `mark` splits the first 50 rows into equally many cells (over 1), and how many."""
    try:
        reader = csv.reader(io.StringIO(text[: 2**24], newline=""), delimiter=mark, strict=True)
        rows = [len(row) for row in islice(reader, 50) if any(map(str.strip, row))]
    except csv.Error:
        return False, 0
    return len(set(rows)) == 1 and rows[0] > 1, rows[0]


def _rows(path: Path, text: str, mark: str) -> Iterator[tuple[int, list[str]]]:
    """Yield (number of the first line, cells) of every row; a row may span several lines if a cell is quoted."""
    reader, line = csv.reader(io.StringIO(text, newline=""), delimiter=mark, strict=True), 1
    try:
        for cells in reader:
            yield line, cells
            line = reader.line_num + 1
    except csv.Error as error:
        problem = "a quote is not closed" if str(error) == "unexpected end of data" else str(error)
        raise InputError(f"{path} is not a comma-separated text file: line {line}: {problem}") from None


def restored(cells: Cells) -> Cells:
    """Remove the apostrophes that keep spreadsheet programs from reading cells and column names as formulas."""
    columns, notes = {}, [*cells.notes]
    for name, column in cells.columns.items():
        plain = texts.restored(name) if texts.restored(name) not in cells.columns else name
        changed = {c: texts.restored(c) for c in set(column) if c.startswith("'") and texts.restored(c) != c}
        columns[plain] = [changed.get(cell, cell) for cell in column] if changed else column
        if changed:
            before = f"the apostrophe before {listed(map(shown, sorted(changed.values())), 3)} is ignored"
            notes.append(f"Column {shown(plain)}: {before}; it only keeps spreadsheet programs from reading a formula.")
    return cells._replace(columns=columns, notes=tuple(notes))


def of_frame(frame: pd.DataFrame, path: Path = Path("the table")) -> Cells:
    """Return the cells of a data frame without its index; rows are numbered from 1."""
    header, notes = named(path, map(str, frame.columns))
    if frame.empty:
        raise NoRows(f"{path} has no row")
    columns = {}
    for i, name in enumerate(header):
        values, kind = frame.iloc[:, i].tolist(), frame.dtypes.iloc[i]
        if kind in NUMERIC:  # the common case
            columns[name] = [repr(value) if value == value else "" for value in values]
            continue
        once = {value: value.strip() for value in {v for v in values if type(v) is str}}  # equal strings are one object
        where = f"column {shown(name)} of {path}"
        columns[name] = [once[value] if type(value) is str else _text(value, where) for value in values]
    return Cells(path, columns, tuple(range(1, len(frame) + 1)), notes=notes, unit="row")


def _text(value: Any, where: str = "a cell") -> str:
    """Return a value as the string that a CSV file would have."""
    if value is None or value is pd.NA or value is pd.NaT:
        return ""
    if convert := next((convert for kinds, convert in _CONVERSIONS if isinstance(value, kinds)), None):
        return convert(value)
    allowed = "a cell must be a string, a number, a Boolean, a date or a time"
    raise InputError(f"{where} holds a {type(value).__name__}; {allowed}")


def of_file(path: Path, content: bytes, sheet: str | None = None, strict: bool = True) -> Cells | None:
    """Read an Excel or Parquet file; return None for others. Unless `strict`, an unknown `sheet` means the first."""
    if content.startswith(b"\xd0\xcf\x11\xe0"):
        raise InputError(f"{path} has an old Excel format, or is encrypted. Save it as .xlsx, or as CSV in UTF-8")
    parquet, excel = content.startswith(b"PAR1"), content.startswith(b"PK") and b"xl/" in content
    if sheet is not None and strict and not excel:
        raise InputError(f"sheet (--sheet) applies to Excel files; {path} is not one. Leave it out")
    if not (parquet or excel):
        return None
    with _checked(path, "a Parquet" if parquet else "an Excel"):
        if not parquet:
            return _excel(path, content, sheet, strict)
        file = parquet_file(io.BytesIO(content))
        check_sizes(file.metadata, range(file.metadata.num_row_groups), len(content), path)
        return of_arrow(file.read(), path)


@contextmanager
def _checked(path: Path, kind: str) -> Iterator[None]:
    """Re-raise errors of a reader as InputError."""
    try:
        yield
    except InputError:
        raise
    except ImportError:
        install = "install 'explore-bnn[tables]' with pip to read it, or save the table as CSV"
        raise InputError(f"{path} is {kind} file; {install}") from None
    except Exception as error:  # any reader error means the file is corrupt
        raise InputError(f"cannot read {path} as {kind} file ({packed.reason(error)}). Replace it") from None


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """Open a Parquet file of any size, whose row groups are read one by one. Raise InputError if it is damaged."""
    with _checked(path, "a Parquet"):
        check_regular(path)
        with parquet_file(path) as file:
            for i in range(file.metadata.num_row_groups):
                check_sizes(file.metadata, [i], path.stat().st_size, path)
            yield file


def check_sizes(metadata: Any, groups: Iterable[int], size: int, path: Path) -> None:
    """Raise InputError if row groups of a Parquet file of `size` bytes need far more memory than that."""
    needed = 0
    for group in map(metadata.row_group, groups):
        cells = sum(group.column(i).num_values for i in range(group.num_columns))
        needed += POINTER * cells + group.total_byte_size
    packed.check_size(needed, packed.most_of(size), path)


def parquet_file(source: Any) -> Any:
    """Open a Parquet file so that repeated strings are stored only once in memory."""
    import pyarrow.parquet as parquet

    strings = [f.name for f in parquet.read_schema(source) if str(f.type) in ("string", "large_string")]
    return parquet.ParquetFile(source, read_dictionary=strings)


def of_arrow(table: Any, path: Path) -> Cells:
    """Return the cells of a pyarrow table or record batch; integers stay exact even in columns with empty cells."""
    import pyarrow

    whole = {pyarrow.int64(): pd.Int64Dtype(), pyarrow.uint64(): pd.UInt64Dtype()}
    return of_frame(table.to_pandas(types_mapper=whole.get, ignore_metadata=True), path)


def _excel(path: Path, content: bytes, sheet: str | None, strict: bool) -> Cells:
    import openpyxl

    packed.check_workbook(content, path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about features other than cells
        books = (openpyxl.load_workbook(io.BytesIO(content), read_only=True, data_only=only) for only in (True, False))
        values, formulas = (book.worksheets for book in books)
        names = [worksheet.title for worksheet in values]
        if sheet is not None and sheet not in names and strict:
            raise one_of(f"sheet of {path}", sheet, names)
        number = names.index(sheet) if sheet in names else 0
        sheets = (names.pop(number), *names)
        try:
            cells = restored(assembled(path, _sheet_rows(path, values[number], formulas[number]), len(content)))
        except InputError as error:
            raise InputError(f"{error}{other_sheets(sheets)}") from None
    several = [f"{path} has several sheets{other_sheets(sheets)}."] if sheet is None and len(sheets) > 1 else []
    return cells._replace(unit="row", sheets=sheets, notes=(*several, *cells.notes))


def _sheet_rows(path: Path, *sheets: Any) -> Iterator[tuple[int, list[str]]]:
    """Yield (row number, cells) of a sheet, given as values and as formulas. Each formula must have a stored value."""
    for sheet in sheets:
        sheet.reset_dimensions()  # some programs write wrong dimensions
    both = zip(*(sheet.iter_rows(values_only=True) for sheet in sheets), strict=True)
    for number, (values, formulas) in enumerate(both, 1):
        for column, (value, formula) in enumerate(zip(values, formulas, strict=True), 1):
            if value is None and formula is not None:
                problem = f"the formula {shown(formula)} has no stored value"
                advice = "save the file in a spreadsheet program, or save it as CSV"
                raise InputError(f"{path}, row {number}, column {column}: {problem}; {advice}")
        cells = list(map(_text, values))
        while cells and not cells[-1]:
            cells.pop()
        yield number, cells or [""]
