"""A campaign: a table, the folder beside it, and what was told, asked and answered so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from explore.campaign.answers import Answers
from explore.campaign.log import Log
from explore.campaign.memory import TOLD, Memory, Row, Schema
from explore.campaign.reconcile import SHOWN, Reading, short
from explore.campaign.sheet import Sheet
from explore.core.errors import InputError, counted, listed
from explore.data.reading import Cells

PACKED = (".gz", ".bz2", ".xz", ".zip", ".tar")


def folder_of(table: Path) -> Path:
    """The folder beside a table: POOL.explore for POOL.csv, POOL.csv.gz and POOL.xlsx."""
    while table.suffix in PACKED:
        table = table.with_suffix("")
    return table.with_suffix(".explore")


class Campaign:
    """What is known of the rows of a table over weeks; closed by `with` or `close`.

    Attributes:
        memory: what is known of every row.
        notes: sentences on all that was noticed, in order.
        ids: of every row of the table that was read.
        pool: the numbers of its rows, from 0, that may be handed out.
    """

    def __init__(self, folder: Path, dry: bool = False):
        """Open the folder, or make it; `dry`: nothing is written, locked or made.

        Raises:
            InputError: when another process is at it, or its log is damaged.
        """
        self._log = Log(folder, dry)
        try:
            self.memory = Memory(self._log.events)
        except BaseException:
            self._log.close()
            raise
        self.notes = list(self._log.notes)
        self.ids: tuple[str, ...] = ()
        self.pool: tuple[int, ...] = ()
        self._sheet: Sheet | None = None
        self._names: dict[str, str] = {}

    def read(self, table: Cells, schema: Schema, labels: Cells | None = None) -> None:
        """Compare what is known with the table, then with a file of labels, and log what they tell.

        Args:
            table: as it is now, its cells text or what Excel and Parquet have.
            schema: which of its columns are what.
            labels: measurements; what they say counts more than what the table says.

        Raises:
            InputError: when something in them cannot be used; the message names file, line and column, and nothing of
                them is logged.
            Failure: when the log cannot be written.
        """
        sheet = Sheet(table, schema)
        reading = Reading(self.memory, sheet)
        if labels is not None:
            Answers(labels, reading).tell()
        self._append(reading.events)
        self.notes += reading.sentences()
        self.ids, self._sheet, self._names = tuple(reading.ids), sheet, reading.names
        self._renew()

    @property
    def measured(self) -> list[Row]:
        """The rows of which every target is measured, those that are no longer in the table with them."""
        return self._which(self.memory.complete)

    @property
    def partly(self) -> list[Row]:
        """The rows of which some targets are measured, others not, or failed."""
        return self._which(lambda row: not self.memory.complete(row) and any(v is not None for v in row.mean.values()))

    @property
    def failed(self) -> list[Row]:
        """The rows whose experiment failed, for one target or all; they are not handed out again."""
        return self._which(lambda row: row.failed)

    @property
    def pending(self) -> list[Row]:
        """The rows that were handed out and are not answered yet."""
        return self._which(lambda row: row.pending is not None)

    @property
    def skipped(self) -> list[Row]:
        """The rows that are never to be handed out."""
        return self._which(lambda row: row.skipped)

    @property
    def answered(self) -> bool:
        """Whether anything was measured since rows were last handed out."""
        for _, events in sorted(self.memory.batches.items(), reverse=True):
            kinds = {event["event"] for event in events}
            if kinds & {"suggest", "label", "correct"}:
                return "suggest" not in kinds
        return False

    def suggest(self, rows: Sequence[int], values: Sequence[Mapping[Any, Any]] = ()) -> list[str]:
        """Hand out rows of the table: they are pending until they are answered or released.

        Args:
            rows: their numbers, out of `pool`.
            values: of each what was said of it, which is logged.

        Returns:
            Their ids.

        Raises:
            InputError: when one is not in the pool.
        """
        if len(set(rows)) < len(rows) or set(rows) - set(self.pool):
            raise InputError(f"rows {listed(rows)} are not all different ones of the pool")
        names = [self.ids[i] for i in rows]
        said = values or [{}] * len(names)
        self._tell([{"event": "suggest", "id": n, "values": dict(v)} for n, v in zip(names, said, strict=True)])
        return names

    def skip(self, names: Iterable[str]) -> None:
        """Never hand out some rows, by their ids; `release` takes it back.

        Raises:
            InputError: when there is no such row, or it is measured or failed.
        """

        def objection(row: Row) -> str:
            state = "failed" if row.failed else "is measured" if self.memory.done(row) else ""
            return state and f"{state} and will not be handed out; --retract withdraws that"

        self._operate("skip", self._resolved(names), objection, "Never to be handed out")

    def release(self, names: Iterable[str] | None = None) -> None:
        """Let rows that are pending or skipped be handed out again; without names all that are pending.

        Raises:
            InputError: when one is neither.
        """

        def objection(row: Row) -> str:
            neither = not row.skipped and row.pending is None
            return "is neither pending nor skipped; there is nothing to release" if neither else ""

        ids = [row.id for row in self.pending] if names is None else self._resolved(names)
        self._operate("release", ids, objection, "May be handed out again")

    def retract(self, names: Iterable[str]) -> None:
        """Withdraw all measurements and failures of some rows; they may be handed out again.

        Raises:
            InputError: when one was not measured.
        """

        def objection(row: Row) -> str:
            return "" if row.values else "was not measured; there is nothing to retract"

        self._operate("retract", self._resolved(names), objection, "No longer measured")

    def undo(self) -> None:
        """Take back the last batch of what was told or handed out; what the table looks like stays noticed.

        Raises:
            InputError: when there is none.
        """
        if not self.memory.batches:
            raise InputError("there is nothing to undo")
        last = max(self.memory.batches)
        events = self.memory.batches[last]
        self._append([{"event": "undo", "values": {"batch": last}}])
        self.memory = Memory(self._log.events)
        self._renew()
        kinds = Counter(event["event"] for event in events)
        what = listed(f"{kinds[kind]} x {kind}" for kind in TOLD if kinds[kind])
        self.notes.append(f"Batch {last} of {events[0]['time'][:16].replace('T', ' ')} UTC is taken back: {what}.")

    def status(self) -> list[str]:
        """Sentences on where the campaign stands."""
        gone = sum(row.gone for row in self.measured)
        away = f", {gone} of them no longer in the table" if gone else ""
        pool = f"; {len(self.pool)} may be handed out" if self._sheet else ""
        lines = [f"{counted(len(self.measured), 'row', be=True)} measured{away}{pool}."]
        batches: dict[int, list[Row]] = {}
        for row in self.pending:
            batches.setdefault(row.pending or 0, []).append(row)
        groups = []
        for batch, rows in sorted(batches.items()):
            since = next(event["time"][:10] for event in self._log.events if event["batch"] == batch)
            groups.append((f"Pending since {since} (batch {batch})", rows))
        groups.append(("Measured in part", [row for row in self.partly if not row.failed]))
        groups += [("Failed", self.failed), ("Skipped", self.skipped)]
        return lines + [f"{title}: {self._listed([row.id for row in rows])}." for title, rows in groups if rows]

    def close(self) -> None:
        """Let others use the folder."""
        self._log.close()

    def __enter__(self) -> Campaign:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _which(self, test: Callable[[Row], bool]) -> list[Row]:
        return [row for row in self.memory.rows.values() if test(row)]

    def _resolved(self, names: Iterable[str]) -> list[str]:
        return list(dict.fromkeys(self.memory.resolve(name.strip(), self.ids) for name in names))

    def _listed(self, names: Sequence[str]) -> str:
        return listed([self._names.get(name) or short(name) for name in names], SHOWN)

    def _operate(self, kind: str, ids: Sequence[str], objection: Callable[[Row], str], sentence: str) -> None:
        """Log an operation on some rows, unless there is an objection to one of them."""
        events = []
        for name in ids:
            row = self.memory.find(name) or Row(name)
            if why := objection(row):
                raise InputError(f"row {short(name)} {why}")
            events.append({"event": kind, "id": name} | ({"was": dict(row.values)} if kind == "retract" else {}))
        self._tell(events)
        self.notes.append(f"{sentence}: {self._listed(ids)}." if ids else "No row is pending.")

    def _tell(self, events: Sequence[dict[str, Any]]) -> None:
        """Log events, with the features of rows that nothing was known of."""
        at = {name: i for i, name in enumerate(self.ids)}
        for event in events:
            name = event["id"]
            if name not in self.memory.rows and self._sheet is not None:
                event["cells"] = self._sheet.cells(at[name])
                self._names[name] = self._sheet.name(at[name])
        self._append(events)
        self._renew()

    def _append(self, events: Sequence[Mapping[str, Any]]) -> None:
        for event in self._log.append(events):
            self.memory.apply(event)

    def _renew(self) -> None:
        closed = {row.id for row in self._which(lambda r: r.pending is not None or r.skipped or self.memory.done(r))}
        self.pool = tuple(i for i, name in enumerate(self.ids) if name not in closed)
