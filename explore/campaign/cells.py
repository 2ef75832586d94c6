"""What the cells of a table say, however a spreadsheet writes them.

A cell has one canonical text. Numbers count by value ("1.00", 1 and 1.0 are "1"), truth values and days are written in
one way, text is stripped and in Unicode's composed form, and a missing value is "" in whatever way it is spelled. So a
table that was sorted, saved in another encoding or with another separator has the same cells as before.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, time
from decimal import Decimal
from functools import cache
from json.encoder import encode_basestring_ascii as escaped

from explore.core.errors import InputError, shown
from explore.data import texts
from explore.data.texts import number

# What pandas reads as missing, and writes as an empty cell, but for "None", which a treatment may well be called.
MISSING = frozenset(
    "|#N/A|#N/A N/A|#NA|-1.#IND|-1.#QNAN|-NaN|-nan|1.#IND|1.#QNAN|<NA>|N/A|NA|NULL|NaN|NaT|n/a|nan|null".split("|")
)
Value = float | str | None  # what is measured: a number, or the name of a class; None: the experiment failed
DAY = re.compile(r"\d{4}-\d\d-\d\d([T ].*)?")
DIGITS = 6  # that a spreadsheet leaves of any number when it saves what it shows
WHOLE = 11  # digits of whole numbers that it shows in full


def canonical(cell: object) -> str:
    """The one text of a cell, which is text itself or what Excel and Parquet have instead."""
    text = stripped(cell)
    if text in MISSING:
        return ""
    if text.lower() in ("true", "false"):
        return text.lower()
    if (value := number(text)) is not None:
        return "" if math.isnan(value) else _canonical_number(text, value)
    return _day(text) if DAY.fullmatch(text) else text


def stripped(cell: object) -> str:
    """The text of a cell in Unicode's composed form, with single blanks, none at its ends."""
    text = "" if cell is None else str(cell)
    return " ".join((text if text.isascii() else unicodedata.normalize("NFC", text)).split())


def canonicals(column: Sequence[object]) -> list[str]:
    """The canonical texts of many cells, quickly where they are numbers or repeat."""
    texts = [cell if isinstance(cell, str) else stripped(cell) for cell in column]
    slow, plain = cache(canonical), "".join(texts)
    if plain.isascii() and "_" not in plain:
        try:
            values = [float(text) if text else math.nan for text in texts]
        except ValueError:
            return list(map(slow, texts))
        broken = [math.isfinite(value) and not value.is_integer() for value in values]
        return [repr(v) if b else slow(text) for text, v, b in zip(texts, values, broken, strict=True)]
    return list(map(slow, texts))


def _canonical_number(text: str, value: float) -> str:
    if text.lstrip("+-").isdigit() and len(text) < 400:  # exact, where double precision would round
        return str(int(text))
    return str(int(value)) if value.is_integer() else repr(value)


def _day(text: str) -> str:
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return text
    return when.date().isoformat() if when.timetz() == time() else when.isoformat()


def measured(
    cell: object, classes: bool = False, keep_na: bool = False, failed: Collection[str] = texts.FAILED
) -> tuple[Value, ...]:
    """What a cell of a target says: nothing is measured yet, (); it failed, (None,); or a value.

    With `classes` it names a class, in any text, in place of a number; with `keep_na` marks such as NA do so, too. The
    texts in `failed`, `folded`, say that the experiment failed.

    Raises:
        InputError: when it is something else; the message does not say what to do.
    """
    text = stripped(cell)
    if folded(text) in failed:
        return (None,)
    if not text or (texts.unmeasured(text, classes) and not (classes and keep_na)):
        return ()
    if classes:  # among them "None" may well be one
        return (canonical(text) or text,)
    value = number(text)
    if value is None or not math.isfinite(value):
        raise InputError(f"{shown(cell)} is not a finite number")
    return (value,)


def folded(text: str) -> str:
    """A text that says that an experiment failed, in whatever case and, if it is a number, way it is written."""
    return (canonical(text) or text).casefold()


def fingerprint(cells: Mapping[str, str]) -> str:
    """The sha256 of canonical cells by column, in whatever order these come."""
    return hashlib.sha256(json.dumps(sorted(cells.items())).encode()).hexdigest()


def fingerprints(columns: Mapping[str, Sequence[str]]) -> list[str]:
    """Those of rows whose canonical cells come as columns."""
    encoded = []
    for name in sorted(columns):
        start = f"[{escaped(name)}, "
        encoded.append([f"{start}{escaped(cell)}]" for cell in columns[name]])
    return [hashlib.sha256(f"[{', '.join(row)}]".encode()).hexdigest() for row in zip(*encoded, strict=True)]


def same(a: str, b: str) -> bool:
    """Whether two canonical cells are equal, but for the digits that a spreadsheet may not have saved."""
    return a == b or _rounded(*sorted((a, b), key=_digits))


def saved_short(cell: str) -> bool:
    """Whether a canonical cell may have had more digits, or be saved with fewer."""
    return _digits(cell) >= DIGITS


def _rounded(short: str, long: str) -> bool:
    x, y = number(short), number(long)
    if x is None or y is None or not (math.isfinite(x) and math.isfinite(y) and x and y):
        return False
    if y.is_integer() and abs(y) < 10**WHOLE:
        return False
    last = math.floor(math.log10(abs(y))) + 1 - max(DIGITS, _digits(short))  # the place that it was rounded to
    return abs(x - y) <= 0.5001 * 10.0**last


def _digits(text: str) -> int:
    """The significant digits of a number, 0 of anything else."""
    value = number(text)
    if value is None or not math.isfinite(value):
        return 0
    return len(Decimal(text).normalize().as_tuple().digits)
