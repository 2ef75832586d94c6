"""One start of `explore suggest`: read, keep what was told, choose, keep what was chosen, write next.csv, say it.

What is told is logged before it is used and what is chosen before it is shown, so that a start that is stopped at any
point can be made again: then the same rows, which are pending, are written once more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from explore.campaign import Campaign, folder_of
from explore.cli import start, tables
from explore.cli.suggest import choice, folder, report, settings, sheet, table
from explore.cli.suggest.choice import Choice
from explore.cli.suggest.settings import Settings
from explore.cli.suggest.table import Learnt, Table
from explore.core.errors import InputError, counted
from explore.data.reading import Cells
from explore.learning import trust

OPERATIONS = ("skip", "release", "retract", "undo", "status")
NAMED = ("posterior", "acquisition")  # may be "module:Class", which is trusted then


def run(options: Mapping[str, Any]) -> None:
    """Do what the options ask for."""
    path = Path(options["table"])
    beside, out = folder_of(path), Path(options["out"] or sheet.beside(path))
    trusted = [*options["trust"], *trust.references({name: options[name] for name in NAMED})]
    old = folder.read(beside, trusted)
    now = settings.resolve(options, old.settings if old else None)
    device, _ = start.compute(options)
    read = table.read(path, now, _learnt(beside, old))
    tables.check(out, path, "suggest", sheet.ID, sheet.KINDS)
    kept = folder.Kept(now, len(read.cells.lines), read.learnt)
    changes, before = (_changes(old, kept), old.settings.target) if old else ([], ())
    labels = _labels(options["labels"], out, read, now)
    operates, dry = any(options[name] for name in OPERATIONS), options["dry_run"] or options["status"]
    if operates:  # all of it or nothing: what is refused must not be half in the log
        with Campaign(beside, dry=True) as rehearsal:
            _tell(rehearsal, read, labels, options)
            _check(out, read, rehearsal, now, before, dry)
            _operate(rehearsal, options)
    with Campaign(beside, dry=dry) as campaign:
        if folder.read(beside, trusted) != old:
            raise InputError(f"{beside} was changed by another start just now; run the command again")
        _tell(campaign, read, labels, options)
        notes, count = [*read.notes, *changes, *campaign.notes], len(campaign.notes)
        report.note(notes, options)  # first: what was told is in the log, whatever is refused now
        doubts = _check(out, read, campaign, now, before, dry)
        report.note(doubts, options)
        if not dry:
            folder.write(beside, kept, old)
        chosen, written = None, []
        if operates:
            _operate(campaign, options)
        else:
            with report.progress(options) as progress:
                chosen = _suggest(read, campaign, now, device, progress)
        if not dry:
            if chosen and chosen.model:
                folder.keep(beside, read, now, chosen.model)
            sheet.check_told(out, read, campaign, now, before)  # again: a fit takes long enough to fill in a cell
            written = sheet.write(out, read, campaign, now)
        more = [*campaign.notes[count:], *(chosen.notes if chosen else []), *written]
        report.note(more, options)
        report.say(report.Outcome(read, campaign, chosen, now, out, [*notes, *doubts, *more]), options)


def _learnt(beside: Path, old: folder.Kept | None) -> Learnt | None:
    """Which columns were learnt from at the last start; an older version wrote down no others."""
    if old is None or old.learnt is not None:
        return old and old.learnt
    with Campaign(beside, dry=True) as campaign:
        return Learnt(campaign.memory.schema.features if campaign.memory.schema else (), ())


def _check(out: Path, read: Table, campaign: Campaign, now: Settings, before: Sequence[str], dry: bool) -> list[str]:
    """Refuse to write over what was filled in; a start that writes nothing only says so."""
    try:
        sheet.check_told(out, read, campaign, now, before)
    except InputError as error:
        if not dry:
            raise
        return [f"A start that writes would be refused: {error}."]
    return []


def _labels(given: str | None, out: Path, read: Table, now: Settings) -> Cells | None:
    """The file of --labels; next.csv may well have no row in it."""
    if given is None:
        return None
    path = Path(given)
    own = out.exists() and path.samefile(out)
    return sheet.read(out, read, now) if own else table.labels(path, read, now)


def _changes(old: folder.Kept, now: folder.Kept) -> list[str]:
    """Sentences on what is not as at the last start."""
    rows = [f"The table has {now.rows} rows; it had {old.rows}."] if now.rows != old.rows else []
    return [*settings.changes(old.settings, now.settings), *rows]


def _tell(campaign: Campaign, read: Table, labels: Cells | None, options: Mapping[str, Any]) -> None:
    """What table and labels say, once the last batch is taken back if that is asked for."""
    if options["undo"]:
        campaign.undo()
    campaign.read(read.cells, read.roles, labels)


def _operate(campaign: Campaign, options: Mapping[str, Any]) -> None:
    """Skip, release and retract rows."""
    if options["retract"]:
        campaign.retract(options["retract"])
    if options["release"]:
        campaign.release(None if "all" in options["release"] else options["release"])
    if options["skip"]:
        campaign.skip(options["skip"])


def _suggest(read: Table, campaign: Campaign, now: Settings, device: str, progress: choice.Progress) -> Choice:
    """Choose, and log what is chosen; the notes begin with why fewer rows are handed out than --batch says."""
    rows = table.rows(read, campaign)
    waiting = [] if campaign.answered else campaign.pending
    k = min(now.batch - len(waiting), len(campaign.pool))
    notes, new = list(rows.notes), counted(k, "row", be=True)
    if not campaign.pool and not waiting:
        notes.append("No row is left that may be handed out.")
    elif waiting and k < 1:
        notes.append(
            f"Nothing was measured since rows were handed out last, of which {len(waiting)} are pending; a larger "
            "--batch gives more, --release all chooses anew."
        )
    elif waiting:
        pending = counted(len(waiting), "row", be=True)
        notes.append(f"{pending} pending since rows were handed out last, so that {new} added.")
    elif k < now.batch:
        notes.append(f"Only {new} left that may be handed out.")
    if k < 1:
        return Choice(notes=notes)
    chosen = choice.choose(read, rows, now, k, device, progress)
    campaign.suggest(chosen.rows.index.tolist(), chosen.rows.to_dict("records"))
    return chosen._replace(notes=[*notes, *chosen.notes])
