"""campaign.json: which log belongs to a campaign, and how far it was written.

The sums of the log begin with the campaign's id, so the log of another campaign does not fit. The file is written after
the log: a process that is killed between the two leaves a log that is ahead of it, never one that is behind.
"""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import NamedTuple

from explore.core import files
from explore.core.errors import InputError

NAME = "campaign.json"
FORMAT = 1
SETTINGS = "config.json"  # of a folder in which something was logged


class Head(NamedTuple):
    """The id of a campaign, the number of entries of its log, and the sum of the last one.

    A campaign from before there was such a file has the id "".
    """

    id: str
    entries: int
    sum: str


def fresh() -> Head:
    """The head of a new campaign."""
    name = secrets.token_hex(16)
    return Head(name, 0, name)


def read(folder: Path) -> Head | None:
    """The head that a folder has; None: it has none.

    Raises:
        InputError: when the file is damaged or of another version.
    """
    path = folder / NAME
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        head = Head(str(content["id"]), int(content["entries"]), str(content["sum"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise InputError(f"{path} is damaged ({error}); {remedy(folder)}") from error
    if content.get("format") != FORMAT:
        raise InputError(f"{path} is of a newer version of explore; update it")
    return head


def write(folder: Path, head: Head) -> None:
    """Write it, whole or not at all.

    Raises:
        OSError: when it cannot be written.
    """
    with files.replacing(folder / NAME) as draft:
        draft.write_text(json.dumps({"format": FORMAT, **head._asdict()}, indent=2) + "\n", encoding="utf-8")


def check(folder: Path, log: Path, head: Head | None, sums: list[str]) -> None:
    """Refuse a log that is not the one that the campaign wrote, or lacks entries of it.

    Args:
        folder: of the campaign.
        log: its file, for messages.
        head: None: the folder has none.
        sums: of the log's complete entries, behind the id.

    Raises:
        InputError: saying how to go on and how to start over.
    """
    there = len(sums) - 1
    if head is None:
        if not there and (folder / SETTINGS).exists():
            raise InputError(f"{log} is missing or empty, though {folder} has a campaign; {remedy(folder)}")
    elif there < head.entries:
        raise InputError(
            f"{log} has {there} of the {head.entries} entries that were written: "
            f"{'its end is' if there else 'all are'} missing; {remedy(folder)}"
        )
    elif sums[head.entries] != head.sum:
        raise InputError(f"{log} is of another campaign than {folder / NAME}; {remedy(folder)}")


def remedy(folder: Path) -> str:
    """What to do about a folder whose files do not belong together."""
    return f"put back a copy of the whole folder {folder}, or move it away to start over"
