"""The log of a campaign: log.jsonl, to which events are appended before anything is done with them.

Every line is one event in JSON. What was appended together counts together: `left` says how many lines of it follow, so
that the lines of a process that was killed while it wrote are recognised and cut off. `sum` is the beginning of the
SHA-256 of the line before it and the `sum` of the line before: no line can be changed, left out or moved unnoticed.
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

from explore import files
from explore.errors import Failure, InputError

NAME = "log.jsonl"
SUM = 16  # hexadecimal digits
Event = dict[str, Any]


class Log:
    """The events of a folder, and the sole right to append to them.

    Attributes:
        events: all of them, from the first.
        cut: a sentence, when the end was of a process that was killed while it wrote.
    """

    def __init__(self, folder: Path, dry: bool = False):
        """Open it, and make the folder where there is none.

        Args:
            folder: where log.jsonl is.
            dry: nothing is written or locked, and what is appended is kept in memory only.

        Raises:
            InputError: when another process has it open, or when it is damaged; the message names the line.
        """
        self.path, self._dry = folder / NAME, dry
        self._lock: BaseFileLock | None = None
        if not dry:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise InputError(f"cannot make the folder {folder}: {error.strerror}") from error
            self._lock = files.lock(folder)
        try:
            self.events, self._sum, self.cut = self._read()
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
        lines, total = [], self._sum
        for event in new:
            line, total = _line(event, total)
            lines.append(line)
        if not self._dry and new:
            self._write(b"".join(lines))
        self._sum = total
        self.events += new
        return new

    def close(self) -> None:
        """Let others use it."""
        if self._lock is not None:
            self._lock.release()

    def _write(self, text: bytes) -> None:
        size = self.path.stat().st_size if self.path.exists() else 0
        try:
            with open(self.path, "ab", buffering=0) as file:
                rest = memoryview(text)
                while rest:
                    rest = rest[file.write(rest) :]
                os.fsync(file.fileno())
        except OSError as error:
            if self.path.exists():
                os.truncate(self.path, size)
            raise Failure(f"cannot write to {self.path}: {error.strerror}; nothing of it was written") from error

    def _read(self) -> tuple[list[Event], str, str]:
        """All events that are complete, the last sum, and what to say of the others, which are cut off."""
        try:
            whole = self.path.read_bytes()
        except FileNotFoundError:
            return [], "", ""
        except OSError as error:
            raise InputError(f"cannot read {self.path}: {error.strerror}") from error
        *lines, tail = whole.split(b"\n")
        if tail:
            lines.append(tail)
        events: list[Event] = []
        sums, ends, size = [""], [0], 0
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
        whole_batches = next((n for n in range(len(events), 0, -1) if events[n - 1]["left"] == 0), 0)
        return self._cut(whole, events[:whole_batches], sums[whole_batches], ends[whole_batches])

    def _damaged(self, line: int) -> InputError:
        return InputError(
            f"{self.path}, line {line}, is damaged or was edited, or lines before it are missing; "
            "put back a copy of the file"
        )

    def _cut(self, whole: bytes, events: list[Event], total: str, end: int) -> tuple[list[Event], str, str]:
        note = ""
        if end < len(whole):
            note = (
                f"The end of {self.path} was being written when a process was stopped; it does not count, and nothing "
                "of it had been used."
            )
        if not self._dry and end != len(whole):
            with open(self.path, "r+b") as file:
                file.truncate(min(end, len(whole)))
                if end > len(whole):
                    file.seek(0, os.SEEK_END)
                    file.write(b"\n")
                file.flush()
                os.fsync(file.fileno())
        return events, total, note


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
