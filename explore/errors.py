"""The one exception for wrong input."""


class InputError(ValueError):
    """What the user gave is wrong; the message says what, and what is allowed.

    The command line shows the message alone; any other exception is a defect and keeps its traceback.
    """


def one_of(what: str, given: str, allowed: object) -> InputError:
    """The error for a name that is not among the allowed ones."""
    names = ", ".join(sorted(map(str, allowed)))  # type: ignore[call-overload]
    return InputError(f"unknown {what} {given!r}; allowed: {names}")


def check_range(name: str, value: float, interval: str) -> None:
    """Refuse a number outside an interval in the usual notation, e.g. "[0, 1)"; NaN is outside of all.

    Raises:
        InputError: naming the value and the interval.
    """
    low, high = map(float, interval[1:-1].split(","))
    above = value >= low if interval[0] == "[" else value > low
    below = value <= high if interval[-1] == "]" else value < high
    if not (above and below):
        raise InputError(f"{name} is {value}; it must be in {interval}")
