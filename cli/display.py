"""Output of users' strings, such as ids, classes and paths, exactly as they are.

A terminal would obey escape sequences, rich would read [a] as a style, matplotlib would read $ as a formula, and an
encoding may lack a character. All printing and drawing therefore goes through this module and `console`.
"""

from __future__ import annotations

import codecs
import contextlib
import sys

import click

from explore.core.errors import printable

SPELLED = {"±": "+-", "…": "..."}  # where the encoding lacks them; other characters become escapes


def echo(text: object, err: bool = False) -> None:
    """Print a string of one or more lines, with unprintable characters escaped."""
    click.echo("\n".join(map(printable, str(text).split("\n"))), err=err)


def literal(text: object) -> str:
    """Escape a string so that matplotlib shows it unchanged, even in legends, which skip labels that begin with _."""
    plain = printable(text).replace("$", r"\$") or "-"
    return f" {plain}" if plain.startswith("_") else plain


def spell() -> None:
    """Make standard output and standard error accept every string, whatever their encoding."""
    codecs.register_error("explore", _spelled)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):  # streams without an encoding, or closed ones
            stream.reconfigure(errors="explore")  # type: ignore[union-attr]


def _spelled(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    letters = error.object[error.start : error.end]
    return "".join(SPELLED.get(c) or c.encode("unicode_escape").decode() for c in letters), error.end
