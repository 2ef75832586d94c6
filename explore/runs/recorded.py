"""Reading a run folder: its settings, its checkpoint, and its tables up to that checkpoint.

Settings are dataclasses, written as JSON. When they are read, every value is checked.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from explore.core import files
from explore.core.errors import InputError, describe, fits, listed, shown

TABLES = ("metrics.jsonl", "results.csv", "selected.csv")
FORMAT = 3  # of checkpoint.pt
CONFIG = 4  # of config.json
Value = bool | int | float | str | tuple[Any, ...] | None
Values = Mapping[str, Value]  # the settings of a plug-in, by name
Record = TypeVar("Record")
BROKEN = (OSError, ValueError, LookupError, TypeError, RecursionError)  # errors of reading JSON


def measured(path: Path, size: int = -1) -> dict[str, Any]:
    """Return size and hash of a table, or of its first `size` bytes."""
    with open(path, "rb") as file:
        content = file.read(size)
    return {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def cut(folder: Path, tables: Mapping[str, Mapping[str, Any]]) -> None:
    """Truncate tables to their sizes in a checkpoint, and delete tables that the checkpoint does not list."""
    for name in TABLES:
        if name in tables:
            os.truncate(folder / name, tables[name]["size"])
        else:
            (folder / name).unlink(missing_ok=True)


def run_id(folder: Path) -> str:
    """Return the id of a run or campaign, which its other files also contain; "" if it cannot be read."""
    for name in ("campaign.json", "config.json"):
        try:
            return str(json.loads((folder / name).read_text(encoding="utf-8"))["id"])
        except BROKEN:  # code that needs the file reports the error
            continue
    return ""


def _config(folder: Path) -> dict[str, Any]:
    """Read config.json of a run or campaign, without checking its values."""
    path = folder / "config.json"
    try:
        content = dict(json.loads(path.read_text(encoding="utf-8")))
        content["settings"] = dict(content["settings"])
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{folder} is not a run folder: it has no config.json") from None
    except BROKEN as error:
        raise InputError(f"{path} is damaged: {error!r}") from error
    if content.get("format") != CONFIG:
        raise files.other_version(path)
    return content


def recorded(folder: Path) -> dict[str, Any]:
    """Read the settings of a run or campaign, including `command`. The settings are not checked."""
    settings: dict[str, Any] = _config(folder)["settings"]
    return settings | {"command": str(settings.get("command"))}


def read_config(folder: Path) -> dict[str, Any]:
    """Read settings and sessions of a run. Raise InputError if config.json is missing, damaged or edited."""
    path, content = folder / "config.json", _config(folder)
    config: dict[str, Any] = {key: content[key] for key in ("settings", "sessions", "id", "former") if key in content}
    try:
        if not (isinstance(config["sessions"][-1], dict) and isinstance(config.get("former", []), list)):
            raise ValueError("its sessions are not records")
        total = digest(config)
    except BROKEN as error:
        raise InputError(f"{path} is damaged: {error!r}") from error
    if content.get("sha256") != total:
        raise InputError(f"{path} is damaged or was edited: its settings or sessions changed")
    return config


def read_run(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read the configuration and checkpoint of a run, also while it is written; raise InputError if they do not fit."""
    config, saved = read_config(folder), read_checkpoint(folder)
    if saved["settings"] not in (digest(config["settings"]), *config.get("former", ())):
        raise InputError(f"{folder / 'checkpoint.pt'} does not belong to {folder / 'config.json'}: the settings differ")
    for name, expected in saved["tables"].items():
        path = folder / name
        if not path.is_file() or measured(path, expected["size"]) != expected:
            raise InputError(f"{path} is damaged or was edited: its lines changed")
    return config, saved


def read_checkpoint(folder: Path) -> dict[str, Any]:
    """Read the last checkpoint of a run. Raise InputError if the file is damaged or from a different run."""
    return files.load(folder / "checkpoint.pt", "checkpoint", FORMAT, run_id(folder))


def digest(value: Any) -> str:
    """Return the SHA-256 hash of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def check_unchanged(data: str, before: str | None, now: str) -> None:
    """Raise InputError if a fingerprint changed from `before` (None in a new run) to `now`; `data` names the data."""
    if before not in (None, now):
        raise InputError(f"{data} have changed since the run began. Restore them, or start over")


def written(record: Any) -> dict[str, Any]:
    """Convert a dataclass of settings to a dictionary of JSON values."""
    return json.loads(json.dumps(asdict(record)))


def flat(record: Any, prefixes: Mapping[str, str]) -> dict[str, Any]:
    """Return settings as a flat dictionary for TensorBoard. `prefixes` maps nested settings to PREFIX in PREFIX.KEY."""
    plain = written(record)
    settings = {key: value for key, value in plain.items() if key not in (*prefixes, "fingerprint")}
    for key, prefix in prefixes.items():
        settings |= {f"{prefix}.{k}": value for k, value in (plain[key] or {}).items()}
    return settings


def read(cls: type[Record], recorded: Any, name: str) -> Record:
    """Restore a dataclass from the result of `written`; `name` is the file, for messages.

    Raise InputError for missing settings, unknown settings, and invalid values.
    """
    hints = get_type_hints(cls)
    if not isinstance(recorded, dict) or recorded.keys() != hints.keys():
        names = listed(recorded) if isinstance(recorded, dict) else shown(recorded)
        raise InputError(f"{name} must have the settings {listed(hints)}; got {names}")
    return read_part(cls, recorded, name)


def read_part(cls: type[Record], recorded: Mapping[str, Any], name: str) -> Record:
    """Build a dataclass from those recorded settings that are fields of the dataclass; ignore other settings."""
    hints = get_type_hints(cls)
    values = {key: value for key, value in recorded.items() if key in hints}
    return cls(**{key: _checked(hints[key], value, f"{name}: {key}") for key, value in values.items()})


def _checked(hint: Any, value: Any, name: str) -> Any:
    if is_dataclass(hint):
        return read(hint, value, name)  # type: ignore[arg-type]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is UnionType:
        for option in arguments:
            with contextlib.suppress(InputError):
                return _checked(option, value, name)
    elif origin is Mapping and isinstance(value, dict):
        return {key: _checked(arguments[1], v, f"{name}.{key}") for key, v in value.items()}
    elif hint is Any:
        return value
    elif origin is not Mapping and fits(hint, value):
        return tuple(value) if isinstance(value, list) else value  # JSON has no tuples
    raise InputError(f"{name} is {shown(value)}; it must be {describe(hint)}")
