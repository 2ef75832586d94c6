"""What a campaign remembers of the rows of a table: a fold over the events of its log.

    schema    the columns: values = {"targets", "features", "id"}; logged at the beginning and when they change
    label     values: all measurements of a row by target, null where the experiment failed; told by its cell in the
              table, or by a file of labels (from)
    correct   the same, in place of others (was)
    retract   they were wrong; the row may be measured again
    suggest   the row was handed out: it is pending until it is answered; values: prediction and score, if given
    skip      it is never to be handed out
    release   it is no longer pending or skipped
    seen      what its cells of the targets hold now, which changes nothing else (table)
    change    its features changed (cells), and with them perhaps its id (to)
    retire    it is no longer in the table; what is known of it stays
    return    it is there again
    undo      values = {"batch"}: what that batch told is taken back

Label, correct, retract, suggest, skip and release are told; the others describe the table, and no undo changes them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, NamedTuple

from explore.campaign.cells import Value
from explore.campaign.log import Event
from explore.core.errors import InputError, listed, shown

MEASURED = ("label", "correct")
TOLD = (*MEASURED, "retract", "suggest", "skip", "release")
KINDS = (*TOLD, "seen", "retire", "return", "change", "schema", "undo")
FORMAT = 1  # of the events
FINGERPRINT = 64  # letters of a row's id when there is no column of identifiers
FEWEST = 6  # of them stand for all


class Schema(NamedTuple):
    """Which columns of the table are what, and how the cells of the targets are read, which is not logged."""

    targets: tuple[str, ...]
    features: tuple[str, ...]
    id_column: str | None = None
    classes: bool = False  # the targets name classes; else they are numbers
    keep_na: bool = False  # NA and other marks are classes; else nothing is measured there
    failed: tuple[str, ...] = ()  # texts that say that the experiment failed, beside those that always do in numbers


@dataclass
class Row:
    """A row that something is known of.

    Its id is its cell in the column of identifiers, or the fingerprint of its features, from the second of several
    identical rows on with -2, -3, ... behind it.
    """

    id: str
    cells: dict[str, str] = field(default_factory=dict)  # its features, canonical
    values: dict[str, list[Value]] = field(default_factory=dict)  # every measurement, by target; None: it failed
    logged: dict[str, list[Value]] = field(default_factory=dict)  # and all that were replaced or taken back, and means
    seen: dict[str, Value] = field(default_factory=dict)  # in its cells of the targets when the table was last read
    pending: int | None = None  # the batch in which it was handed out, if it is not answered yet
    said: dict[str, Any] = field(default_factory=dict)  # of it when it was last handed out
    skipped: bool = False  # never to be handed out
    gone: bool = False  # no longer in the table
    had: dict[str, str] = field(default_factory=dict)  # its features before they changed, also in columns now gone

    @property
    def mean(self) -> dict[str, Value]:
        """What a model learns from, by target."""
        return {target: mean(values) for target, values in self.values.items()}

    @property
    def failed(self) -> bool:
        """Whether the experiment failed, for one target or all."""
        return None in self.mean.values()

    @property
    def known(self) -> bool:
        """Whether it was measured, handed out or skipped."""
        return bool(self.values or self.pending is not None or self.skipped)


class Memory:
    """All rows that something is known of, by id.

    Attributes:
        schema: the columns when the table was last read; None: it never was.
        rows: by id.
        batches: number -> what was told in it, event by event; without those that were taken back.
    """

    def __init__(self, events: Iterable[Mapping[str, Any]] = ()):
        """The state after some events."""
        self.schema: Schema | None = None
        self.rows: dict[str, Row] = {}
        self.batches: dict[int, list[Event]] = {}
        self._aliases: dict[str, str] = {}  # of rows whose id changed
        events = list(events)
        undone = {event["values"]["batch"] for event in events if event["event"] == "undo"}
        for event in events:
            self.apply(event, event["batch"] not in undone)

    def apply(self, event: Mapping[str, Any], counts: bool = True) -> None:
        """Change the state by one event; of one that was taken back, what it says of the table remains."""
        kind, values = event["event"], event.get("values") or {}
        if kind not in KINDS or (kind == "schema" and values["format"] > FORMAT):
            raise InputError("the log is of a newer version of explore; update it")
        if kind == "schema":
            columns = tuple(values["targets"]), tuple(values["features"]), values["id"]
            self.schema = Schema(*columns, values.get("classes", False))
            for row in self.rows.values():
                row.pending = None if self.done(row) else row.pending
        elif kind == "change":
            self._change(event["id"], event["to"], event["cells"])
        elif kind != "undo":
            row = self._described(event)
            if counts and kind in TOLD:
                self._tell(row, event)

    def find(self, name: str) -> Row | None:
        """The row of an id, of one that it had, or None."""
        while name not in self.rows and name in self._aliases:
            name = self._aliases[name]
        return self.rows.get(name)

    def complete(self, row: Row) -> bool:
        """Whether all targets are measured."""
        return self.schema is not None and all(row.mean.get(target) is not None for target in self.schema.targets)

    def done(self, row: Row) -> bool:
        """Whether nothing more is to be measured: it is complete, or failed."""
        return self.complete(row) or row.failed

    def resolve(self, name: str, ids: Iterable[str] = ()) -> str:
        """The id that a user means by an id or its first letters; `ids` are those of the rows in the table.

        Raises:
            InputError: when there is no such row, or several.
        """
        if (row := self.find(name)) is not None:
            return row.id
        every = {*self.rows, *ids}
        if name in every:
            return name
        start, dash, number = name.partition("-")
        by_start = len(start) >= FEWEST and self.schema is not None and self.schema.id_column is None
        meant = sorted(i for i in every if by_start and i.startswith(start) and i[FINGERPRINT:] == dash + number)
        if len(meant) == 1:
            return meant[0]
        several = f"; it may be {listed(meant, 3)}" if meant else ""
        raise InputError(f"there is no row {shown(name)}{several}")

    def _described(self, event: Mapping[str, Any]) -> Row:
        """The row of an event, with what this says of the table and has logged of it, which no undo changes."""
        name, kind = event["id"], event["event"]
        if name not in self.rows:
            self._aliases.pop(name, None)
        row = self.rows.setdefault(name, Row(name))
        row.cells = dict(event.get("cells", row.cells))
        row.seen = dict(event.get("table", row.seen))
        if kind in ("retire", "return"):
            row.gone = kind == "retire"
        for target, values in event["values"].items() if kind in MEASURED else ():
            row.logged[target] = [*row.logged.get(target, []), *values, mean(values)]
        return row

    def _tell(self, row: Row, event: Mapping[str, Any]) -> None:
        kind, batch = event["event"], event.get("batch")
        if batch is not None:
            self.batches.setdefault(batch, []).append(dict(event))
        if kind in MEASURED:
            row.values = row.values | {target: list(values) for target, values in event["values"].items()}
            row.skipped = False
            row.pending = None if self.done(row) else row.pending
        elif kind == "retract":
            row.values = {}
        elif kind == "suggest":
            row.pending, row.skipped, row.said = batch, False, dict(event.get("values") or {})
        else:
            row.pending, row.skipped = None, kind == "skip"

    def _change(self, name: str, to: str, cells: Mapping[str, str]) -> None:
        row = self.rows.pop(name, None) or Row(name)
        row.had |= row.cells
        row.id, row.cells = to, dict(cells)
        self.rows[to] = row
        self._aliases.pop(to, None)
        if name != to:
            self._aliases[name] = to


def mean(values: Sequence[Value]) -> Value:
    """The mean of numbers, or the most frequent class, the latest of several; None where all failed."""
    numbers = [value for value in values if isinstance(value, int | float)]
    names = Counter(value for value in reversed(values) if isinstance(value, str))
    return fmean(numbers) if numbers else names.most_common(1)[0][0] if names else None
