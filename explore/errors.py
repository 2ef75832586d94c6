"""The exceptions that users see as one sentence, and how messages show what the user gave."""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, Literal, get_args, get_origin, get_type_hints


class InputError(ValueError):
    """What the user gave is wrong; the message says what, and what is allowed.

    The command line shows the message alone; any other exception is a defect and keeps its traceback.
    """


class Failure(RuntimeError):
    """A computation came to nothing though the input was right; the message says what failed, and what may help.

    The command line shows the message alone, with exit code 1.
    """


def shown(value: object, most: int = 80) -> str:
    """A value of the user's as a message shows it: in quotes, on one line, and cut where it is long."""
    text = repr(value)
    if len(text) <= most:
        return text
    return f"{text[: most // 2]}...{text[-most // 4 :]} ({len(str(value))} characters)"


def listed(names: Iterable[object], most: int = 60) -> str:
    """Names with commas between, the first ones where there are many."""
    texts = [text if len(text) <= 80 and text.isprintable() else shown(text) for text in map(str, names)]
    return ", ".join(texts[:most]) + (f" and {len(texts) - most} more" if len(texts) > most else "")


def one_of(what: str, given: str, allowed: Iterable[object]) -> InputError:
    """The error for a name that is not among the allowed ones."""
    return InputError(f"unknown {what} {shown(given)}; allowed: {listed(sorted(map(str, allowed)))}")


def check_range(name: str, value: float, interval: str) -> None:
    """Refuse a number outside an interval in the usual notation, e.g. "[0, 1)"; NaN is outside of all.

    Raises:
        InputError: naming the value and the interval.
    """
    low, high = map(float, interval[1:-1].split(","))
    above = value >= low if interval[0] == "[" else value > low
    below = value <= high if interval[-1] == "]" else value < high
    if not (above and below):
        raise InputError(f"{name} is {shown(value)}; it must be in {interval}")


def check_fields(record: Any, ranges: Mapping[str, str]) -> None:
    """Refuse a dataclass with a word that is not among its field's literals, or a number outside its field's interval.

    Args:
        record: the dataclass.
        ranges: name -> interval; a number whose field is not named must be positive. Whole numbers end at 1e10.

    Raises:
        InputError: naming the field, its value and what is allowed.
    """
    hints = get_type_hints(type(record))
    for f in fields(record):
        value = getattr(record, f.name)
        if get_origin(hints[f.name]) is Literal and value not in get_args(hints[f.name]):
            raise one_of(f.name, str(value), get_args(hints[f.name]))
        if hints[f.name] is int and not isinstance(value, int):
            raise InputError(f"{f.name} is {shown(value)}; it must be a whole number")
        if isinstance(value, int | float) and not isinstance(value, bool):
            interval = ranges.get(f.name, "(0, inf)")
            check_range(f.name, value, interval.replace("inf)", "1e10]") if hints[f.name] is int else interval)
