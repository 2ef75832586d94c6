"""Canonical strings for cells, so that saving a table in a different format does not change its cells.

Numbers are compared by value ("1.00", 1 and 1.0 become "1"). Booleans and dates have one spelling, text is stripped and
in Unicode's composed form (NFC), and a missing value is "".
"""

import hashlib
import json
import math
import re
import unicodedata
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime, time
from functools import cache

from explore.data import texts
from explore.data.texts import number

Value = float | str | None  # a measurement: a number, or the name of a class; None: the experiment failed
DAY = re.compile(r"\d{4}-\d\d-\d\d([T ].*)?")
ROUNDING = 5e-6  # relative: a spreadsheet may save a number as displayed, with at least six significant digits


def canonical(cell: object) -> str:
    """Return the canonical string of a cell (a string, or an object from Excel or Parquet)."""
    text = stripped(cell)
    if texts.absent(text, "words"):
        return ""
    if text.lower() in ("true", "false"):
        return text.lower()
    if DAY.fullmatch(text):
        with suppress(ValueError):  # the 30th of February
            when = datetime.fromisoformat(text)
            return when.date().isoformat() if when.timetz() == time() else when.isoformat()
    if (value := number(text)) is None:
        return text
    if text.lstrip("+-").isdigit() and len(text) < 400:  # exact, where double precision would round
        return str(int(text))
    return "" if math.isnan(value) else str(int(value)) if value.is_integer() else repr(value)


def canonicals(column: Iterable[object]) -> list[str]:
    """Return the canonical strings of a column."""
    text = cache(canonical)
    return [text(cell if isinstance(cell, str) else stripped(cell)) for cell in column]


def stripped(cell: object) -> str:
    """Return a cell as a string in Unicode NFC, stripped, with each inner run of whitespace as a single blank."""
    text = "" if cell is None else str(cell)
    return " ".join((text if text.isascii() else unicodedata.normalize("NFC", text)).split())


def folded(text: str) -> str:
    """Normalise the case and number format of a string, to compare the string with declared failures."""
    return (canonical(text) or text).casefold()


def fingerprint(cells: Mapping[str, str]) -> str:
    """Return the SHA-256 of a row's canonical cells (by column name); the order of columns does not matter."""
    return hashlib.sha256(json.dumps(sorted(cells.items())).encode()).hexdigest()


def same(a: str, b: str) -> bool:
    """Return whether two canonical cells are equal, except for digits that a spreadsheet may have rounded away."""
    x, y = number(a), number(b)
    return a == b or (x is not None and y is not None and close(x, y))


def close(a: Value, b: Value) -> bool:
    """Return whether two measurements are equal, except for digits that a spreadsheet may have rounded away."""
    if not (isinstance(a, int | float) and isinstance(b, int | float)):
        return a == b
    are_whole = float(a).is_integer() and float(b).is_integer()
    return a == b or (not are_whole and math.isclose(a, b, rel_tol=ROUNDING))
