"""The output of `explore suggest`: next.csv with the pending rows, and the printed tables or JSON."""

import json
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from explore.campaign import Campaign, Row, folder_of, short
from explore.campaign.sheet import PREFIX
from explore.cli import display, tables
from explore.cli.suggest.choice import Choice
from explore.cli.suggest.settings import Settings
from explore.cli.suggest.table import Table
from explore.core import files
from explore.core.errors import InputError
from explore.data.reading import Cells
from explore.runs.record import plain

KINDS = (".csv", ".xlsx")
MEASURES = {
    "gain": "best score", "width": "mean width of the intervals", "labels": "rows measured or pending",
    "budget": "their cost",
}  # fmt: skip


def check(path: Path, folder: Path, labels: Path | None = None, dry: bool = False) -> list[str]:
    """Raise InputError (if `dry`, return a note) if a file would be overwritten that was neither written nor read."""
    if not path.exists() or _kept(path, folder).exists() or (labels and path.samefile(labels)):
        return []
    problem = f"{path} was edited, or belongs to another table, and would be overwritten"
    if dry:
        return [f"Without --dry-run or --status, this command would fail: {problem}."]
    raise InputError(f"{problem}. Read it with --labels {path}, delete it, or choose another --out.")


def keep(path: Path, folder: Path) -> None:
    """Copy a file that was read, or is about to be written, into the campaign's folder."""
    copy = _kept(path, folder)
    copy.parent.mkdir(exist_ok=True)
    with files.replacing(copy) as draft:
        shutil.copyfile(path, draft)


def _kept(path: Path, folder: Path) -> Path:
    """Return the path of the copy of a file with this content."""
    return folder / "sheets" / f"{path.stem[:99]}-{files.digest(path)[:16]}{path.suffix}"


def write(path: Path, table: Table, campaign: Campaign, settings: Settings) -> list[str]:
    """Write all pending rows to next.csv, the latest batch first. Return notes."""
    pending = sorted(campaign.pending, key=lambda row: (-(row.pending or 0), row.suggestion.get("rank", 0)))
    lines = {name: i for i, name in enumerate(campaign.ids)}
    decimal = settings.decimal if path.suffix.lower() == ".csv" else table.written.decimal

    def cell(row: Row, name: str) -> str:
        """Return a target's measurement, or the cell of another column."""
        if name not in table.roles.targets:
            return table.written.columns[name][lines[row.id]]
        value = row.mean.get(name) or ""
        return value if isinstance(value, str) else repr(value).replace(".", decimal)

    columns = {name: [cell(row, name) for row in pending] for name in table.written.columns}
    predicted = dict.fromkeys(name for row in pending for name in row.suggestion if name not in ("score", "reason"))
    names = list({"id": None, "rank": None} | predicted | {"score": None, "reason": None})
    added = pd.DataFrame([{"id": row.id} | row.suggestion for row in pending], columns=names, dtype=object)
    added = added.map(lambda value: float(f"{value:.6g}") if isinstance(value, float) else value)
    cells, more = Cells(path, columns, (), decimal), added.infer_objects().add_prefix(PREFIX)
    return tables.write(path, cells, more, keep=lambda draft: keep(draft, folder_of(table.path)))


def _pending(table: Table, campaign: Campaign, chosen: Choice | None) -> list[dict[str, Any]]:
    """Return the pending rows as dicts, in the order of suggestion. `new` marks those just chosen."""
    lines = dict(zip(campaign.ids, table.cells.lines, strict=True))
    rows = sorted(campaign.pending, key=lambda row: (row.pending or 0, row.suggestion.get("rank", 0)))
    latest = rows[-1].pending if rows and chosen and len(chosen.rows) else None
    places = [{"id": r.id, "line": lines.get(r.id), "batch": r.pending, "new": r.pending == latest} for r in rows]
    return [place | row.suggestion for place, row in zip(places, rows, strict=True)]


def note(sentences: Sequence[str], options: Mapping[str, Any]) -> None:
    """Print notes at once, so that they are shown even if the process is stopped later."""
    if not options["quiet"] and not options["as_json"]:
        for sentence in sentences:
            display.echo(sentence, err=True)


def say(
    table: Table, campaign: Campaign, chosen: Choice | None, settings: Settings, out: Path, notes: list[str],
    options: Mapping[str, Any],
) -> None:  # fmt: skip
    """Print the result. `chosen` is None after operations only, such as --skip or --status."""
    rows, dry = _pending(table, campaign, chosen), options["dry_run"]
    new, earlier = ([row for row in rows if row["new"] is is_new] for is_new in (True, False))
    if options["as_json"]:
        summary = {
            "rows": new,
            "pending": earlier,
            "score": chosen.score if chosen else None,
            "measures": dict(chosen.measures) if chosen else {},
            "stopped": chosen.stopped or None if chosen else None,
            "measured": len(campaign.measured),
            "pool": campaign.candidates,
            "partly": [row.id for row in campaign.partly if not campaign.state.has_failed(row)],
            "failed": [row.id for row in campaign.failed],
            "skipped": [row.id for row in campaign.skipped],
            "notes": notes,
            "out": None if dry else str(out),
            "folder": str(folder_of(table.path)),
        }
        display.echo(json.dumps(plain(summary)))
        return
    if chosen and rows:
        unit = f"{table.cells.unit} " if not table.roles.id_column else ""
        _show("Measure next", new, unit, chosen.score)
        _show("Pending from earlier batches", earlier, unit)
    for line in campaign.status():
        display.echo(line)
    if chosen and chosen.measures:
        display.echo("; ".join(f"{MEASURES[name]}: {value:.4g}" for name, value in chosen.measures.items()))
    if chosen and chosen.stopped:
        display.echo(chosen.stopped)
    if dry:
        display.echo("Nothing was written (--dry-run).")
    elif chosen and rows:
        again = shlex.join(["explore", "suggest", str(table.path)])
        display.echo(f"Suggestions are in {out}. Fill in {', '.join(settings.target)} there and run")
        display.echo(f"  {again} --labels {shlex.quote(str(out))}\nor in {table.path} and run\n  {again}")


def _show(title: str, rows: Sequence[Mapping[str, Any]], unit: str, score: str = "") -> None:
    """Print a table of rows. With `unit`, name rows by line and id, else by id. Without `score`, omit the scores."""
    if not rows:
        return
    names = {n: n for row in rows for n in row if n not in ("id", "line", "batch", "new", "rank", "score", "reason")}
    if score:
        names["score"] = score
    lines = []
    for row in rows:
        name = f"{unit}{row['line']}, {short(row['id'])}" if unit and row["line"] else short(row["id"])
        cells = ["" if row.get(key) is None else f"{row[key]:.4g}" for key in names]
        lines.append([name, *cells, row.get("reason", "")])
    display.show(title, display.table(["row", *names.values(), "why"], lines, right=slice(1, -1)))
