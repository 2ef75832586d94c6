"""Output of users' strings, such as ids, classes and paths, exactly as they are.

A terminal would obey escape sequences, rich would read [a] as a style, matplotlib would read $ as a formula, and an
encoding may lack a character. All printing and drawing therefore goes through this module.
"""

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from explore.core.errors import printable


def echo(text: object, err: bool = False) -> None:
    """Print a string of one or more lines, with unprintable characters escaped."""
    click.echo("\n".join(map(printable, str(text).split("\n"))), err=err)


def literal(text: object) -> str:
    """Escape a string so that matplotlib shows it unchanged, even in legends, which skip labels that begin with _."""
    plain = printable(text).replace("$", r"\$") or "-"
    return f" {plain}" if plain.startswith("_") else plain


def spell() -> None:
    """Make standard output and standard error accept every string, whatever their encoding."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):  # streams without an encoding, or closed ones
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def show(*parts: str | Table) -> None:
    """Print strings and tables, one below the other."""
    printed = (part if isinstance(part, Table) else printable(part) for part in parts)
    Console(markup=False, emoji=False, highlight=False).print(*printed, sep="\n")


def table(
    header: Iterable[object], rows: Iterable[Iterable[object]], right: slice = slice(1, None), **settings: Any
) -> Table:
    """Return a table. The columns `right` are right-aligned, by default all but the first."""
    grid = Table(**settings)
    for name in header:
        # Long names wrap; cut to their start, those of one package would look the same.
        grid.add_column(printable(name), overflow="fold")
    for column in grid.columns[right]:
        column.justify = "right"
    for row in rows:
        grid.add_row(*map(printable, row))
    return grid


@contextlib.contextmanager
def progress(silent: bool, unit: str, total: int | None = None, done: int = 0) -> Iterator[Callable[..., None]]:
    """Show "DONE of TOTAL UNIT" with a bar on a terminal, unless `silent`. Yield a function that updates the bar."""
    console = Console(stderr=True)
    count, text = MofNCompleteColumn(" of "), TextColumn("{task.description}", markup=False)
    columns = count, text, BarColumn(), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn()
    with Progress(*columns, console=console, disable=silent or not console.is_terminal, transient=True) as bar:
        task = bar.add_task(unit, total=total, completed=done)
        yield lambda **values: bar.update(task, **values)
