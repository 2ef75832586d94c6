"""The append-only log of a campaign. Events are written to log.jsonl before they take effect.

Each line of log.jsonl is one event as JSON, with two fields that detect damage:

    left  the number of events of the same batch that follow; an incomplete batch of a killed process is discarded
    sum   the start of the SHA-256 of the previous line's `sum` (the campaign's id for the first line) and this event;
          no line can be changed, removed or moved unnoticed

campaign.json has the campaign's id, the number of entries and the last sum. It is written after the log. If a process
is killed in between, campaign.json counts fewer entries than the log, but never more.
"""

import hashlib
import json
import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from filelock import BaseFileLock

from explore.core import files
from explore.core.errors import Failure, InputError

NAME = "log.jsonl"
HEAD = "campaign.json"
SETTINGS = "config.json"  # the file of settings; a folder that has it must have a log
FORMAT = 1  # of campaign.json
SUM = 16  # hexadecimal digits
Event = dict[str, Any]


class Head(NamedTuple):
    """The content of campaign.json."""

    id: str
    entries: int  # number of entries in the log
    sum: str  # the `sum` of the last entry


def read_head(folder: Path) -> Head | None:
    """Read campaign.json; return None if it is missing. Raise InputError if it is damaged or of another version."""
    path = folder / HEAD
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        head = Head(str(content["id"]), int(content["entries"]), str(content["sum"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise InputError(f"{path} is damaged ({error}). {_remedy(folder)}") from error
    if content.get("format") != FORMAT:
        raise files.other_version(path)
    return head


def write_head(folder: Path, head: Head) -> Head:
    """Write campaign.json atomically; return its content."""
    files.write_json(folder / HEAD, {"format": FORMAT, **head._asdict()})
    return head


class Log:
    """The log of a campaign folder, locked against other processes."""

    def __init__(self, folder: Path, dry: bool = False):
        """Open the log, and create the folder if it is missing. With `dry`, nothing is written, locked or created.

        Raise InputError if another process has the log open, or if the log is damaged or incomplete.
        """
        self.path, self._folder, self._dry = folder / NAME, folder, dry
        self.notes: list[str] = []  # sentences for the user, e.g. if an incomplete entry was discarded
        self._lock: BaseFileLock | None = None
        if not dry:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise InputError(f"cannot make the folder {folder}: {error.strerror}") from error
            self._lock = files.lock(folder)
        try:
            self._saved = read_head(folder)  # before the log, which another process may be writing
            self.events, self._head = self._read()  # all events, oldest first
        except BaseException:
            self.close()
            raise

    def append(self, events: Iterable[Mapping[str, Any]]) -> Sequence[Event]:
        """Append events as one batch; return them with `batch` (a number), `time` (UTC) and `left` (see the module)."""
        batch, now = list(events), datetime.now(UTC).isoformat(timespec="seconds")
        number = self.events[-1]["batch"] + 1 if self.events else 1
        empty = {"event": None, "id": None, "values": None}
        new = [{**empty, **e, "time": now, "batch": number, "left": len(batch) - i} for i, e in enumerate(batch, 1)]
        lines, total = [], self._head.sum
        for event in new:
            line, total = _line(event, total)
            lines.append(line)
        head = Head(self._head.id, self._head.entries + len(new), total)
        if not self._dry and new:
            self._write(b"".join(lines), head)
        self._head = head
        self.events += new
        return new

    def close(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            self._lock.release()

    def _write(self, text: bytes, head: Head) -> None:
        size = self.path.stat().st_size if self.path.exists() else 0
        try:
            if self._saved is None:  # written before the log: a log without it belongs to no campaign
                self._saved = write_head(self._folder, self._head)
            files.append(self.path, text)
            self._saved = write_head(self._folder, head)
        except OSError as error:
            if self.path.exists():
                os.truncate(self.path, size)
            raise Failure(f"Cannot write to {self.path}: {error.strerror}. No entry was added.") from error

    def _read(self) -> tuple[list[Event], Head]:
        """Return the events of all complete batches and the matching `Head`; discard an incomplete last batch."""
        try:
            content = self.path.read_bytes() if self.path.exists() else b""
        except OSError as error:
            raise InputError(f"cannot read {self.path}: {error.strerror}") from error
        saved = self._saved = self._saved or read_head(self._folder)  # another process may have just created it
        if saved is None:
            if content or (self._folder / SETTINGS).exists():
                problem = f"{HEAD} is missing, but {self._folder} belongs to a started campaign"
                raise InputError(f"{problem}. {_remedy(self._folder)}")
            name = secrets.token_hex(16)
            return [], Head(name, 0, name)
        events, sums, end = self._entries(content, saved.id)
        self._check(sums, saved)
        head = Head(saved.id, len(events), sums[-1])
        if end < len(content):
            place = f"at the end of {self.path} (the last run was interrupted)"
            self.notes.append(f"Discarded an incomplete entry {place}.")
        if not self._dry and end != len(content):
            os.truncate(self.path, min(end, len(content)))
            files.append(self.path, b"\n" * (end - len(content)))  # only the last line break may be missing
        if not self._dry and head != saved:
            try:
                self._saved = write_head(self._folder, head)
            except OSError as error:
                raise Failure(f"cannot write {self._folder / HEAD}: {error.strerror}") from error
        return events, head

    def _entries(self, content: bytes, name: str) -> tuple[list[Event], list[str], int]:
        """Return (events, [campaign id `name`, sum of each event], bytes) of all complete batches in `content`."""
        *lines, tail = content.split(b"\n")
        events: list[Event] = []
        sums = [name]
        for n, line in enumerate([*lines, tail] if tail else lines, 1):
            event = _event(line, sums[-1])
            if event is None:  # an incomplete last line, unless only its last byte is wrong
                if n > len(lines) and _event(tail[:-1], sums[-1]) is None:
                    break
                first = ", or it belongs to another campaign" if n == 1 else ""
                reason = f"it was damaged or edited, or lines are missing{first}"
                raise InputError(f"{self.path} is inconsistent at line {n}: {reason}. {_remedy(self._folder)}")
            sums.append(event.pop("sum"))
            events.append(event)
        complete = max((n for n, event in enumerate(events, 1) if event["left"] == 0), default=0)
        return events[:complete], sums[: complete + 1], sum(len(line) + 1 for line in [*lines, tail][:complete])

    def _check(self, sums: list[str], head: Head) -> None:
        """Raise InputError if the log is missing, cut short, or of a different campaign; `sums` is from `_entries`."""
        folder, entries = self._folder, len(sums) - 1
        if entries < head.entries:
            missing = f"{'its end is' if entries else 'all are'} missing"
            written = f"{entries} of the {head.entries} entries that were written"
            raise InputError(f"{self.path} has {written}: {missing}. {_remedy(folder)}")
        if sums[head.entries] != head.sum:
            raise InputError(f"{self.path} and {HEAD} belong to different campaigns. {_remedy(folder)}")


def _remedy(folder: Path) -> str:
    return f"Restore {folder} from a backup, or move it away to start over."


def _line(event: Mapping[str, Any], before: str) -> tuple[bytes, str]:
    """Return an event as a line of the log, and its checksum; `before` is the checksum of the previous line."""
    body = json.dumps(event, allow_nan=False)
    total = hashlib.sha256((before + body).encode()).hexdigest()[:SUM]
    return f'{body[:-1]}, "sum": "{total}"}}\n'.encode(), total


def _event(line: bytes, before: str) -> Event | None:
    """Parse the event in a line; return None if the line does not match its checksum."""
    try:
        event = json.loads(line)
        total = event.pop("sum")
        if _line(event, before)[0] != line + b"\n":
            return None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    return event | {"sum": total}
