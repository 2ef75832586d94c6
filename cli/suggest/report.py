"""What a start says: sentences, a table of the rows that are pending, or one JSON object."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from rich.progress import BarColumn, TextColumn, TimeElapsedColumn

from explore.campaign import Campaign, Row, folder_of, short
from explore.cli import console, display
from explore.cli.suggest import choice
from explore.cli.suggest.choice import Choice
from explore.cli.suggest.settings import Settings
from explore.cli.suggest.table import Table
from explore.runs.record import plain

MEASURES = {
    "gain": "best score", "width": "mean width of the intervals", "labels": "rows measured or pending",
    "budget": "their cost",
}  # fmt: skip


class Outcome(NamedTuple):
    """All that there is to say."""

    table: Table
    campaign: Campaign
    chosen: Choice | None  # None: nothing was to be chosen
    settings: Settings
    out: Path
    notes: list[str]


@contextmanager
def progress(options: Mapping[str, Any]) -> Iterator[choice.Progress]:
    """A bar on standard error, if that is a terminal."""
    columns = TextColumn("fitting"), BarColumn(), TimeElapsedColumn()
    with console.progress(options["quiet"] or options["as_json"], *columns) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def note(sentences: Sequence[str], options: Mapping[str, Any]) -> None:
    """Say what was noticed, at once: a process that is stopped later has said it."""
    if not options["quiet"] and not options["as_json"]:
        for sentence in sentences:
            display.echo(sentence, err=True)


def say(outcome: Outcome, options: Mapping[str, Any]) -> None:
    """Print it."""
    chosen, campaign = outcome.chosen, outcome.campaign
    if options["as_json"]:
        display.echo(json.dumps(plain(_summary(outcome, options["dry_run"]))))
        return
    rows, latest = _rows(outcome)
    if chosen and rows:
        console.show(*_titled("To measure next", [r for r in rows if r.pending == latest], outcome, chosen.score))
        if older := [row for row in rows if row.pending != latest]:
            console.show(*_titled("Handed out before, not measured yet", older, outcome))
    for line in campaign.status():
        display.echo(line)
    if chosen and chosen.measures:
        display.echo("; ".join(f"{MEASURES[name]}: {value:.4g}" for name, value in chosen.measures.items()))
    if chosen and chosen.stopped:
        display.echo(chosen.stopped)
    if chosen and rows and not options["dry_run"]:
        again = shlex.join(["explore", "suggest", str(outcome.table.path)])
        display.echo(
            f"The rows to measure are in {outcome.out}; fill in {', '.join(outcome.settings.target)} there, and"
        )
        display.echo(f"  {again} --labels {shlex.quote(str(outcome.out))}")
        display.echo(f"or in {outcome.table.path}, and\n  {again}")
    if options["dry_run"]:
        display.echo("Nothing was written (--dry-run).")


def _rows(outcome: Outcome) -> tuple[list[Row], int | None]:
    """The pending rows, in the order in which they were handed out, and the batch that was chosen now, if one was."""
    rows = sorted(outcome.campaign.pending, key=lambda row: (row.pending or 0, row.said.get("rank", 0)))
    return rows, rows[-1].pending if rows and outcome.chosen and len(outcome.chosen.rows) else None


def _titled(title: str, rows: list[Row], outcome: Outcome, score: str = "") -> Iterator[Any]:
    if not rows:
        return
    yield title
    names = {key: key for row in rows for key in row.said if key not in ("rank", "score", "reason")}
    if score:  # of older rows it may be that of another rule
        names["score"] = score
    grid = console.Table("row", *names.values(), "why")
    for column in grid.columns[1:-1]:
        column.justify = "right"
    for row in rows:
        cells = [_number(row.said.get(key)) for key in names]
        grid.add_row(_name(row, outcome), *cells, str(row.said.get("reason", "")))
    yield grid


def _name(row: Row, outcome: Outcome) -> str:
    """How a row is found: by its identifier, or its line and the beginning of its id."""
    ids = outcome.campaign.ids
    if outcome.table.roles.id_column or row.id not in ids:
        return short(row.id)
    cells = outcome.table.cells
    return f"{cells.unit} {cells.lines[ids.index(row.id)]}, {short(row.id)}"


def _number(value: Any) -> str:
    return "" if value is None else f"{value:.4g}"


def _summary(outcome: Outcome, dry: bool) -> dict[str, Any]:
    """As JSON can hold it."""
    campaign, chosen = outcome.campaign, outcome.chosen
    lines = dict(zip(campaign.ids, outcome.table.cells.lines, strict=True))
    rows, latest = _rows(outcome)
    pending = [
        {"id": row.id, "line": lines.get(row.id), "batch": row.pending, "new": row.pending == latest, **row.said}
        for row in rows
    ]
    return {
        "rows": [row for row in pending if row["new"]],
        "pending": [row for row in pending if not row["new"]],
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
