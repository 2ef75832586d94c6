"""Texts of users, such as ids, classes and paths, as commands print and draw them: letter by letter.

A terminal would obey an escape sequence in a text, rich takes [a] for a style, matplotlib takes $ for a formula, and an
encoding may lack a letter. All printing and drawing goes through this module and `console`.
"""

from __future__ import annotations

import codecs
import contextlib
import sys

import click

from explore.core.errors import printable

SPELLED = {"±": "+-", "…": "..."}  # in an encoding that does not have them; other letters become escapes


def echo(text: object, err: bool = False) -> None:
    """Print a text of one line or several."""
    click.echo("\n".join(map(printable, str(text).split("\n"))), err=err)


def literal(text: object) -> str:
    """Return a text that matplotlib shows letter by letter, in legends too, which leave out texts that begin with _."""
    plain = printable(text).replace("$", r"\$") or "-"
    return f" {plain}" if plain.startswith("_") else plain


def spell() -> None:
    """Let standard output and error accept every text, whatever their encoding."""
    codecs.register_error("explore", _spelled)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):  # of no encoding, or closed
            stream.reconfigure(errors="explore")  # type: ignore[union-attr]


def _spelled(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    letters = error.object[error.start : error.end]
    return "".join(SPELLED.get(c) or c.encode("unicode_escape").decode() for c in letters), error.end
