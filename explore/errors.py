"""The one exception for wrong input."""


class InputError(ValueError):
    """What the user gave is wrong; the message says what, and what is allowed.

    The command line shows the message alone; any other exception is a defect and keeps its traceback.
    """


def one_of(what: str, given: str, allowed: object) -> InputError:
    """The error for a name that is not among the allowed ones."""
    names = ", ".join(sorted(map(str, allowed)))  # type: ignore[call-overload]
    return InputError(f"unknown {what} {given!r}; allowed: {names}")
