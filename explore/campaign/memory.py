"""The state of a campaign's rows after all events of its log.

    schema    the columns: values = {"targets", "features", "id"}; logged at the start and when they change
    label     all measurements of a row by target (values), null where the experiment failed; `from` says whether its
              cell in the table told them or a file of labels
    correct   the same, in place of others (was)
    retract   its measurements were wrong; the row may be measured again
    suggest   the row was suggested and is pending until it is answered; values: prediction and score, if given
    skip      never suggest it
    release   it is no longer pending or skipped
    seen      its cells of the targets (table), which tell nothing new
    change    its features changed (cells), and perhaps its id (to)
    retire    it is no longer in the table; its measurements stay
    return    it is in the table again
    undo      values = {"batch"}: that batch is undone

An undo changes only label, correct, retract, suggest, skip and release; the others describe the table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, NamedTuple

from explore.campaign.cells import Value, has_all
from explore.campaign.log import Event
from explore.core.errors import InputError, listed, shown

MEASURED = ("label", "correct")
TOLD = (*MEASURED, "retract", "suggest", "skip", "release")
KINDS = (*TOLD, "seen", "retire", "return", "change", "schema", "undo")
FORMAT = 1  # of the events
FINGERPRINT = 64  # letters of a row's id when there is no column of identifiers
FEWEST = 6  # letters that may abbreviate an id


class Schema(NamedTuple):
    """The roles of columns, and how the cells of targets are read, which is not logged."""

    targets: tuple[str, ...]
    features: tuple[str, ...]
    id_column: str | None = None
    classes: bool = False  # the targets name classes; else they are numbers
    keep_na: bool = False  # NA and other marks are classes; else nothing is measured there
    failed: tuple[str, ...] = ()  # texts of failed experiments, beside those that always are among numbers


@dataclass(eq=False)
class Row:
    """A row with an event in the log.

    Its id is its cell in the column of identifiers, or the fingerprint of its features, with -2, -3, ... behind it for
    the second, third, ... of identical rows.
    """

    id: str
    cells: dict[str, str] = field(default_factory=dict)  # its features, canonical
    values: dict[str, list[Value]] = field(default_factory=dict)  # every measurement, by target; None: it failed
    logged: dict[str, list[Value]] = field(default_factory=dict)  # also those replaced or withdrawn, and means
    table: dict[str, Value] = field(default_factory=dict)  # its cells of targets when the table was last read
    pending: int | None = None  # the batch in which it was suggested, if it is not answered yet
    suggestion: dict[str, Any] = field(default_factory=dict)  # its prediction and score when it was last suggested
    skipped: bool = False  # never to be suggested
    gone: bool = False  # no longer in the table
    former: dict[str, str] = field(default_factory=dict)  # its features before they changed, also in removed columns

    @property
    def mean(self) -> dict[str, Value]:
        """The value that a model learns from, by target."""
        return {target: mean(values) for target, values in self.values.items()}

    @property
    def failed(self) -> bool:
        """Whether the experiment failed, for one target or all."""
        return None in self.mean.values()

    @property
    def is_known(self) -> bool:
        """Whether it was measured, suggested or skipped."""
        return bool(self.values or self.pending is not None or self.skipped)

    def agrees(self, cells: Mapping[str, Value]) -> bool:
        """Return whether cells of targets have a measurement of each target, or their mean."""
        return has_all({t: [*values, mean(values)] for t, values in self.values.items()}, cells)


class Memory:
    """All rows with an event in the log, by id.

    Attributes:
        schema: the columns when the table was last read; None: it never was.
        rows: by id.
        batches: the events of each batch that an undo can take back, by number, without those that were undone.
    """

    def __init__(self, events: Iterable[Mapping[str, Any]] = ()):
        """Apply events in their order."""
        self.schema: Schema | None = None
        self.rows: dict[str, Row] = {}
        self.batches: dict[int, list[Event]] = {}
        self._aliases: dict[str, str] = {}  # of rows whose id changed
        events = list(events)
        undone = {event["values"]["batch"] for event in events if event["event"] == "undo"}
        for event in events:
            self.apply(event, event["batch"] in undone)

    def apply(self, event: Mapping[str, Any], undone: bool = False) -> None:
        """Apply one event; of an undone one, only its table description."""
        kind, values = event["event"], event.get("values") or {}
        if kind not in KINDS or (kind == "schema" and values["format"] > FORMAT):
            raise InputError("The log was written by a newer version of explore. Update explore.")
        if kind == "schema":
            columns = tuple(values["targets"]), tuple(values["features"]), values["id"]
            self.schema = Schema(*columns, values.get("classes", False))
            for row in self.rows.values():
                row.pending = None if self.done(row) else row.pending
        elif kind == "change":
            self._change(event["id"], event["to"], event["cells"])
        elif kind != "undo":
            row = self._describe(event)
            if kind in TOLD and not undone:
                self._tell(row, event)

    def find(self, name: str) -> Row | None:
        """Find the row with a current or former id, or None."""
        while name not in self.rows and name in self._aliases:
            name = self._aliases[name]
        return self.rows.get(name)

    def complete(self, row: Row) -> bool:
        """Return whether all targets are measured."""
        return self.schema is not None and all(row.mean.get(target) is not None for target in self.schema.targets)

    def done(self, row: Row) -> bool:
        """Return whether nothing is left to measure: the row is complete, or failed."""
        return self.complete(row) or row.failed

    def resolve(self, name: str, ids: Iterable[str] = ()) -> str:
        """Resolve an id or its first letters; `ids` are the ids of the rows in the table.

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
        if meant:
            raise InputError(f"Row {shown(name)} is ambiguous: {listed(map(short, meant), 3)}. Use more letters.")
        raise InputError(f"no row {shown(name)}")

    def _describe(self, event: Mapping[str, Any]) -> Row:
        """Apply the part of an event that no undo changes, and return its row."""
        name, kind = event["id"], event["event"]
        if name not in self.rows:
            self._aliases.pop(name, None)
        row = self.rows.setdefault(name, Row(name))
        row.cells = dict(event.get("cells", row.cells))
        row.table = dict(event.get("table", row.table))
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
            row.pending, row.skipped, row.suggestion = batch, False, dict(event.get("values") or {})
        else:
            row.pending, row.skipped = None, kind == "skip"

    def _change(self, name: str, to: str, cells: Mapping[str, str]) -> None:
        row = self.rows.pop(name, None) or Row(name)
        row.former |= row.cells
        row.id, row.cells = to, dict(cells)
        self.rows[to] = row
        self._aliases.pop(to, None)
        if name != to:
            self._aliases[name] = to


def short(name: str) -> str:
    """Shorten an id for messages: a fingerprint to its first letters, which still identify it."""
    return name if len(name) < FINGERPRINT else name[:12] + name[FINGERPRINT:]


def mean(values: Sequence[Value]) -> Value:
    """Return the mean of numbers, or the most frequent class, the latest of several; None where all failed."""
    numbers = [value for value in values if isinstance(value, int | float)]
    names = Counter(value for value in reversed(values) if isinstance(value, str))
    return fmean(numbers) if numbers else names.most_common(1)[0][0] if names else None
