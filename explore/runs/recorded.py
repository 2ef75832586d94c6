"""Reading a run folder: its settings, its checkpoint, and how much of its tables belongs to that."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from explore.core import files
from explore.core.errors import InputError

TABLES = ("metrics.jsonl", "results.csv", "selected.csv")
FORMAT = 3  # of config.json and checkpoint.pt


class Prefix:
    """The first bytes of a table.

    Attributes:
        size: how many.
    """

    def __init__(self) -> None:
        self.size, self._hash = 0, hashlib.sha256()

    def extend(self, path: Path, size: int | None = None) -> None:
        """Read on, up to `size` bytes or all that there are."""
        with open(path, "rb") as file:
            file.seek(self.size)
            new = file.read() if size is None else file.read(size - self.size)
        self.size += len(new)
        self._hash.update(new)

    def state(self) -> dict[str, Any]:
        """Size and hash."""
        return {"size": self.size, "sha256": self._hash.hexdigest()}


def run_id(folder: Path) -> str:
    """The id that a run or a campaign gives its files; empty where an earlier version of explore began it."""
    for name in ("campaign.json", "config.json"):
        try:
            return str(json.loads((folder / name).read_text(encoding="utf-8"))["id"])
        except (OSError, ValueError, LookupError, TypeError, RecursionError):  # whoever needs the file says so
            continue
    return ""


def cut(folder: Path, tables: Mapping[str, Prefix]) -> None:
    """Take away what was written after a checkpoint."""
    for name in TABLES:
        if name in tables:
            os.truncate(folder / name, tables[name].size)
        else:  # it began after the checkpoint
            (folder / name).unlink(missing_ok=True)


def read_config(folder: Path) -> dict[str, Any]:
    """Settings and sessions of a run.

    Raises:
        InputError: when the folder is no run, or its config.json is not as it was written.
    """
    path = folder / "config.json"
    if not folder.is_dir():
        raise InputError(f"there is no run folder {folder}")
    if not path.is_file():
        raise InputError(f"{folder} is no run folder, or is damaged: it has no config.json")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        config: dict[str, Any] = {"settings": found["settings"], "sessions": found["sessions"]}
        config |= {"id": str(found["id"])} if "id" in found else {}
        if "former" in found:
            config["former"] = list(found["former"])
        if not (isinstance(config["settings"], dict) and isinstance(config["sessions"][-1], dict)):
            raise ValueError("settings or sessions are no records")
        total = digest(config)
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise InputError(f"{path} is damaged: {error}") from error
    if found.get("format") in (None, *range(FORMAT)):
        raise files.older(path)
    if (found["format"], found.get("sha256")) != (FORMAT, total):
        raise InputError(f"{path} is damaged, or was edited: settings and sessions are not those that were written")
    return config


def read_run(folder: Path) -> tuple[dict[str, Any], dict[str, Any], dict[str, Prefix]]:
    """Configuration, checkpoint, and how far each table is known, of a run that may be in use.

    Raises:
        InputError: when the folder is no run, damaged, put together from several runs, or of an older version.
    """
    config, saved = read_config(folder), read_checkpoint(folder)  # which are of one run
    if saved["settings"] not in (digest(config["settings"]), *config.get("former", ())):
        raise InputError(f"{folder / 'checkpoint.pt'} does not belong to {folder / 'config.json'}: the settings differ")
    tables: dict[str, Prefix] = {}
    for name, counted in saved["tables"].items():
        path = folder / name
        if not path.is_file():
            raise InputError(f"{path} is damaged: it is missing")
        tables[name] = prefix = Prefix()
        prefix.extend(path, counted["size"])
        if prefix.size < counted["size"]:
            raise InputError(
                f"{path} is damaged: it has {prefix.size} bytes, but the checkpoint counts {counted['size']} bytes"
            )
        if prefix.state() != counted:
            raise InputError(f"{path} is damaged, or was edited: its lines are not those that were written")
    return config, saved, tables


def read_checkpoint(folder: Path) -> dict[str, Any]:
    """What `record.Run.checkpoint` wrote.

    Raises:
        InputError: when it is missing, damaged or of another run.
    """
    path = folder / "checkpoint.pt"
    if not path.is_file():
        raise InputError(f"{folder} is damaged: it has no checkpoint.pt")
    found: dict[str, Any] = files.load(path, "checkpoint", FORMAT, run_id(folder))
    return found


def digest(value: Any) -> str:
    """The SHA-256 of what JSON can hold."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
