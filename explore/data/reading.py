"""The cells of a table as text, with their line numbers: of a text file, an Excel or Parquet file, or a data frame."""

import csv
import io
import re
import unicodedata
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, time, timedelta
from decimal import Decimal
from itertools import islice, zip_longest
from numbers import Integral, Real
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from explore.core.errors import InputError, listed, one_of, shown
from explore.data import packed, texts

AS_CSV = f"save the table as CSV in UTF-8 with commas, plain or packed ({listed(packed.PACKED[:5])})"
SEPARATORS = ",;\t|"  # the first wins where several would do
POINTER = 8  # bytes of a cell, beside its text
INSTALL = "pip install 'explore-bnn[tables]' reads it, or save the table as CSV"

_MAYBE_THOUSANDS = re.compile(r"|[+-]?(\d{1,3}|[1-9]\d{0,2}\.\d{3})", re.ASCII)
_DECLARED = re.compile(rf"sep=([{SEPARATORS}])\r?\n", re.IGNORECASE)  # a first line for Excel
_NO_VALUE = re.compile(rb"(</f>|<f[^>]*/>)\s*(<v\s*/>)?\s*</c>")  # a formula in the XML of a sheet
_CONVERSIONS: tuple[tuple[Any, Callable[[Any], str]], ...] = (
    (float, lambda value: repr(float(value)) if value == value else ""),
    (str, str.strip),
    ((bool, np.bool_), lambda value: str(value).lower()),
    (Integral, lambda value: str(int(value))),
    (Real, lambda value: repr(float(value)) if value == value else ""),
    (date, lambda value: value.isoformat().removesuffix("T00:00:00")),  # a spreadsheet adds a time to every day
    ((Decimal, time, timedelta), str),
)


class Cells(NamedTuple):
    """The cells of a table as stripped text, without blank rows."""

    path: Path
    columns: Mapping[str, Sequence[str]]  # by name; "" where a line is too short
    lines: tuple[int, ...]  # where each row begins in the file, whose first line is 1
    decimal: str = "."  # the mark in its numbers
    notes: tuple[str, ...] = ()  # sentences on how it was read
    unit: str = "line"  # what `lines` counts
    sheets: tuple[str, ...] = ()  # of an Excel file, the one that was read first

    @property
    def listing(self) -> str:
        """The columns and sheets, for messages."""
        return f"its columns: {listed(self.columns)}{other_sheets(self.sheets)}"

    def where(self, row: int, column: str) -> str:
        """Return the place of a cell, for messages."""
        return f"{self.path}, {self.unit} {self.lines[row]}, column {shown(column)}"


def other_sheets(sheets: Sequence[str]) -> str:
    """Say that an Excel file has more sheets than the first of these, which was read."""
    if len(sheets) < 2:
        return ""
    return f" (sheet {shown(sheets[0])} was read; --sheet reads another: {listed(map(shown, sheets[1:]), 20)})"


def called(name: str) -> str:
    """Normalise a name: "ü" may be written as one character or, as macOS does, as two that look alike."""
    return unicodedata.normalize("NFC", name).strip()


def named(path: Path, names: Iterable[str]) -> tuple[list[str], tuple[str, ...]]:
    """Normalise distinct names of columns; unnamed ones are named by position, with a note."""
    stripped = [called(name) for name in names]
    if not any(stripped):
        raise InputError(f"the first line of {path} is blank; it must name the columns")
    header = [name or f"column {i}" for i, name in enumerate(stripped, 1)]
    if twice := [name for name, count in Counter(header).items() if count > 1]:
        raise InputError(f"{path} has several columns named {listed(twice)}; give each its own name")
    unnamed = [name for name, before in zip(header, stripped, strict=True) if not before]
    note = f"{path} has columns without a name, which are called {listed(unnamed, 5)}."
    return header, (note,) if unnamed else ()


def assembled(path: Path, rows: Iterator[tuple[int, list[str]]], size: int) -> Cells:
    """Make columns from rows with their line numbers, of which the first names the columns.

    A file of `size` bytes that would take far more memory is refused, as where many columns are mostly empty.
    """
    _, names = next(rows, (1, [""]))
    header, notes = named(path, names)
    filled = [(line, cells) for line, cells in rows if any(map(str.strip, cells))]
    if not filled:
        raise InputError(f"{path} has no line of data after its first line, which names the columns")
    for line, cells in filled:
        if len(cells) > len(header):
            raise InputError(f"{path}, line {line}: {len(cells)} cells, but the first line names {len(header)} columns")
    packed.check_size(POINTER * len(header) * len(filled), packed.most_of(size), path)
    columns = zip_longest(header, *(cells for _, cells in filled), fillvalue="")
    stripped = {name: list(map(str.strip, column)) for name, *column in columns}
    return Cells(path, stripped, tuple(line for line, _ in filled), notes=notes)


# Text files -----------------------------------------------------------------------------------------------------------


def parsed(path: Path, content: bytes, decimal: str = ".") -> Cells:
    """Parse a text whose first line names the columns; notes describe everything that `load_csv` does not accept.

    The text is in UTF-8 or Windows-1252, with any of `SEPARATORS`; `decimal` is the mark in its numbers.
    """
    text, notes = _decoded(path, content)
    declared = _DECLARED.match(text)
    mark = declared[1] if declared else _separator(text)
    if mark != ",":
        notes.append(f"The columns of {path} are separated by {mark!r}.")
    cells = assembled(path, islice(_rows(path, text, mark), bool(declared), None), len(content))
    thousands = _thousands(cells) if (mark, decimal) == (";", ".") else ()
    return cells._replace(decimal=decimal, notes=(*notes, *cells.notes, *thousands))


def _decoded(path: Path, content: bytes) -> tuple[str, list[str]]:
    """Return the text, with a note where it is not in UTF-8."""
    notes = []
    if (zero := content.find(b"\0")) >= 0:
        line = content.count(b"\n", 0, zero) + 1
        raise InputError(f"{path}, line {line}, has a NUL byte, as no text in UTF-8 has; {AS_CSV}")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        text = content.decode("cp1252", "replace")  # Latin-1 as Windows writes it
        example = shown(text[max(0, error.start - 20) : error.start + 20])
        notes = [f"{path} is not encoded in UTF-8 and was read as Latin-1 (Windows-1252); line {line} says {example}."]
    if not text.strip():
        raise InputError(f"{path} is empty; its first line must name the columns")
    return text, notes


def _separator(text: str) -> str:
    """Return the delimiter that splits the first rows into most columns, preferably equally many."""

    def widths(mark: str) -> tuple[bool, int]:
        try:
            reader = csv.reader(io.StringIO(text[: 2**24], newline=""), delimiter=mark, strict=True)
            rows = [len(row) for row in islice(reader, 50) if any(map(str.strip, row))]
        except csv.Error:
            return False, 0
        return len(set(rows)) == 1 and rows[0] > 1, rows[0]

    return max(SEPARATORS, key=widths)


def _rows(path: Path, text: str, mark: str) -> Iterator[tuple[int, list[str]]]:
    """Yield every row with the line where it begins: a quoted cell may span several."""
    reader, line = csv.reader(io.StringIO(text, newline=""), delimiter=mark, strict=True), 1
    try:
        for cells in reader:
            yield line, cells
            line = reader.line_num + 1
    except csv.Error as error:
        problem = "a quote is not closed" if str(error) == "unexpected end of data" else str(error)
        raise InputError(f"{path} is not a comma-separated text file: line {line}: {problem}") from None


def _thousands(cells: Cells) -> Iterator[str]:
    """Warn of columns such as 950, 1.200 and 12.500, which may be thousands where semicolons separate."""
    for name, column in cells.columns.items():
        marked = next((cell for cell in column if "." in cell), "")
        if marked and all(map(_MAYBE_THOUSANDS.fullmatch, column)) and any(map(str.isdecimal, column)):
            plain = marked.replace(".", "")
            yield (
                f"Column {shown(name)}: {shown(marked)} is read as {float(marked):g}; if its point marks "
                f"thousands, write {plain}."
            )


def restored(cells: Cells) -> Cells:
    """Remove the apostrophes that keep spreadsheet programs from taking texts and names for formulas."""
    columns: dict[str, Sequence[str]] = {}
    notes = []
    for name, column in cells.columns.items():
        plain = texts.restored(name) if texts.restored(name) not in cells.columns else name
        changed = {c: texts.restored(c) for c in set(column) if c.startswith("'") and texts.restored(c) != c}
        columns[plain] = [changed.get(cell, cell) for cell in column] if changed else column
        if changed:
            notes.append(
                f"Column {shown(plain)}: the apostrophe before {listed(map(shown, sorted(changed.values())), 3)}, "
                "which keeps spreadsheet programs from taking it for a formula, is not part of the text."
            )
    return cells._replace(columns=columns, notes=(*cells.notes, *notes))


# Typed tables ---------------------------------------------------------------------------------------------------------


def of_frame(frame: pd.DataFrame, path: Path = Path("the table")) -> Cells:
    """Return the cells of a data frame, without its index; its rows count from 1."""
    header, notes = named(path, map(str, frame.columns))
    columns = {name: _texts(frame.iloc[:, i].tolist(), path, name) for i, name in enumerate(header)}
    if frame.empty:
        raise InputError(f"{path} has no row")
    return Cells(path, columns, tuple(range(1, len(frame) + 1)), notes=notes, unit="row")


def of_file(path: Path, content: bytes, sheet: str | None = None, strict: bool = True) -> Cells | None:
    """Return the cells of an Excel or Parquet file; None for other content.

    Args:
        path: of the file, for messages.
        content: its bytes.
        sheet: of an Excel file; None: the first.
        strict: whether to refuse a sheet that does not exist, instead of reading the first.
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
    file = parquet_file(io.BytesIO(content))
    groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
    cells = sum(group.column(i).num_values for group in groups for i in range(group.num_columns))
    needed = POINTER * cells + sum(group.total_byte_size for group in groups)
    packed.check_size(needed, packed.most_of(len(content)), path)
    return of_arrow(file.read(), path)


def parquet_file(source: Any) -> Any:
    """Open a Parquet file so that repeated texts are in memory once."""
    import pyarrow
    import pyarrow.parquet as parquet

    schema = parquet.read_schema(source)
    strings = [f.name for f in schema if pyarrow.types.is_string(f.type) or pyarrow.types.is_large_string(f.type)]
    return parquet.ParquetFile(source, read_dictionary=strings)


def of_arrow(table: Any, path: Path) -> Cells:
    """Return the cells of a table, or a batch, of pyarrow; whole numbers stay exact beside empty cells."""
    import pyarrow

    whole = {pyarrow.int64(): pd.Int64Dtype(), pyarrow.uint64(): pd.UInt64Dtype()}
    return of_frame(table.to_pandas(types_mapper=whole.get, ignore_metadata=True), path)


def _excel(path: Path, content: bytes, sheet: str | None, strict: bool) -> Cells:
    packed.check_workbook(content, path)
    with warnings.catch_warnings(), zipfile.ZipFile(io.BytesIO(content)) as archive:
        warnings.simplefilter("ignore")  # of features that do not concern the cells
        book = pd.ExcelFile(io.BytesIO(content), engine="openpyxl")
        if sheet is not None and sheet not in book.sheet_names and strict:
            raise one_of(f"sheet of {path}", sheet, book.sheet_names)
        chosen = sheet if sheet in book.sheet_names else book.sheet_names[0]
        sheets = (str(chosen), *(str(name) for name in book.sheet_names if name != chosen))
        if any(_NO_VALUE.search(archive.read(name)) for name in archive.namelist() if "/worksheets/" in name):
            raise InputError(
                f"{path} has formulas without stored values; open the file in a spreadsheet program and save it, or "
                "save it as CSV"
            )
        frame = book.parse(chosen, header=None, dtype=object, na_filter=False)
    try:
        cells = restored(assembled(path, map(_trimmed, enumerate(frame.to_numpy().tolist(), 1)), len(content)))
    except InputError as error:
        raise InputError(f"{error}{other_sheets(sheets)}") from None
    several = (f"{path} has several sheets{other_sheets(sheets)}.",) if sheet is None and len(sheets) > 1 else ()
    return cells._replace(unit="row", sheets=sheets, notes=(*several, *cells.notes))


def _trimmed(row: tuple[int, list[Any]]) -> tuple[int, list[str]]:
    """Return the number and the texts of a sheet's row, without the empty cells at its end."""
    number, values = row
    cells = list(map(_text, values))
    while cells and not cells[-1]:
        cells.pop()
    return number, cells


def _texts(values: Sequence[Any], path: Path, name: str) -> list[str]:
    """Return the texts of a column's values; equal texts are one object."""
    stripped = {value: value.strip() for value in {v for v in values if type(v) is str}}
    try:
        return [stripped[value] if type(value) is str else _text(value) for value in values]
    except InputError as error:
        raise InputError(f"{path}, column {shown(name)}: {error}") from None


def _text(value: Any) -> str:
    """Return the text in a CSV file."""
    if value is None or value is pd.NA or value is pd.NaT:
        return ""
    for kinds, convert in _CONVERSIONS:
        if isinstance(value, kinds):
            return convert(value)
    raise InputError(f"a cell holds a {type(value).__name__}; it must be a text, a number, a truth value or a date")
