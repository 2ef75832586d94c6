"""Output of users' strings, such as ids, classes and paths, exactly as they are.

A terminal would obey escape sequences, rich would read [a] as a style, matplotlib would read $ as a formula, and an
encoding may lack a character. All printing and drawing therefore goes through this module.
"""

from __future__ import annotations

import codecs
import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click
from rich import table
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from explore.core.errors import printable

if TYPE_CHECKING:
    import pandas as pd

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


def show(*parts: str | Table) -> None:
    """Print strings and tables, one below the other."""
    Console().print(*map(_plain, parts), sep="\n")


class Table(table.Table):
    """A table that shows cells unchanged, without rich markup."""

    @classmethod
    def of(cls, cells: pd.DataFrame) -> Table:
        """Return a table of the strings `cells`. Columns are right-aligned, except for a first column of names."""
        table = cls(*cells)
        for column in table.columns if str(cells.iloc[0, 0]).isdigit() else table.columns[1:]:
            column.justify = "right"
        for row in cells.itertuples(index=False, name=None):
            table.add_row(*row)
        return table

    def add_column(self, header: Any = "", *arguments: Any, **settings: Any) -> None:
        # Long names wrap; cut to their start, those of one package would look the same.
        super().add_column(_plain(header), *arguments, **{"overflow": "fold"} | settings)

    def add_row(self, *cells: Any, **settings: Any) -> None:
        super().add_row(*map(_plain, cells), **settings)


@contextlib.contextmanager
def progress(silent: bool, unit: str, total: int | None = None, done: int = 0) -> Iterator[Callable[..., None]]:
    """Show "DONE of TOTAL UNIT" with a bar on a terminal, unless `silent`. Yield a function that updates the bar."""
    console = Console(stderr=True)
    count, text = MofNCompleteColumn(" of "), TextColumn("{task.description}", markup=False)
    columns = count, text, BarColumn(), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn()
    with Progress(*columns, console=console, disable=silent or not console.is_terminal, transient=True) as bar:
        task = bar.add_task(unit, total=total, completed=done)
        yield lambda **values: bar.update(task, **values)


def _plain(part: Any) -> Any:
    return Text(printable(part)) if isinstance(part, str) else part
