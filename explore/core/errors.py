"""The exceptions that users see as one sentence, and how messages show what the user gave."""

import os
import sysconfig
import textwrap
import traceback
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from numbers import Integral, Real
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

UNITS = (1e-150, 1e150)  # of a deviation: double precision holds its square, and that of what is a little larger


class InputError(ValueError):
    """What the user gave is wrong; the message says what, and what is allowed.

    The command line shows the message alone; any other exception is a defect and keeps its traceback.
    """


class Failure(RuntimeError):
    """A computation came to nothing though the input was right; the message says what failed, and what may help.

    The command line shows the message alone, with exit code 1.
    """


class FailedFitWarning(UserWarning):
    """A fit failed and was stopped where it stood: what it predicts means nothing."""


class InitialCurvatureWarning(UserWarning):
    """Most of a posterior's curvature is still what it started from: its intervals are too narrow."""


MOST = 0.5  # from this share of the curvature on, the start counts for more than the data


def curvature_note(shares: Sequence[float]) -> str:
    """Describe fits of which most of the curvature is still its start: one sentence, empty where there is none.

    Args:
        shares: `initial_curvature_share` of each fit.
    """
    high = [share for share in shares if share > MOST]
    if not high:
        return ""
    size = f"{100 * max(high):.0f} %" if len(shares) == 1 else f"Up to {100 * max(high):.0f} %"
    where = "" if len(shares) == 1 else f" in {len(high)} of {len(shares)} fits"
    return (
        f"{size} of the posterior's curvature is still its start{where}, so that intervals are too narrow; take more "
        "epochs, a larger beta or a smaller statistics_interval."
    )


def shown(value: object, most: int = 80) -> str:
    """A value of the user's as a message shows it: in quotes, on one line, and cut where it is long."""
    try:
        text = repr(value)
    except RecursionError:
        return f"a deeply nested {type(value).__name__}"
    if len(text) <= most:
        return text
    return f"{text[: most // 2]}...{text[-most // 4 :]} ({len(str(value))} characters)"


def printable(text: object) -> str:
    """A text on one line, letter by letter: control characters, line breaks and the like are escapes, as in `repr`."""
    letters = (c if c.isprintable() or unicodedata.category(c) == "Zs" else _escaped(c) for c in str(text))
    return "".join(letters)


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape").decode()


def listed(names: Iterable[object], most: int = 60) -> str:
    """Names with commas between, the first ones where there are many."""
    texts = [text if len(text) <= 80 and text.isprintable() else shown(text) for text in map(str, names)]
    return ", ".join(texts[:most]) + (f" and {len(texts) - most} more" if len(texts) > most else "")


def counted(count: int, noun: str, be: bool = False) -> str:
    """1 row, or 3 rows; where they are the subject of to be, 1 row is, or 3 rows are."""
    return f"1 {noun}{' is' if be else ''}" if count == 1 else f"{count} {noun}s{' are' if be else ''}"


def raised(error: Exception) -> str:
    """What an error of the user's code says, of which kind it is, and at which line it was raised, if at one of his."""
    said = textwrap.shorten(str(error), 300, placeholder="...")
    if isinstance(error, SyntaxError):
        return f"SyntaxError: {said}"  # which says where
    package = Path(__file__).parents[1]
    ours = (package, package.parent / "cli", package.parent / "envs")  # in a checkout two of its rooms are beside it
    installed = (*ours, *(sysconfig.get_path(kind) for kind in ("stdlib", "purelib", "platlib")))
    others = ("<", *(f"{folder}{os.sep}" for folder in installed))
    lines = [(f.filename, f.lineno) for f in traceback.extract_tb(error.__traceback__)]
    his = [(file, line) for file, line in lines if not file.startswith(others)]
    return f"{said} ({type(error).__name__} at {his[-1][0]}, line {his[-1][1]})" if his else said


def one_of(what: str, given: str, allowed: Iterable[object], more: str = "") -> InputError:
    """The error for a name that is not among the allowed ones; `more` says what else there is."""
    names = listed(sorted(map(str, allowed))) or "none"
    return InputError(f"unknown {what} {shown(given)}; allowed: {names}{more}")


def check_range(name: str, value: Any, interval: str) -> None:
    """Refuse a number outside an interval in the usual notation, e.g. "[0, 1)"; NaN is outside of all.

    Raises:
        InputError: naming the value and the interval.
    """
    number: Any = value if isinstance(value, Real) and not isinstance(value, bool) else None
    if number is None:
        raise InputError(f"{name} is {shown(value)}; it must be a number in {interval}")
    low, high = map(float, interval[1:-1].split(","))
    above = number >= low if interval[0] == "[" else number > low
    below = number <= high if interval[-1] == "]" else number < high
    if not (above and below):
        raise InputError(f"{name} is {shown(value)}; it must be in {interval}")


def check_count(name: str, value: Any) -> None:
    """Refuse anything but a whole number of at least 1.

    Raises:
        InputError: naming the value.
    """
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
        raise InputError(f"{name} is {value!r}; it must be a whole number of at least 1")


def check_fields(record: Any, ranges: Mapping[str, str]) -> None:
    """Refuse a dataclass with a value of another type than its field's, or a number outside its field's interval.

    Args:
        record: the dataclass.
        ranges: name -> interval; a number whose field is not named must be positive. Whole numbers end at 1e10.

    Raises:
        InputError: naming the field, its value and what is allowed.
    """
    hints = get_type_hints(type(record))
    for f in fields(record):
        value = getattr(record, f.name)
        if not fits(hints[f.name], value):
            if get_origin(hints[f.name]) is Literal:
                raise one_of(f.name, str(value), get_args(hints[f.name]))
            raise InputError(f"{f.name} is {shown(value)}; it must be {describe(hints[f.name], 'a tuple')}")
        if isinstance(value, Real) and not isinstance(value, bool):
            interval = ranges.get(f.name, "(0, inf)")
            check_range(f.name, value, interval.replace("inf)", "1e10]") if hints[f.name] is int else interval)


def check_settings(name: str, types: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Refuse settings that are unknown or not of their type, as someone may have recorded them; nothing is called.

    Args:
        name: of what they are the settings of, for messages.
        types: of those that there are, as `registry.settings_of` gives them.
        settings: by name.

    Raises:
        InputError: naming the setting, its value and what is allowed.
    """
    for key, value in settings.items():
        if key not in types:
            raise one_of(f"setting of {name}", key, types)
        if not fits(types[key], value):
            raise InputError(f"{key} of {name} is {shown(value)}; it must be {describe(types[key])}")


def fits(hint: Any, value: object) -> bool:
    """Whether a value is of a field's type, where that can be written as text; a net is looked at elsewhere."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (UnionType, Union):
        return any(fits(option, value) for option in arguments)
    if origin is Literal:
        return value in arguments
    if origin is tuple:
        return isinstance(value, tuple | list) and all(fits(arguments[0], v) for v in value)
    kinds = {bool: bool, int: Integral, float: Real, str: str, type(None): type(None)}
    return hint not in kinds or (isinstance(value, kinds[hint]) and isinstance(value, bool) == (hint is bool))


def describe(hint: Any, several: str = "a comma-separated list") -> str:
    """A type as a message calls it; `several` is what holds several values: options are text, fields are not."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (UnionType, Union):
        return " or ".join(describe(a, several) for a in arguments)
    if origin is Literal:
        return " | ".join(map(str, arguments))
    if origin is tuple:
        return f"{several} of {({int: 'whole numbers', float: 'numbers'}).get(arguments[0], describe(arguments[0]))}"
    return {int: "a whole number", float: "a number", bool: "true | false", type(None): "none"}.get(
        hint, getattr(hint, "__name__", str(hint))
    )


def extreme(column: int | str, low: float, high: float) -> InputError:
    """The error for a column, by its name or counted from 0, that cannot be standardised."""
    called = shown(column) if isinstance(column, str) else column + 1
    return InputError(
        f"column {called} goes from {low:.3g} to {high:.3g}; its deviation must lie between {UNITS[0]:g} and "
        f"{UNITS[1]:g}: give it other units"
    )
