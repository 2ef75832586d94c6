"""A campaign: a table, the folder next to it, and all suggestions and measurements so far."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from explore.campaign.answers import Answers
from explore.campaign.log import Log
from explore.campaign.memory import TOLD, Memory, Row, Schema, short
from explore.campaign.reading import SHOWN, Reading
from explore.campaign.sheet import Table
from explore.core.errors import InputError, counted, listed
from explore.data.packed import PACKED
from explore.data.reading import Cells


def folder_of(table: Path) -> Path:
    """Return the campaign folder next to a table: POOL.explore for POOL.csv, POOL.csv.gz and POOL.xlsx."""
    while table.suffix in PACKED:
        table = table.with_suffix("")
    return table.with_suffix(".explore")


class Campaign(AbstractContextManager["Campaign"]):
    """A campaign on the rows of a table; use it in a `with` statement, or call `close` at the end."""

    def __init__(self, folder: Path, dry: bool = False):
        """Open or create the campaign folder, see `Log`. With `dry`, nothing is written, locked or created."""
        self._log = Log(folder, dry)
        self.notes = list(self._log.notes)  # sentences for the user, in order
        self.ids: tuple[str, ...] = ()  # of every row of the table, once the table is read
        self._reading: Reading | None = None
        try:
            self._append([])
        except BaseException:
            self._log.close()
            raise

    def read(self, table: Cells, schema: Schema, labels: Cells | None = None) -> None:
        """Read the table, then the labels file, which takes precedence, and log all changes.

        Raise InputError, and log nothing, if a file cannot be used. Raise Failure if the log cannot be written.
        """
        reading = Reading(self._log.events, Table(table, schema))
        if labels is not None:
            Answers(labels, reading).tell()
        self.ids, self._reading = tuple(reading.ids), reading
        self._append(reading.events)
        self.notes += reading.sentences()

    @property
    def answered(self) -> bool:
        """Whether anything was measured since the last suggestion."""
        for _, events in sorted(self.memory.batches.items(), reverse=True):
            kinds = {event["event"] for event in events}
            if kinds & {"suggest", "label", "correct"}:
                return "suggest" not in kinds
        return False

    def suggest(self, rows: Sequence[int], values: Sequence[Mapping[Any, Any]] = ()) -> list[str]:
        """Mark rows (indices from `pool`) as pending, log `values` (predictions and scores by row), and return ids."""
        if len(set(rows)) < len(rows) or set(rows) - set(self.pool):
            raise InputError(f"rows must be distinct indices from `pool`; got {listed(rows)}")
        names = [self.ids[i] for i in rows]
        suggestions = values or [{}] * len(names)
        self._tell([{"event": "suggest", "id": n, "values": dict(v)} for n, v in zip(names, suggestions, strict=True)])
        return names

    def skip(self, names: Iterable[str]) -> None:
        """Exclude rows from suggestions until they are released; raise InputError for measured or failed rows."""
        self._operate("skip", self._resolved(names), "Skipped")

    def release(self, names: Iterable[str] | None = None) -> None:
        """Release pending or skipped rows, by default all pending rows; raise InputError for any other row."""
        ids = [row.id for row in self.pending] if names is None else self._resolved(names)
        self._operate("release", ids, "Released")

    def retract(self, names: Iterable[str]) -> None:
        """Withdraw all results of rows, so that they may be suggested again; raise InputError if a row has none."""
        self._operate("retract", self._resolved(names), "Retracted the measurements of")

    def undo(self) -> None:
        """Undo the last batch of measurements, suggestions or operations."""
        if not self.memory.batches:
            raise InputError("there is nothing to undo")
        last, events = max(self.memory.batches.items())
        self._append([{"event": "undo", "values": {"batch": last}}])
        kinds = Counter(event["event"] for event in events)
        batch = listed(f"{kinds[kind]} x {kind}" for kind in TOLD if kinds[kind])
        self.notes.append(f"Undid batch {last} of {events[0]['time'][:16].replace('T', ' ')} UTC: {batch}.")

    def status(self) -> list[str]:
        """Return sentences that summarise the state of the campaign."""
        gone = sum(row.gone for row in self.measured)
        away = f" ({gone} no longer in the table)" if gone else ""
        pool = f", {counted(len(self.pool), 'candidate')} left" if self._reading else ""
        lines = [f"{len(self.measured)} measured{away}{pool}."]
        groups = []
        for batch in sorted({row.pending for row in self.pending if row.pending is not None}):
            since = next(event["time"][:10] for event in self._log.events if event["batch"] == batch)
            groups.append((f"Pending since {since} (batch {batch})", [r for r in self.pending if r.pending == batch]))
        groups.append(("Measured in part", [row for row in self.partly if not row.failed]))
        groups += [("Failed", self.failed), ("Skipped", self.skipped)]
        return lines + [f"{title}: {self._listed([row.id for row in rows])}." for title, rows in groups if rows]

    def close(self) -> None:
        """Release the lock on the folder."""
        self._log.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _resolved(self, names: Iterable[str]) -> list[str]:
        return list(dict.fromkeys(self.memory.resolve(name.strip(), self.ids) for name in names))

    def _listed(self, names: Sequence[str]) -> str:
        return listed([self._reading.name(name) if self._reading else short(name) for name in names], SHOWN)

    def _operate(self, kind: str, ids: Sequence[str], sentence: str) -> None:
        """Log an event `kind` per row and add a note; raise InputError if the operation does not apply to a row."""
        events = []
        for name in ids:
            row = self.memory.find(name) or Row(name)
            if kind == "skip" and self.memory.done(row):
                state = f"{'failed' if row.failed else 'is already measured'} and will not be suggested"
                raise InputError(f"row {short(name)} {state}. To withdraw its result, use --retract {short(name)}.")
            if kind == "release" and not row.skipped and row.pending is None:
                raise InputError(f"row {short(name)} is neither pending nor skipped; there is nothing to release")
            if kind == "retract" and not row.values:
                raise InputError(f"row {short(name)} was not measured; there is nothing to retract")
            events.append({"event": kind, "id": name} | ({"was": dict(row.values)} if kind == "retract" else {}))
        self._tell(events)
        self.notes.append(f"{sentence}: {self._listed(ids)}." if ids else "No row is pending.")

    def _tell(self, events: Sequence[dict[str, Any]]) -> None:
        """Log events; if a row is new in the log, add the row's features to its event."""
        for event in events:
            if event["id"] not in self.memory.rows and self._reading is not None:
                event["cells"] = self._reading.cells(event["id"])
        self._append(events)

    def _append(self, events: Sequence[Mapping[str, Any]]) -> None:
        """Log events, and update the state of the campaign. The lists of rows include rows that left the table."""
        self._log.append(events)
        self.memory = memory = Memory(self._log.events)  # the state of every row in the log
        rows = memory.rows.values()
        self.measured = [row for row in rows if memory.complete(row)]  # all targets are measured
        some = [row for row in rows if any(value is not None for value in row.mean.values())]
        self.partly = [row for row in some if not memory.complete(row)]  # the other targets are unmeasured or failed
        self.failed = [row for row in rows if row.failed]  # for at least one target; not suggested again
        self.pending = [row for row in rows if row.pending is not None]  # suggested, without a complete result yet
        self.skipped = [row for row in rows if row.skipped]  # excluded from suggestions by `skip`
        closed = {row.id for row in rows if row.pending is not None or row.skipped or memory.done(row)}
        # The indices (from 0) of the table's rows that may be suggested.
        self.pool = tuple(i for i, name in enumerate(self.ids) if name not in closed)
