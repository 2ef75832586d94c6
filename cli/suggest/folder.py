"""The folder beside a table: settings, schema and model in POOL.explore; the campaign keeps its log there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from explore.cli import parameters, saved, trust
from explore.cli.saved import MODEL, Saved
from explore.cli.suggest.model import Model
from explore.cli.suggest.settings import Settings
from explore.cli.suggest.table import Learnt, Table
from explore.core import files
from explore.core.errors import Failure, InputError

CONFIG = "config.json"
FORMAT = 1  # of config.json
LOOSE = {"data", "batch", "goal", "stop_when", "acquisition", "acquisition_settings"}  # no model depends on them


class State(NamedTuple):
    """The content of config.json after a start."""

    settings: Settings
    rows: int  # of the table
    learnt: Learnt | None = None  # None: of a version that did not write it


def read(folder: Path, trusted: Sequence[str]) -> State | None:
    """Return the state after the last start; None before the first one.

    Raises:
        InputError: when it is damaged, of another version, or names modules that are not trusted.
    """
    trust.check_links(folder)
    path = folder / CONFIG
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        recorded, rows, columns = dict(content["settings"]), int(content["rows"]), content.get("learnt")
        learnt = Learnt(*(tuple(map(str, columns[k])) for k in Learnt._fields)) if "learnt" in content else None
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError, OverflowError, RecursionError) as error:
        raise InputError(f"{path} is damaged ({error}); remove it, and give the settings anew") from error
    if content.get("format") != FORMAT:
        raise files.older(path)
    trust.check(folder, recorded, trusted)
    return State(parameters.read(Settings, recorded, str(path)), rows, learnt)


def write(folder: Path, now: State, old: State | None) -> None:
    """Write config.json if it changed, and remove a model of other settings."""
    if now == old:
        return
    content = {"format": FORMAT, "settings": parameters.written(now.settings), "rows": now.rows}
    content |= {"learnt": now.learnt._asdict()} if now.learnt else {}
    try:
        if old is None or any(v != vars(old.settings)[k] for k, v in vars(now.settings).items() if k not in LOOSE):
            (folder / MODEL).unlink(missing_ok=True)
        with files.replacing(folder / CONFIG) as draft:
            draft.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise Failure(f"cannot write {folder / CONFIG}: {error.strerror}") from error


def write_model(folder: Path, table: Table, settings: Settings, model: Model) -> None:
    """Write the fitted model with its schema, for `explore predict`."""
    content = Saved(model.names, ({},), {settings.posterior: model.fitted}, table.schema, model.transform)
    try:
        saved.write(folder, content)
    except OSError as error:
        raise Failure(f"cannot write {folder / MODEL}: {error.strerror}") from error
