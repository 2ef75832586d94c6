"""The cells of a text file as text, with their line numbers."""

import csv
import io
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from explore.core.errors import InputError, listed, shown
from explore.data import packed, texts

AS_CSV = f"save the table as CSV in UTF-8 with commas, plain or packed ({listed(packed.PACKED[:5])})"
SEPARATORS = ",;\t|"  # the first wins where several would do
KINDS = "a text file with commas, semicolons, tabs or bars between its cells, an Excel file (.xlsx) or a Parquet file"
POINTER = 8  # bytes of a cell, beside its text
CHUNK = 1000  # rows that exist as lists at one time; more keep Python's garbage collector busy

_MAYBE_THOUSANDS = re.compile(r"|[+-]?(\d{1,3}|[1-9]\d{0,2}\.\d{3})", re.ASCII)
_JSON = re.compile(r'\s*(\[\s*)?\{\s*"|\s*\[\s*\[')  # objects, or lists of lists
_DECLARED = re.compile(rf"sep=([{SEPARATORS}])\r?\n", re.IGNORECASE)  # a first line for Excel


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
        """The place of a cell, for messages."""
        return f"{self.path}, {self.unit} {self.lines[row]}, column {shown(column)}"


def other_sheets(sheets: Sequence[str]) -> str:
    """Say that an Excel file has more sheets than the first of these, which was read."""
    if len(sheets) < 2:
        return ""
    return f" (sheet {shown(sheets[0])} was read; --sheet reads another: {listed(map(shown, sheets[1:]), 20)})"


def parsed(path: Path, content: bytes, decimal: str = ".") -> Cells:
    """Parse a text whose first line names the columns; notes describe everything that `load_csv` does not accept.

    The text is in UTF-8 or Windows-1252, with any of `SEPARATORS`; `decimal` is the mark in its numbers.
    """
    text, note = _decoded(path, content)
    if _JSON.match(text):
        raise InputError(f"{path} is JSON; a table is {KINDS}")
    declared = _DECLARED.match(text)
    mark = declared[1] if declared else _separator(text)
    separated = f"The columns of {path} are separated by {mark!r}." if mark != "," else ""
    rows = _rows(path, text, mark)
    if declared:
        next(rows)
    _, names = next(rows, (1, [""]))
    cells = assembled(path, names, rows, len(content))
    thousands = _thousands(cells) if (mark, decimal) == (";", ".") else []
    return cells._replace(decimal=decimal, notes=(*filter(None, [note, separated]), *cells.notes, *thousands))


def restored(cells: Cells) -> Cells:
    """Remove the apostrophes that keep spreadsheet programs from taking texts and names for formulas."""
    columns: dict[str, Sequence[str]] = {}
    notes: list[str] = []
    for name, column in cells.columns.items():
        plain = texts.restored(name) if texts.restored(name) not in cells.columns else name
        marked = {cell for cell in column if cell.startswith("'")}
        changed = {cell: texts.restored(cell) for cell in marked if texts.restored(cell) != cell}
        columns[plain] = [changed.get(cell, cell) for cell in column] if changed else column
        if changed:
            notes.append(
                f"Column {shown(plain)}: the apostrophe before {listed(map(shown, sorted(changed.values())), 3)}, "
                "which keeps spreadsheet programs from taking it for a formula, is not part of the text."
            )
    return cells._replace(columns=columns, notes=(*cells.notes, *notes))


def _thousands(cells: Cells) -> list[str]:
    """Warn of columns such as 950, 1.200 and 12.500, which may be thousands where semicolons separate."""
    notes = []
    for name, column in cells.columns.items():
        marked = next((cell for cell in column if "." in cell), "")
        if marked and all(map(_MAYBE_THOUSANDS.fullmatch, column)) and any(map(str.isdecimal, column)):
            notes.append(
                f"Column {shown(name)}: {shown(marked)} is read as {float(marked):g}; if its point marks "
                f"thousands, write {marked.replace('.', '')}."
            )
    return notes


def called(name: str) -> str:
    """Normalise a name: "ü" may be written as one character or, as macOS does, as two that look alike."""
    return unicodedata.normalize("NFC", name).strip()


def named(path: Path, names: Iterable[str]) -> tuple[list[str], tuple[str, ...]]:
    """Normalise distinct names of columns; unnamed ones are named by position, with a note."""
    stripped = [called(name) for name in names]
    if not any(stripped):
        raise InputError(f"the first line of {path} is blank; it must name the columns")
    unnamed = [i for i, name in enumerate(stripped) if not name]
    for i in unnamed:
        stripped[i] = f"column {i + 1}"
    if twice := [name for name, count in Counter(stripped).items() if count > 1]:
        raise InputError(f"{path} has several columns named {listed(twice)}; give each its own name")
    note = f"{path} has columns without a name, which are called {listed([stripped[i] for i in unnamed], 5)}."
    return stripped, (note,) if unnamed else ()


def assembled(path: Path, names: Iterable[str], rows: Iterator[tuple[int, list[str]]], size: int) -> Cells:
    """Make columns from rows with their line numbers, in a file of `size` bytes.

    Cells that would take far more memory are refused, as where there are many columns of which most rows have few.
    """
    header, notes = named(path, names)
    columns: list[list[str]] = [[] for _ in header]
    lines: list[int] = []
    written = 0
    while chunk := list(islice(rows, CHUNK)):
        filled = [(line, cells) for line, cells in chunk if any(map(str.strip, cells))]
        written += sum(sum(map(len, cells)) for _, cells in filled)  # of Excel, where one text may be in many cells
        packed.check_size(written + POINTER * len(header) * (len(lines) + len(filled)), size, path)
        for line, cells in filled:
            if len(cells) > len(header):
                raise InputError(
                    f"{path}, line {line}: {len(cells)} cells, but the first line names {len(header)} columns"
                )
            cells += [""] * (len(header) - len(cells))
        for column, added in zip(columns, zip(*(cells for _, cells in filled), strict=True), strict=False):
            column += map(str.strip, added)
        lines += [line for line, _ in filled]
    if not lines:
        raise InputError(f"{path} has no line of data after its first line, which names the columns")
    return Cells(path, dict(zip(header, columns, strict=True)), tuple(lines), notes=notes)


def _decoded(path: Path, content: bytes) -> tuple[str, str]:
    """The text, and a note where it is not in UTF-8."""
    note = ""
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InputError(f"{path} is encoded in UTF-16, not in UTF-8; {AS_CSV}")
    if b"\0" in content:
        line = content.count(b"\n", 0, content.index(b"\0")) + 1
        raise InputError(f"{path}, line {line}, has a NUL byte, which no text has; {AS_CSV}")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        try:
            text = content.decode("cp1252")  # Latin-1 as Windows writes it
        except UnicodeDecodeError:
            raise InputError(f"{path}, line {line}, is not encoded in UTF-8; {AS_CSV}") from None
        example = shown(text[max(0, error.start - 20) : error.start + 20])
        note = f"{path} is not encoded in UTF-8 and was read as Latin-1 (Windows-1252); line {line} says {example}."
    if not text.strip():
        raise InputError(f"{path} is empty; its first line must name the columns")
    return text, note


def _rows(path: Path, text: str, mark: str) -> Iterator[tuple[int, list[str]]]:
    """Every row with the line where it begins: a quoted cell may span several."""
    reader, line = csv.reader(io.StringIO(text, newline=""), delimiter=mark, strict=True), 1
    try:
        for cells in reader:
            yield line, cells
            line = reader.line_num + 1
    except csv.Error as error:
        problem = "a quote is not closed" if str(error) == "unexpected end of data" else str(error)
        raise InputError(f"{path} is not a comma-separated text file: line {line}: {problem}") from None


def _separator(text: str) -> str:
    """The delimiter that splits the first rows into most columns, preferably equally many."""

    def widths(mark: str) -> tuple[bool, int]:
        rows = []
        try:
            reader = csv.reader(io.StringIO(text[: 2**24], newline=""), delimiter=mark, strict=True)
            rows = [len(row) for row in islice(reader, 50) if any(map(str.strip, row))]
        except csv.Error:
            return False, 0
        return len(set(rows)) == 1 and rows[0] > 1, rows[0]

    return max(SEPARATORS, key=widths)
