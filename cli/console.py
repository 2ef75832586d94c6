"""Tables and progress bars that show strings unchanged, without rich markup (see `display`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich import table
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from explore.core.errors import printable

if TYPE_CHECKING:
    import pandas as pd


def show(*parts: str | Table) -> None:
    """Print strings and tables, one below the other."""
    Console().print(*map(_literal, parts), sep="\n")


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
        super().add_column(_literal(header), *arguments, **settings)

    def add_row(self, *cells: Any, **settings: Any) -> None:
        super().add_row(*map(_literal, cells), **settings)


@contextmanager
def progress(silent: bool, description: str, total: int | None = None, done: int = 0) -> Iterator[Callable[..., None]]:
    """Show a progress bar if standard error is a terminal, unless `silent`. Yield a function that updates the bar."""
    console = Console(stderr=True)
    text, share = TextColumn("{task.description}", markup=False), TextColumn("{task.percentage:>3.0f}%")
    columns = text, BarColumn(), share, TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn()
    with Progress(*columns, console=console, disable=silent or not console.is_terminal, transient=True) as bar:
        task = bar.add_task(description, total=total, completed=done)
        yield lambda **values: bar.update(task, **values)


def _literal(part: Any) -> Any:
    return Text(printable(part)) if isinstance(part, str) else part
