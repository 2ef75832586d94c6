"""The log of a campaign: log.jsonl, to which events are appended before anything is done with them.

Every line is one event in JSON. What was appended together counts together: `left` says how many lines of it follow, so
that the lines of a process that was killed while it wrote are recognised and cut off. `sum` is the beginning of the
SHA-256 of the line before it and the `sum` of the line before, of the first line the campaign's id: no line can be
changed, left out or moved unnoticed, and lines at the end are missed by what `campaign.json` says, see `head`.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import BaseFileLock

from explore.campaign import head as heads
from explore.campaign.head import Head
from explore.core import files
from explore.core.errors import Failure, InputError

NAME = "log.jsonl"
SUM = 16  # hexadecimal digits
Event = dict[str, Any]


class Log:
    """The events of a folder, and the sole right to append to them.

    Attributes:
        events: all of them, from the first.
        notes: sentences, when an incomplete entry was discarded, or the campaign was of an earlier version.
    """

    def __init__(self, folder: Path, dry: bool = False):
        """Open it, and make the folder where there is none.

        Args:
            folder: where log.jsonl is.
            dry: nothing is written or locked, and what is appended is kept in memory only.

        Raises:
            InputError: when another process has it open, or when it is damaged or not all of the campaign's log; the
                message says how to go on.
        """
        self.path, self._folder, self._dry = folder / NAME, folder, dry
        self.notes: list[str] = []
        self._lock: BaseFileLock | None = None
        if not dry:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise InputError(f"cannot make the folder {folder}: {error.strerror}") from error
            self._lock = files.lock(folder)
        try:
            self._saved = heads.read(folder)  # before the log, which another process may be writing
            self.events, self._head = self._read()
        except BaseException:
            self.close()
            raise

    def append(self, events: Iterable[Mapping[str, Any]]) -> Sequence[Event]:
        """Write events as one batch, and come back when they are on the disk.

        Returns:
            The events with what every one gets: batch, a number that counts up from 1, time, in UTC, and left.

        Raises:
            Failure: when they cannot be written; then none of them is.
        """
        listed, now = list(events), datetime.now(UTC).isoformat(timespec="seconds")
        batch = self.events[-1]["batch"] + 1 if self.events else 1
        left = reversed(range(len(listed)))
        new = [
            {"event": None, "id": None, "values": None, **event, "time": now, "batch": batch, "left": n}
            for event, n in zip(listed, left, strict=True)
        ]
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
        """Let others use it."""
        if self._lock is not None:
            self._lock.release()

    def _write(self, text: bytes, head: Head) -> None:
        size = self.path.stat().st_size if self.path.exists() else 0
        try:
            if self._saved is None:  # first of all: a log without it is one whose campaign is not known
                self._save(self._head)
            with open(self.path, "ab", buffering=0) as file:
                rest = memoryview(text)
                while rest:
                    rest = rest[file.write(rest) :]
                os.fsync(file.fileno())
            self._save(head)
        except OSError as error:
            if self.path.exists():
                os.truncate(self.path, size)
            raise Failure(f"cannot write to {self.path}: {error.strerror}; nothing of it was written") from error

    def _save(self, head: Head) -> None:
        heads.write(self._folder, head)
        self._saved = head

    def _read(self) -> tuple[list[Event], Head]:
        """All events that are complete, after which the rest is cut off, and the head that goes with them."""
        try:
            whole = self.path.read_bytes()
        except FileNotFoundError:
            whole = b""
        except OSError as error:
            raise InputError(f"cannot read {self.path}: {error.strerror}") from error
        self._saved = self._saved or heads.read(self._folder)  # another process may have begun just now
        events, sums, ends = self._entries(whole, self._saved.id if self._saved else "")
        heads.check(self._folder, self.path, self._saved, sums)
        if self._saved is None and not whole:
            return [], heads.fresh()
        head = Head(sums[0], len(events), sums[-1])
        self._cut(whole, ends[-1])
        if not self._dry and head != self._saved:
            if self._saved is None:
                self.notes.append(f"{self._folder} is of an earlier version of explore; its log is now tied to it.")
            try:
                self._save(head)
            except OSError as error:
                raise Failure(f"cannot write {self._folder / heads.NAME}: {error.strerror}") from error
        return events, head

    def _entries(self, whole: bytes, name: str) -> tuple[list[Event], list[str], list[int]]:
        """The events of complete batches; and, from before the first on, their sums and where they end."""
        *lines, tail = whole.split(b"\n")
        if tail:
            lines.append(tail)
        events: list[Event] = []
        sums, ends, size = [name], [0], 0
        for n, line in enumerate(lines, 1):
            event = _event(line, sums[-1])
            if event is None:  # torn, unless only what ended it is another byte now
                if n == len(lines) and tail and _event(tail[:-1], sums[-1]) is None:
                    break
                raise self._damaged(n)
            events.append(event)
            sums.append(event.pop("sum"))
            size += len(line) + 1
            ends.append(size)
        complete = next((n for n in range(len(events), 0, -1) if events[n - 1]["left"] == 0), 0)
        return events[:complete], sums[: complete + 1], ends[: complete + 1]

    def _damaged(self, line: int) -> InputError:
        other = f", or {heads.NAME} is missing" if self._saved is None else ", or the file is of another campaign"
        return InputError(
            f"{self.path}, line {line}, is damaged or was edited, or lines before it are missing"
            f"{other if line == 1 else ''}; {heads.remedy(self._folder)}"
        )

    def _cut(self, whole: bytes, end: int) -> None:
        """Discard what stands behind the complete entries."""
        if end < len(whole):
            why = "the last run was interrupted"
            if self._saved is None:  # nothing says how long the file was
                why += ", or the file was cut short"
            self.notes.append(f"Discarded an incomplete entry at the end of {self.path} ({why}).")
        if not self._dry and end != len(whole):
            with open(self.path, "r+b") as file:
                file.truncate(min(end, len(whole)))
                if end > len(whole):
                    file.seek(0, os.SEEK_END)
                    file.write(b"\n")
                file.flush()
                os.fsync(file.fileno())


def _line(event: Mapping[str, Any], before: str) -> tuple[bytes, str]:
    """An event as a line, given the sum of the line before it; and its own sum."""
    body = json.dumps(event, allow_nan=False)
    total = hashlib.sha256((before + body).encode()).hexdigest()[:SUM]
    return f'{body[:-1]}, "sum": "{total}"}}\n'.encode(), total


def _event(line: bytes, before: str) -> Event | None:
    """The event of a line; None: its bytes are not those that were written."""
    try:
        event = json.loads(line)
        total = event.pop("sum")
        if _line(event, before)[0] != line + b"\n":
            return None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    event["sum"] = total
    return event
