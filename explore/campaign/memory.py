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

TOLD = ("label", "correct", "retract", "suggest", "skip", "release")
KINDS = (*TOLD, "seen", "retire", "return")
FORMAT = 1  # of the events
FINGERPRINT = 64  # letters of a row's id when there is no column of identifiers
FEWEST = 6  # of them stand for all


NEWER = InputError("the log is of a newer version of explore; update it")


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

    Attributes:
        id: its cell in the column of identifiers, or the fingerprint of its features, from the second of several
            identical rows on with -2, -3, ... behind it.
        cells: its features, canonical.
        values: every measurement, by target; None for one that failed.
        logged: all values that were ever told of it, by target, with their means; also those that were taken back.
        seen: what its cells of the targets held when the table was last read.
        pending: the batch in which it was handed out, if it is not answered yet.
        said: what was said of it when it was last handed out.
        skipped: whether it is never to be handed out.
        gone: whether it is no longer in the table.
        had: what its features were before they changed, those of columns that are no longer there with them.
    """

    id: str
    cells: dict[str, str] = field(default_factory=dict)
    values: dict[str, list[Value]] = field(default_factory=dict)
    logged: dict[str, list[Value]] = field(default_factory=dict)
    seen: dict[str, Value] = field(default_factory=dict)
    pending: int | None = None
    said: dict[str, Any] = field(default_factory=dict)
    skipped: bool = False
    gone: bool = False
    had: dict[str, str] = field(default_factory=dict)

    @property
    def mean(self) -> dict[str, Value]:
        """What a model learns from, by target: the mean of the measurements, or their most frequent class.

        None where all of them failed.
        """
        return {target: _mean(values) for target, values in self.values.items()}

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
        kind = event["event"]
        if kind == "schema":
            values = event["values"]
            if values["format"] > FORMAT:
                raise NEWER
            self.schema = Schema(
                tuple(values["targets"]), tuple(values["features"]), values["id"], values.get("classes", False)
            )
            for row in self.rows.values():
                row.pending = None if self.done(row) else row.pending
        elif kind == "change":
            self._change(event)
        elif kind in KINDS:
            self._row(event, counts and kind in TOLD, event.get("batch"))
        elif kind != "undo":
            raise NEWER

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
        """The id that a user means by an id or its first letters.

        Args:
            name: as it was given.
            ids: of the rows in the table.

        Raises:
            InputError: when there is no such row, or several.
        """
        if (row := self.find(name)) is not None:
            return row.id
        known = {*self.rows, *ids}
        if name in known:
            return name
        start, dash, number = name.partition("-")
        by_start = len(start) >= FEWEST and self.schema is not None and self.schema.id_column is None
        meant = sorted(i for i in known if by_start and i.startswith(start) and i[FINGERPRINT:] == dash + number)
        if len(meant) == 1:
            return meant[0]
        several = f"; it may be {listed(meant, 3)}" if meant else ""
        raise InputError(f"there is no row {shown(name)}{several}")

    def _row(self, event: Mapping[str, Any], told: bool, batch: int | None) -> None:
        name, kind = event["id"], event["event"]
        if name not in self.rows:
            self._aliases.pop(name, None)
        row = self.rows.setdefault(name, Row(name))
        row.cells = dict(event.get("cells", row.cells))
        row.seen = dict(event.get("table", row.seen))
        if kind in ("retire", "return"):
            row.gone = kind == "retire"
        for target, values in event["values"].items() if kind in ("label", "correct") else ():
            row.logged[target] = [*row.logged.get(target, []), *values, _mean(values)]
        if not told:
            return
        if batch is not None:
            self.batches.setdefault(batch, []).append(dict(event))
        if kind in ("label", "correct"):
            row.values = row.values | {target: list(values) for target, values in event["values"].items()}
            row.skipped = False
            row.pending = None if self.done(row) else row.pending
        elif kind == "retract":
            row.values = {}
        elif kind == "suggest":
            row.pending, row.skipped, row.said = batch, False, dict(event.get("values") or {})
        else:
            row.pending, row.skipped = None, kind == "skip"

    def _change(self, event: Mapping[str, Any]) -> None:
        name, to = event["id"], event["to"]
        row = self.rows.pop(name, None) or Row(name)
        row.had |= row.cells
        row.id, row.cells = to, dict(event["cells"])
        self.rows[to] = row
        self._aliases.pop(to, None)
        if name != to:
            self._aliases[name] = to


def _mean(values: Sequence[Value]) -> Value:
    """Of classes as frequent as each other it is the one that was measured last."""
    numbers = [value for value in values if isinstance(value, int | float)]
    names = Counter(value for value in reversed(values) if isinstance(value, str))
    return fmean(numbers) if numbers else names.most_common(1)[0][0] if names else None
