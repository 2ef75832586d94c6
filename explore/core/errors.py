"""Exceptions that users see as short messages, checks that raise them, and formatting of values for messages."""

import os
import sysconfig
import textwrap
import traceback
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from numbers import Integral, Real
from pathlib import Path
from types import UnionType
from typing import Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

UNITS = (1e-150, 1e150)  # allowed standard deviations: their squares, with some margin, fit into double precision


class InputError(ValueError):
    """Invalid input. The message says what is wrong and what is allowed; the command line shows no traceback."""


class Failure(RuntimeError):
    """A computation that failed on valid input. The command line shows only the message and exits with code 1."""


class FailedFitWarning(UserWarning):
    """A fit failed and was stopped; its predictions are meaningless."""


class InitialCurvatureWarning(UserWarning):
    """Most of a posterior's curvature is still its initial value, so its intervals are too narrow."""


MOST = 0.5  # above this share of the curvature, the initial value outweighs the data


def curvature_note(shares: Sequence[float]) -> str:
    """Return a warning if an `initial_curvature_share` in `shares`, one per fit, is above 0.5; otherwise return ""."""
    high = [share for share in shares if share > MOST]
    if not high:
        return ""
    size = f"{100 * max(high):.0f} %" if len(shares) == 1 else f"Up to {100 * max(high):.0f} %"
    where = "" if len(shares) == 1 else f" in {len(high)} of {len(shares)} fits"
    return (
        f"{size} of the posterior's curvature is still its initial value{where}, so intervals are too narrow. Use more "
        "epochs, a larger beta or a smaller statistics_interval."
    )


def shown(value: object, most: int = 80) -> str:
    """Format a value for a message: its `repr`, shortened if it has more than `most` characters."""
    try:
        text = repr(value)
    except RecursionError:
        return f"a deeply nested {type(value).__name__}"
    if len(text) <= most:
        return text
    return f"{text[: most // 2]}...{text[-most // 4 :]} ({len(str(value))} characters)"


def printable(text: object) -> str:
    """Escape control characters, line breaks and other unprintable characters as `repr` does, to get one line."""
    return "".join(
        c if c.isprintable() or unicodedata.category(c) == "Zs" else c.encode("unicode_escape").decode()
        for c in str(text)
    )


def listed(names: Iterable[object], most: int = 60) -> str:
    """Join the first `most` names with commas, and say how many more there are."""
    texts = [text if len(text) <= 80 and text.isprintable() else shown(text) for text in map(str, names)]
    return ", ".join(texts[:most]) + (f" and {len(texts) - most} more" if len(texts) > most else "")


def counted(count: int, noun: str, be: bool = False) -> str:
    """Return "1 row" or "3 rows"; with `be`, "1 row is" or "3 rows are"."""
    return f"1 {noun}{' is' if be else ''}" if count == 1 else f"{count} {noun}s{' are' if be else ''}"


def raised(error: Exception) -> str:
    """Format an exception: its message and, if user code was involved, its type and the last line of user code."""
    message = textwrap.shorten(str(error), 300, placeholder="...")
    if isinstance(error, SyntaxError):
        return f"SyntaxError: {message}"  # the message has the line
    package = Path(__file__).parents[1]
    folders = (package, package.parent / "cli", package.parent / "envs")  # two packages beside it in a checkout
    installed = (*folders, *(sysconfig.get_path(kind) for kind in ("stdlib", "purelib", "platlib")))
    foreign = ("<", *(f"{folder}{os.sep}" for folder in installed))
    lines = [(f.filename, f.lineno) for f in traceback.extract_tb(error.__traceback__)]
    users = [(file, line) for file, line in lines if not file.startswith(foreign)]
    return f"{message} ({type(error).__name__} at {users[-1][0]}, line {users[-1][1]})" if users else message


def one_of(kind: str, name: str, allowed: Iterable[object]) -> InputError:
    """Return the InputError for a name that is not in `allowed`."""
    return InputError(f"unknown {kind} {shown(name)}; allowed: {listed(sorted(map(str, allowed))) or 'none'}")


def check_known(kind: str, names: Iterable[object], allowed: Collection[object]) -> None:
    """Raise InputError for the first of the names that is not in `allowed`."""
    if unknown := [name for name in names if name not in allowed]:
        raise one_of(kind, str(unknown[0]), allowed)


def check_range(name: str, value: Any, interval: str) -> None:
    """Raise InputError unless the value is a number in the interval, e.g. "[0, 1)". NaN is in no interval."""
    if not fits(float, value):
        raise InputError(f"{name} is {shown(value)}; it must be a number in {interval}")
    low, high = map(float, interval[1:-1].split(","))
    above = value >= low if interval[0] == "[" else value > low
    below = value <= high if interval[-1] == "]" else value < high
    if not (above and below):
        raise InputError(f"{name} is {shown(value)}; it must be in {interval}")


def check_count(name: str, value: Any) -> None:
    """Raise InputError unless the value is a whole number of at least 1."""
    if not fits(int, value) or value < 1:
        raise InputError(f"{name} is {value!r}; it must be a whole number of at least 1")


def check_fields(record: Any, ranges: Mapping[str, str], prefix: str = "") -> None:
    """Raise InputError if a field of a dataclass has the wrong type, or a number outside its range.

    `ranges` maps names of numeric fields to intervals, such as "[0, 1)"; the default is "(0, inf)". Messages put
    `prefix` before the names.
    """
    hints = get_type_hints(type(record))
    for f in fields(record):
        value, name, hint = getattr(record, f.name), prefix + f.name, hints[f.name]
        if not fits(hint, value):
            if get_origin(hint) is Literal:
                raise one_of(name, str(value), get_args(hint))
            raise InputError(f"{name} is {shown(value)}; it must be {describe(hint, 'a tuple')}")
        if fits(float, value):
            interval = ranges.get(f.name, "(0, inf)")
            check_range(name, value, interval.replace("inf)", "1e10]") if hint is int else interval)


class Checked:
    """A base class for dataclasses that check their fields on creation.

    `ranges` and `prefix` are arguments of `check_fields`. The `ranges` of a subclass are added to those of its bases.
    """

    ranges: ClassVar[dict[str, str]] = {}
    prefix: ClassVar[str] = ""

    def __post_init__(self) -> None:
        every = (getattr(cls, "ranges", {}) for cls in reversed(type(self).__mro__))
        check_fields(self, {name: interval for ranges in every for name, interval in ranges.items()}, self.prefix)


def check_settings(name: str, types: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Raise InputError if a setting of the plug-in `name` is not in `types` (setting -> type) or has the wrong type."""
    for key, value in settings.items():
        if key not in types:
            raise one_of(f"setting of {name}", key, types)
        if not fits(types[key], value):
            raise InputError(f"{key} of {name} is {shown(value)}; it must be {describe(types[key])}")


def fits(hint: Any, value: object) -> bool:
    """Return whether a value has the type `hint`. For types that users cannot write as text, return True."""
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
    """Describe a type for a message, e.g. "a number"; `several` is the phrase for a tuple, e.g. "a tuple"."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (UnionType, Union):
        return " or ".join(describe(a, several) for a in arguments)
    if origin is Literal:
        return " | ".join(map(str, arguments))
    if origin is tuple:
        return f"{several} of {({int: 'whole numbers', float: 'numbers'}).get(arguments[0], describe(arguments[0]))}"
    names = {int: "a whole number", float: "a number", bool: "true | false", type(None): "none"}
    return names.get(hint, getattr(hint, "__name__", str(hint)))


def extreme(column: int | str, low: float, high: float) -> InputError:
    """Return the InputError for a column (a name, or an index from 0) whose range is too extreme to standardise."""
    name = shown(column) if isinstance(column, str) else column + 1
    return InputError(
        f"column {name} ranges from {low:.3g} to {high:.3g}, too extreme to standardise; rescale it so that its "
        f"standard deviation lies between {UNITS[0]:g} and {UNITS[1]:g}"
    )
