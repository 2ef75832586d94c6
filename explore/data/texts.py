"""Parsers for the strings in cells: numbers, dates, Booleans, missing values and other text."""

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from explore.core.errors import shown

# Marks of missing values, in any case, in columns of numbers, dates and Booleans. In columns of words, only marks count
# that no scientist uses as a category: "Na" is sodium, "none" a treatment.
_NOTHING = frozenset("|na|n/a|#n/a|#na|<na>|nan|-nan|nat|null|none|nil|missing|-|--|?|.".split("|"))
_NO_WORD = frozenset("|NA|N/A|n/a|#N/A|#NA|<NA>|nan|NaN|NaT|null|NULL".split("|"))
_NO_CLASS = _NO_WORD | {"na", "NAN", "-nan", "-NaN", "Null", "-", "--", "?", "."}  # not "Na", "none", "missing", ...
_NO_NAME = {"words": _NO_WORD, "classes": _NO_CLASS}
FAILED = ("failed", "fail", "error")  # marks of a failed experiment, in any case
PAIRS = (("false", "true"), ("no", "yes"), ("n", "y"), ("f", "t"), ("off", "on"))  # in any case; read as 0 and 1

ISO = "ISO8601"
_ISO = re.compile(r"\d{4}-\d\d(-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?\s?(?P<zone>Z|[+-]\d\d:?\d\d)?)?)?", re.ASCII)
_DAYS = (
    "%Y/%m/%d|%Y.%m.%d|%Y-%m-%d|%d.%m.%Y|%d/%m/%Y|%m/%d/%Y|%d-%m-%Y|%m-%d-%Y|%d %b %Y|%d-%b-%Y|%b %d, %Y|%b %d %Y"
).split("|")
_TIMES = ("", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p")

_DIGITS = re.compile(r"[+-]?(0\d+|\d{16,})", re.ASCII)
_BARE_EXPONENT = re.compile(r"\d+[eE]\d+", re.ASCII)
# A number with a unit, an error, an inequality sign or thousands separators; a date, including Jan-24 and 24-Jan as in
# spreadsheets; or a time.
_PLAIN = r"[+\-\u2212]?(\d+([.,]\d*)?|[.,]\d+)(e[+-]?\d+)?"
_GROUPED = r"[+\-\u2212]?\d{1,3}(?P<mark>[.,'\u2019_\s])\d{3}((?P=mark)\d{3})*([.,]\d+)?"
_UNIT = r"\s?([^\W\d_]|[%\u2030\u00b0$\u20ac\u00a3\u00a5])[^\s\d]{0,11}([-+^]{0,2}\d)?(\s[^\s\d]{1,12}){0,2}"
_NUMBER = (
    rf"(([<>\u2264\u2265~\u2248\u00b1$\u20ac\u00a3\u00a5]=?|ca\.?)\s?)?({_GROUPED}|{_PLAIN})"
    rf"({_UNIT}|\(\d+\)|\s?(\u00b1|\+/-)\s?{_PLAIN}({_UNIT})?|/\d+)?|\({_PLAIN}\)"
)
_MONTH = (
    "(jan(uary)?|feb(ruary)?|mar(ch)?|apr(il)?|may|june?|july?|"
    "aug(ust)?|sept?(ember)?|oct(ober)?|nov(ember)?|dec(ember)?)"
)
_DATE = (
    r"((1[5-9]|2[01])\d\d(?P<a>[-/.])\d{1,2}(?P=a)\d{1,2}|\d{1,2}(?P<b>[-/.])\d{1,2}(?P=b)(\d{4}|\d\d))(\D.*)?"
    rf"|{_MONTH}[-/. ]\d\d(\d\d)?|\d\d?[-/. ]{_MONTH}"
)
_TIME = r"\d{1,3}:\d\d(:\d\d([.,]\d+)?)?(\s?[ap]\.?m\.?)?"
_NUMERIC = re.compile(f"{_NUMBER}|{_DATE}|{_TIME}", re.IGNORECASE | re.DOTALL)
# Strings that spreadsheet programs read as formulas, which may run commands. A single character is not a formula.
_FORMULA = re.compile("'*[=+\\-@\t\r\uff1d\uff0b\uff0d\uff20].", re.DOTALL)
POINT = "write a point, or pass --decimal ,"


def absent(cell: str, among: str = "numbers") -> bool:
    """Return whether a cell marks a missing value. Among "words" and "classes", "none" and similar words are values."""
    return cell.casefold() in _NOTHING if among == "numbers" else cell in _NO_NAME[among]


def alike(names: Iterable[str], key: Callable[[str], Any] = str.casefold) -> tuple[str, str] | None:
    """Return the first two different names with equal keys (default: lower case), or None. Skip names with key None."""
    first: dict[Any, str] = {}
    for name in names:
        value = key(name)
        if value is not None and (other := first.setdefault(value, name)) != name:
            return other, name
    return None


def number(cell: str, decimal: str = ".") -> float | None:
    """Parse a number as written in CSV files, including infinity and NaN; None if the cell is not a number."""
    cell = cell.replace("\u2212", "-")  # the typographic minus sign
    if "_" in cell or not cell.isascii():  # Python would accept 1_000 and digits of other scripts
        return None
    if decimal != ".":
        if "." in cell:  # a thousands separator
            return None
        cell = cell.replace(decimal, ".")
    try:
        return float(cell)
    except ValueError:
        return None


def neutralised(cell: str) -> str:
    """Prefix a string with an apostrophe if a spreadsheet program would read it as a formula."""
    if not _FORMULA.match(cell) or absent(cell) or any(number(cell, mark) is not None for mark in ".,"):
        return cell
    return f"'{cell}"


def restored(cell: str) -> str:
    """Remove the apostrophe that `neutralised` added, if any."""
    return cell[1:] if cell.startswith("'") and neutralised(cell[1:]) == cell else cell


def pointed(cell: str, decimal: str) -> str:
    """Return a number with its decimal mark replaced by a point; return other cells unchanged."""
    return cell.replace(decimal, ".") if decimal in cell and number(cell, decimal) is not None else cell


def code(cells: Iterable[str]) -> str:
    """Return the first cell with leading zeros, or with more digits than a float represents exactly; else ""."""
    suspects = filter(_DIGITS.fullmatch, cells)
    return next((cell for cell in suspects if cell.lstrip("+-")[0] == "0" or exact(cell) != number(cell)), "")


def ambiguous(cells: Iterable[str]) -> str:
    """Return the first cell such as 1E2, which may be a number or a name; else ""."""
    return next(filter(_BARE_EXPONENT.fullmatch, cells), "")


def exact(cell: str) -> int | float | None:
    """Parse a number like `number`, but return integers exactly, as int, even if they are large."""
    value = number(cell)
    plain = cell.replace("\u2212", "-")
    return int(plain) if value is not None and len(plain) < 400 and plain.lstrip("+-").isdecimal() else value


def numbers(cells: Sequence[str], decimal: str = ".") -> tuple[np.ndarray, np.ndarray]:
    """Parse numbers [N] (NaN: missing); also return the rows whose cells are neither finite numbers nor missing."""
    plain = "\n".join(cells) if decimal == "." else "_"
    if plain.isascii() and "_" not in plain:  # the common case, which is faster
        try:
            values = np.array([float(cell or "nan") for cell in cells])
            if np.isfinite(values).sum() == len(cells) - cells.count(""):
                return values, np.empty(0, np.int64)
        except ValueError:
            pass
    distinct = {cell: number(cell, decimal) for cell in set(cells)}
    return _values(cells, {cell: v for cell, v in distinct.items() if v is not None and math.isfinite(v)})


def _values(cells: Sequence[str], values: Mapping[str, float]) -> tuple[np.ndarray, np.ndarray]:
    """Look up cells in `values`, [N] (NaN: not found); also return the rows of unknown cells, except NA marks."""
    odd = {cell for cell in set(cells) if cell not in values and not absent(cell)}
    return np.array([values.get(cell, math.nan) for cell in cells], float), np.flatnonzero([c in odd for c in cells])


def flags(cells: Sequence[str], words: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Encode the two `words` as 0 and 1, [N] (NaN: missing); also return the rows with other words."""
    return _values(cells, {cell: float(cell.casefold() == words[1]) for cell in set(cells) if cell.casefold() in words})


def dates(cells: Sequence[str], form: str) -> tuple[np.ndarray, np.ndarray]:
    """Parse dates as days since 1970, [N] (NaN: missing); also return the rows whose cells are not dates.

    `form` is ISO or a `strptime` format, in which %b also accepts full month names. Times without a zone are UTC.
    """
    distinct = [cell for cell in dict.fromkeys(cells) if not absent(cell) and (form != ISO or _ISO.fullmatch(cell))]
    texts = pd.Series(distinct, dtype=object)
    times, full = (pd.to_datetime(texts, format=f, errors="coerce", utc=True) for f in (form, form.replace("%b", "%B")))
    times = times.fillna(full).dt.as_unit("us")  # a fixed unit makes equal dates bit-identical
    days = times.astype(np.int64).to_numpy() / 86_400_000_000
    return _values(cells, {distinct[i]: float(days[i]) for i in np.flatnonzero(times.notna())})


def iso(cells: Sequence[str], form: str) -> list[str]:
    """Rewrite dates as 2024-03-31 or 2024-03-31T14:30:00; return other and ambiguous cells unchanged.

    `form` is as in `dates`, "" if the cells are not dates. If a cell does not fit, all cells determine the format.
    """
    present = list({cell for cell in cells if form and not absent(cell)})
    if form and len(dates(present, form)[1]):
        forms = date_formats(present)
        form = forms[0] if len(forms) == 1 else ISO
    if form in ("", ISO):
        return list(cells)
    moments = (dates(present, form)[0] * 86_400_000_000).round().astype("datetime64[us]").tolist()
    written = {c: when.isoformat().removesuffix("T00:00:00") for c, when in zip(present, moments, strict=True)}
    return [written.get(cell, cell) for cell in cells]


def date_formats(cells: Collection[str]) -> list[str]:
    """Return all date formats that fit every cell; [] if some, but not all, of the times have a time zone."""
    matches = [_ISO.fullmatch(cell) for cell in cells]
    if all(matches):
        zones = {bool(match["zone"]) for match in matches if match and match[2]}
        return [ISO] if len(zones) < 2 and not len(dates(list(cells), ISO)[1]) else []
    texts = list(cells)
    few = texts[:20]
    if not all(6 <= len(cell) <= 40 and any(map(str.isdigit, cell)) for cell in few):
        return []
    marks = [mark for mark in "/.-,:" if mark in few[0]]
    forms = [day + time for day in _DAYS for time in _TIMES if marks == [m for m in "/.-,:" if m in day + time]]
    return [form for form in forms if not len(dates(few, form)[1]) and not len(dates(texts, form)[1])]


def resembles_a_number(cell: str) -> bool:
    """Return whether a cell looks like a number (perhaps with a unit or thousands separators), a date or a time."""
    return number(cell) is not None or (len(cell) <= 60 and bool(_NUMERIC.fullmatch(cell)))


def objection(cell: str, decimal: str = ".") -> str:
    """Return an error message with advice: why a cell is not a number or date like others in its column."""
    if decimal == "." and number(cell) is None and number(cell, ",") is not None:
        return f"{shown(cell)} has a comma, which may be a decimal mark; {POINT}"
    forms = "dates like 2024-03-31 (with a time zone in all or none) and times in hours"
    advice = f"Write numbers without units or thousands separators, {forms}, or declare the column categorical"
    return f"{shown(cell)} is not a finite number or date like the other cells of the column. {advice} (--categorical)"
