"""The output of `explore suggest`: sentences, tables of the pending rows, or one JSON object."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from rich.progress import BarColumn, TextColumn, TimeElapsedColumn

from explore.campaign import Campaign, folder_of, short
from explore.cli import console, display
from explore.cli.suggest.choice import Choice
from explore.cli.suggest.model import Progress
from explore.cli.suggest.settings import Settings
from explore.cli.suggest.table import Table
from explore.runs.record import plain

MEASURES = {
    "gain": "best score", "width": "mean width of the intervals", "labels": "rows measured or pending",
    "budget": "their cost",
}  # fmt: skip


class Outcome(NamedTuple):
    """The result of a start."""

    table: Table
    campaign: Campaign
    chosen: Choice | None  # None: nothing was to be chosen
    settings: Settings
    out: Path
    notes: list[str]

    @property
    def pending(self) -> list[dict[str, Any]]:
        """The pending rows, in the order of their suggestion; `new` are those of this start."""
        lines = dict(zip(self.campaign.ids, self.table.cells.lines, strict=True))
        rows = sorted(self.campaign.pending, key=lambda row: (row.pending or 0, row.suggestion.get("rank", 0)))
        latest = rows[-1].pending if rows and self.chosen and len(self.chosen.rows) else None
        places = [{"id": r.id, "line": lines.get(r.id), "batch": r.pending, "new": r.pending == latest} for r in rows]
        return [place | row.suggestion for place, row in zip(places, rows, strict=True)]


@contextmanager
def progress(options: Mapping[str, Any]) -> Iterator[Progress]:
    """Show a bar on standard error, if that is a terminal."""
    columns = TextColumn("fitting"), BarColumn(), TimeElapsedColumn()
    with console.progress(options["quiet"] or options["as_json"], *columns) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def note(sentences: Sequence[str], options: Mapping[str, Any]) -> None:
    """Print notes at once, so that they are there when the process is stopped later."""
    if not options["quiet"] and not options["as_json"]:
        for sentence in sentences:
            display.echo(sentence, err=True)


def say(outcome: Outcome, options: Mapping[str, Any]) -> None:
    """Print the result."""
    if options["as_json"]:
        display.echo(json.dumps(plain(_summary(outcome, options["dry_run"]))))
        return
    chosen, rows = outcome.chosen, outcome.pending
    if chosen and rows:
        unit = f"{outcome.table.cells.unit} " if not outcome.table.roles.id_column else ""
        _show("To measure next", [row for row in rows if row["new"]], unit, chosen.score)
        _show("Handed out before, not measured yet", [row for row in rows if not row["new"]], unit)
    for line in outcome.campaign.status():
        display.echo(line)
    if chosen and chosen.measures:
        display.echo("; ".join(f"{MEASURES[name]}: {value:.4g}" for name, value in chosen.measures.items()))
    if chosen and chosen.stopped:
        display.echo(chosen.stopped)
    if options["dry_run"]:
        display.echo("Nothing was written (--dry-run).")
    elif chosen and rows:
        table, out = outcome.table.path, outcome.out
        again = shlex.join(["explore", "suggest", str(table)])
        display.echo(f"The rows to measure are in {out}; fill in {', '.join(outcome.settings.target)} there, and")
        display.echo(f"  {again} --labels {shlex.quote(str(out))}\nor in {table}, and\n  {again}")


def _show(title: str, rows: Sequence[Mapping[str, Any]], unit: str, score: str = "") -> None:
    """Print a table of rows, named by their lines with a unit, or by their ids; older scores may be of another rule."""
    if not rows:
        return
    names = {n: n for row in rows for n in row if n not in ("id", "line", "batch", "new", "rank", "score", "reason")}
    if score:
        names["score"] = score
    grid = console.Table("row", *names.values(), "why")
    for column in grid.columns[1:-1]:
        column.justify = "right"
    for row in rows:
        name = f"{unit}{row['line']}, {short(row['id'])}" if unit and row["line"] else short(row["id"])
        cells = ["" if row.get(key) is None else f"{row[key]:.4g}" for key in names]
        grid.add_row(name, *cells, str(row.get("reason", "")))
    console.show(title, grid)


def _summary(outcome: Outcome, dry: bool) -> dict[str, Any]:
    """Return the result as JSON can hold it."""
    campaign, chosen = outcome.campaign, outcome.chosen
    return {
        "rows": [row for row in outcome.pending if row["new"]],
        "pending": [row for row in outcome.pending if not row["new"]],
        "score": chosen.score if chosen else None,
        "measures": dict(chosen.measures) if chosen else {},
        "stopped": chosen.stopped or None if chosen else None,
        "measured": len(campaign.measured),
        "pool": len(campaign.pool),
        "partly": [row.id for row in campaign.partly if not row.failed],
        "failed": [row.id for row in campaign.failed],
        "skipped": [row.id for row in campaign.skipped],
        "notes": outcome.notes,
        "out": None if dry else str(outcome.out),
        "folder": str(folder_of(outcome.table.path)),
    }
