"""The `explore suggest` command: reads the table, keeps what it says, chooses rows, and writes next.csv.

The campaign is saved before measurements are used, and again before suggestions are shown. A command that is
interrupted at any point can therefore be repeated: it writes the same rows again, which are still pending.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from explore.campaign import Campaign, folder_of
from explore.campaign.sheet import ID
from explore.cli import cluster, display, start, tables
from explore.cli.suggest import choice, report, settings, table
from explore.cli.suggest.choice import Choice
from explore.cli.suggest.settings import Settings
from explore.cli.suggest.table import Learnt, Table
from explore.core import files
from explore.core.errors import Failure, InputError, counted
from explore.learning import saved, trust
from explore.runs.recorded import CONFIG as FORMAT, read, written

OPERATIONS = ("skip", "release", "retract", "undo", "status")
NAMED = ("posterior", "acquisition")  # options that may be "module:Class"; the module is then trusted
CONFIG = "config.json"
LOOSE = {"data", "batch", "goal", "stop_when", "acquisition", "acquisition_settings"}  # do not affect the fitted model


class State(NamedTuple):
    """The content of config.json."""

    settings: Settings
    rows: int  # number of rows of the table
    learnt: Learnt  # feature columns


def run(options: Mapping[str, Any]) -> None:
    """Run `explore suggest` with its command-line options."""
    path = Path(options["table"])
    default = "next.xlsx" if path.suffix.lower() in (".xlsx", ".xlsm") else "next.csv"
    beside, out = folder_of(path), Path(options["out"] or path.with_name(default))
    trusted = [*options["trust"], *trust.references({name: options[name] for name in NAMED})]
    old = _read(beside, trusted)
    now = settings.resolve(options, old.settings if old else None)
    device, _ = start.compute(options)
    content = table.read(path, now, old.learnt if old else None)
    if old is None:
        now = settings.resolve(options, rows=len(content.measured))
    tables.check(out, path, "suggest", ID, report.KINDS)
    state = State(now, len(content.whole.lines), content.learnt)
    changes = [*settings.changes(old.settings, now)] if old else []
    if old and old.rows != state.rows:
        changes.append(f"The table has {state.rows} rows; it had {old.rows}.")
    file = options["labels"] and Path(options["labels"])
    labels = table.labels(file, content, now, optional=out.exists() and file.samefile(out)) if file else None
    operates, dry = any(options[name] for name in OPERATIONS), options["dry_run"] or options["status"]
    with Campaign(beside, dry=dry) as campaign:
        if _read(beside, trusted) != old:
            raise InputError(f"Another process changed {beside} while this one was running. Run the command again.")
        if options["undo"]:
            campaign.undo()
        named = [name for kind in ("skip", "release", "retract") for name in options[kind]]
        content = table.match(campaign, content, named, labels)
        for kind in ("retract", "release", "skip"):
            if options[kind]:
                campaign.operate(kind, None if kind == "release" and "all" in options[kind] else options[kind])
        notes = [*content.notes, *changes, *campaign.notes, *report.check(out, beside, file, dry)]
        if not dry:
            if file and file.exists():
                report.keep(file, beside)
            campaign.save()
            _write(beside, state, old)
        report.note(notes, options)
        content, chosen = (content, None) if operates else _suggest(content, campaign, now, device, options)
        more = [*chosen.notes] if chosen else []
        if not dry:
            if chosen and chosen.saved:
                saved.write(beside, chosen.saved)
            report.check(out, beside)  # again: cells may have been filled in during a fit
            more += report.write(out, content, campaign, now)
        report.note(more, options)
        report.say(content, campaign, chosen, now, out, [*notes, *more], options)


def _suggest(
    content: Table, campaign: Campaign, now: Settings, device: str, options: Mapping[str, Any]
) -> tuple[Table, Choice]:
    """Choose rows and save the choice; also return the table. If there are fewer rows than --batch, notes say why."""
    rows = table.rows(content, campaign)
    waiting = [] if campaign.answered else campaign.pending
    k = min(now.batch - len(waiting), campaign.candidates)
    notes, pending = list(rows.notes), counted(len(waiting), "suggestion", be=True)
    if not campaign.candidates and not waiting:
        notes.append("No candidates left.")
    elif waiting and k < 1:
        advice = "Use a larger --batch for more, or --release all to start over."
        notes.append(f"No new measurements. {pending} still pending. {advice}")
    elif waiting:
        notes.append(f"No new measurements. {pending} still pending; {counted(k, 'row', be=True)} added.")
    elif k < now.batch:
        notes.append(f"Only {counted(k, 'candidate')} left.")
    if k < 1:
        return content, Choice(notes=notes)
    with display.progress(options["quiet"] or options["as_json"], "epochs") as update:
        with cluster.within(options["cluster"], options["jobs"], scores=True), cluster.watched(Failure):
            chosen = choice.choose(content, rows, now, k, device, lambda d, t: update(completed=d, total=t))
    content = table.suggest(campaign, content, chosen.rows.index.tolist(), chosen.rows.to_dict("records"))
    campaign.save()
    return content, chosen._replace(notes=[*notes, *chosen.notes])


def _read(folder: Path, trusted: Sequence[str]) -> State | None:
    """Return the state that the previous run saved, if any; raise InputError if it is damaged, old or not trusted."""
    trust.check_links(folder)
    path = folder / CONFIG
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        recorded, rows, is_new = dict(content["settings"]), int(content["rows"]), content.get("format") == FORMAT
        learnt = Learnt(*(tuple(map(str, content["learnt"][k])) for k in Learnt._fields)) if is_new else None
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError, OverflowError, RecursionError) as error:
        raise InputError(f"{path} is damaged ({error}); remove it, and set the options again") from error
    if learnt is None:
        raise files.other_version(path)
    trust.check(folder, recorded, trusted)
    return State(read(Settings, recorded, str(path)), rows, learnt)


def _write(folder: Path, now: State, old: State | None) -> None:
    """Write config.json if the state changed. Delete the saved model if settings that affect the fit changed."""
    if now == old:
        return
    content = {"format": FORMAT, "settings": written(now.settings), "rows": now.rows, "learnt": now.learnt._asdict()}
    if old is None or any(v != vars(old.settings)[k] for k, v in vars(now.settings).items() if k not in LOOSE):
        (folder / saved.MODEL).unlink(missing_ok=True)
    files.write_json(folder / CONFIG, content)
