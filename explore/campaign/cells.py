"""Canonical strings for cells, so that saving a table in a different format does not change its cells.

Numbers are compared by value ("1.00", 1 and 1.0 become "1"). Booleans and dates have one spelling, text is stripped and
in Unicode's composed form (NFC), and a missing value is "".
"""

import hashlib
import json
import math
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, time
from decimal import Decimal
from functools import cache

from explore.data import texts
from explore.data.texts import number

Value = float | str | None  # a measurement: a number, or the name of a class; None: the experiment failed
DAY = re.compile(r"\d{4}-\d\d-\d\d([T ].*)?")
DIGITS = 6  # fewest significant digits of a number that a spreadsheet saves as displayed, perhaps rounded
WHOLE = 11  # digits of the longest whole numbers that a spreadsheet displays in full


def canonical(cell: object) -> str:
    """Return the canonical string of a cell (a string, or an object from Excel or Parquet)."""
    text = stripped(cell)
    if texts.absent(text, among_words=True):
        return ""
    if text.lower() in ("true", "false"):
        return text.lower()
    if (value := number(text)) is None:
        return _day(text) if DAY.fullmatch(text) else text
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


def _day(text: str) -> str:
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return text
    return when.date().isoformat() if when.timetz() == time() else when.isoformat()


def folded(text: str) -> str:
    """Normalise the case and number format of a string, to compare the string with declared failures."""
    return (canonical(text) or text).casefold()


def fingerprint(cells: Mapping[str, str]) -> str:
    """Return the SHA-256 of a row's canonical cells (by column name); the order of columns does not matter."""
    return hashlib.sha256(json.dumps(sorted(cells.items())).encode()).hexdigest()


def same(a: str, b: str) -> bool:
    """Return whether two canonical cells are equal, except for digits that a spreadsheet may have rounded away."""
    if a == b:
        return True
    short, long = sorted((a, b), key=digits)
    x, y = number(short), number(long)
    if not x or not y or not (math.isfinite(x) and math.isfinite(y)) or (y.is_integer() and abs(y) < 10**WHOLE):
        return False
    rounded_place = math.floor(math.log10(abs(y))) + 1 - max(DIGITS, digits(short))
    return abs(x - y) <= 0.5001 * 10.0**rounded_place


def same_value(a: Value, b: Value) -> bool:
    """Return whether two measurements are equal, except for digits that a spreadsheet may have rounded away."""
    return a == b or (isinstance(a, int | float) and isinstance(b, int | float) and same(canonical(a), canonical(b)))


def has_all(old: Mapping[str, Sequence[Value]], cells: Mapping[str, Value]) -> bool:
    """Return whether the value of each target in `cells` is among the values of that target in `old`."""
    return all(any(same_value(value, other) for other in old.get(t, ())) for t, value in cells.items())


def digits(text: str) -> int:
    """Count the significant digits of a number; return 0 for other strings."""
    value = number(text)
    is_finite = value is not None and math.isfinite(value)
    return len(Decimal(text).normalize().as_tuple().digits) if is_finite else 0
