"""Output files with the columns of a user's table and additional columns, such as predictions."""

import csv
import io
import itertools
import re
import zipfile
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

import numpy as np
import pandas as pd

from explore.core import files
from explore.core.errors import InputError, listed, shown
from explore.data import packed, texts
from explore.data.reading import Cells

LONGEST = 32_767  # maximum number of characters in an Excel cell
WRITERS = {".csv": "", ".xlsx": "openpyxl", ".parquet": "pyarrow"}  # suffix -> library that is needed


def check(out: Path, table: Path, command: str, column: str, kinds: Collection[str] = tuple(WRITERS)) -> None:
    """Raise InputError if `out` is the table, has a suffix not in `kinds`, or is a file not written by `command`.

    Files written by `command` have a column that matches the regular expression `column`.
    """
    if out.suffix.lower() not in kinds:
        raise InputError(f"--out is {shown(str(out))}; its name must end with {' or '.join(kinds)}")
    if out.exists() and out.samefile(table):
        raise InputError("--out is the input table, which must not be overwritten. Choose another file")
    if out.exists() and not (out.is_file() and any(re.fullmatch(column, name) for name in _header(out))):
        raise InputError(f"{out} exists, and was not written by explore {command}; choose another --out")


def _header(path: Path) -> list[str]:
    """Return the column names of a file, for each possible delimiter, or [] if the file is not a table."""
    try:
        if path.suffix.lower() == ".xlsx":
            packed.check_workbook(path.read_bytes(), path)
            return list(map(str, pd.read_excel(path, nrows=0)))
        if path.suffix.lower() == ".parquet":
            import pyarrow.parquet as parquet

            return list(parquet.read_schema(path).names)
        text = path.read_text(encoding="utf-8-sig", errors="replace")
        return [name for mark in ",;\t" for name in next(csv.reader(io.StringIO(text), delimiter=mark), [])]
    except (csv.Error, ImportError, ValueError, LookupError, zipfile.BadZipFile):  # neither text nor a workbook
        return []


def write(out: Path, cells: Cells, more: pd.DataFrame, keep: Callable[[Path], None] | None = None) -> list[str]:
    """Write the columns of the table, then `more`; return notes on added apostrophes, see `texts.neutralised`.

    `keep` gets the path of the finished file before it replaces `out`.
    """
    notes: list[str] = []
    kind = out.suffix.lower()
    columns = {name: list(column) for name, column in cells.columns.items() if name not in more}
    typed = columns if kind == ".csv" else {name: _typed(column, cells.decimal) for name, column in columns.items()}
    frame = pd.concat([pd.DataFrame(typed, index=more.index), more], axis=1)
    try:
        with files.replacing(out) as draft:
            if kind == ".csv":
                # Excel recognises UTF-8 by the byte order mark.
                written = [*map(str, frame.columns), *(cell for column in columns.values() for cell in column)]
                code = "utf-8" if all(map(str.isascii, written)) else "utf-8-sig"
                mark, words = ";" if cells.decimal == "," else ",", frame.select_dtypes(exclude="number")
                notes = apostrophes(out, [*frame, *words.to_numpy().ravel("F")])
                # An apostrophe before each string that a spreadsheet program would read as a formula.
                words = words.map(lambda cell: texts.neutralised(cell) if isinstance(cell, str) else cell)
                safe, number = frame.assign(**words).rename(columns=texts.neutralised), "%.8g"
                safe.to_csv(draft, index=False, sep=mark, decimal=cells.decimal, float_format=number, encoding=code)
            elif kind == ".xlsx":
                _write_excel(draft, frame)
            else:
                frame.to_parquet(draft, index=False)
            if keep:
                keep(draft)
    except ImportError:
        raise InputError(f"{out} needs {WRITERS[kind]}; pip install 'explore-bnn[tables]', or write .csv") from None
    except OSError as error:
        raise InputError(f"cannot write {out}: {error.strerror}; choose another --out") from error
    return notes


def apostrophes(file: object, written: Iterable[object]) -> list[str]:
    """Return a list of one note on strings that a CSV file stores with a leading apostrophe, or [] without any."""
    changed = [text for text in dict.fromkeys(written) if isinstance(text, str) and texts.neutralised(text) != text]
    if not changed:
        return []
    return [
        f"Wrote an apostrophe before {listed(map(shown, changed), 3)} in {file}, since spreadsheet programs would read "
        f"{'a formula' if len(changed) == 1 else 'formulas'}. explore ignores it when reading."
    ]


def _write_excel(path: Path, frame: pd.DataFrame) -> None:
    """Write an Excel file in which strings stay strings, even if they look like formulas."""
    from openpyxl.cell.cell import ILLEGAL_CHARACTERS_RE

    for name, cell in ((n, c) for n, column in frame.select_dtypes(exclude="number").items() for c in (n, *column)):
        if isinstance(cell, str) and (ILLEGAL_CHARACTERS_RE.search(cell) or len(cell) > LONGEST):
            raise InputError(
                f"column {shown(name)}: an Excel file cannot store {shown(cell)}: it has control characters or more "
                f"than {LONGEST} characters. Write .csv instead"
            )
    with pd.ExcelWriter(path, engine="openpyxl") as writer:
        frame.to_excel(writer, index=False)
        for cell in itertools.chain.from_iterable(writer.book.active.iter_rows()):
            cell.value = None if cell.value == "" else cell.value  # blank instead of an empty string
            if isinstance(cell.value, str) and texts.restored(cell.value) != cell.value:
                cell.value = f"'{cell.value}"
            if isinstance(cell.value, str) and cell.data_type != "s":
                cell.data_type, cell.quotePrefix = "s", True  # stays a string when a user edits it


def _typed(column: list[str], decimal: str) -> list[str] | np.ndarray:
    """Convert a column to numbers, unless a cell is not numeric or would lose digits or leading zeros."""
    values, odd = texts.numbers(column, decimal)
    inexact = any(len(re.sub(r"\D", "", cell.lower().partition("e")[0]).lstrip("0")) > 17 for cell in column)
    return column if len(odd) or inexact or texts.code(column) or texts.ambiguous(column) else values
