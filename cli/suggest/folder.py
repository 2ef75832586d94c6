"""The folder beside a table: POOL.explore with settings, schema and model; its log is the campaign's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from explore.cli import parameters
from explore.cli.suggest.model import Model
from explore.cli.suggest.settings import Settings
from explore.cli.suggest.table import Learnt, Table
from explore.core import files
from explore.core.errors import Failure, InputError
from explore.learning import saved, trust
from explore.learning.saved import MODEL, Saved

CONFIG = "config.json"
FORMAT = 1  # of config.json
LOOSE = {"data", "batch", "goal", "stop_when", "acquisition", "acquisition_settings"}  # no model depends on them


class Kept(NamedTuple):
    """What config.json says of the last start."""

    settings: Settings
    rows: int  # of the table
    learnt: Learnt | None = None  # None: of a version that did not write it down


def read(folder: Path, trusted: Sequence[str]) -> Kept | None:
    """Of the last start; None before the first one.

    Raises:
        InputError: when they are damaged, of another version, or name modules that are not trusted.
    """
    trust.check_links(folder)
    path = folder / CONFIG
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        recorded, rows = dict(found["settings"]), int(found["rows"])
        columns = found.get("learnt")
        learnt = Learnt(*(tuple(map(str, columns[key])) for key in Learnt._fields)) if "learnt" in found else None
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError, OverflowError, RecursionError) as error:
        raise InputError(f"{path} is damaged ({error}); remove it, and give the settings anew") from error
    if found.get("format") != FORMAT:
        raise files.older(path)
    trust.check(folder, recorded, trusted)
    return Kept(parameters.read(Settings, recorded, str(path)), rows, learnt)


def write(folder: Path, now: Kept, old: Kept | None) -> None:
    """Keep the settings; a model that other settings made is removed.

    Raises:
        Failure: when they cannot be written.
    """
    if now == old:
        return
    content = {"format": FORMAT, "settings": parameters.written(now.settings), "rows": now.rows}
    content |= {"learnt": now.learnt._asdict()} if now.learnt else {}
    text = json.dumps(content, indent=2) + "\n"
    try:
        if old is None or _lasting(now.settings) != _lasting(old.settings):
            (folder / MODEL).unlink(missing_ok=True)
        with files.replacing(folder / CONFIG) as draft:
            draft.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Failure(f"cannot write {folder / CONFIG}: {error.strerror}") from error


def _lasting(settings: Settings) -> dict[str, object]:
    """The settings that a model depends on."""
    return {name: value for name, value in vars(settings).items() if name not in LOOSE}


def keep(folder: Path, table: Table, settings: Settings, model: Model) -> None:
    """Keep the fitted model with its schema, for `explore predict`.

    Raises:
        Failure: when they cannot be written.
    """
    content = Saved(model.names, ({},), {settings.posterior: model.fitted}, table.schema, model.transform)
    try:
        saved.write(folder, content)
    except OSError as error:
        raise Failure(f"cannot write {folder / MODEL}: {error.strerror}") from error
