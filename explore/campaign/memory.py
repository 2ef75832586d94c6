"""The state of a campaign's rows, replayed from the events of its log.

    schema    sets the columns: values = {"targets", "features", "id"}; logged at the start and after each change
    label     adds measurements: values has all measurements of the row by target, null for a failed experiment; from is
              their source: "table", "failed" (see `--failed`) or the name of a labels file
    correct   replaces earlier measurements (was) by new ones (values); otherwise like label
    retract   withdraws all measurements (was) of the row; it may be measured again
    suggest   marks the row as pending until it is measured; values has its prediction and score, if given
    skip      excludes the row from suggestions
    release   clears pending or skipped
    seen      records the row's target cells (table); the measurements stay the same
    change    updates the row's features (cells) and id (to)
    retire    marks the row as removed from the table; its measurements stay
    return    marks the row as back in the table
    undo      reverts the batch in values = {"batch"}

An undo reverts only label, correct, retract, suggest, skip and release; all other events describe the table.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, mode
from typing import Any, NamedTuple

from explore.campaign.cells import Value, has_all
from explore.campaign.log import Event
from explore.core.errors import InputError, listed, shown

MEASURED = ("label", "correct")
TOLD = (*MEASURED, "retract", "suggest", "skip", "release")
KINDS = (*TOLD, "seen", "retire", "return", "change", "schema", "undo")
FORMAT = 1  # of the events
FINGERPRINT = 64  # characters of a row's id if there is no identifier column
FEWEST = 6  # fewest characters of an abbreviated id


class Schema(NamedTuple):
    """The roles of columns, and how target cells are parsed. `keep_na` and `failed` are not logged."""

    targets: tuple[str, ...]
    features: tuple[str, ...]
    id_column: str | None = None
    classes: bool = False  # targets are class names; otherwise they are numbers
    keep_na: bool = False  # marks such as NA are classes; otherwise they mean "not measured"
    failed: tuple[str, ...] = ()  # strings for failed experiments; numeric targets always accept FAILED


@dataclass(eq=False)
class Row:
    """A row with an event in the log."""

    id: str  # its identifier, or else the fingerprint of its features; identical rows get a suffix -2, -3, ...
    cells: dict[str, str] = field(default_factory=dict)  # canonical features, by column
    values: dict[str, list[Value]] = field(default_factory=dict)  # all measurements, by target; None: failed
    logged: dict[str, list[Value]] = field(default_factory=dict)  # also replaced and withdrawn ones, and means
    table: dict[str, Value] = field(default_factory=dict)  # its target cells when the table was last read
    pending: int | None = None  # the batch that suggested it, if it has no result yet
    suggestion: dict[str, Any] = field(default_factory=dict)  # prediction and score of the last suggestion
    skipped: bool = False  # never to be suggested
    gone: bool = False  # no longer in the table
    former: dict[str, str] = field(default_factory=dict)  # earlier features, also in removed columns

    @property
    def mean(self) -> dict[str, Value]:
        """The value used for training, by target: the mean, or the most frequent class."""
        return {target: mean(values) for target, values in self.values.items()}

    @property
    def failed(self) -> bool:
        """Whether the experiment failed for at least one target."""
        return None in self.mean.values()

    @property
    def is_known(self) -> bool:
        """Whether the row is measured, pending or skipped."""
        return bool(self.values or self.pending is not None or self.skipped)

    def agrees(self, cells: Mapping[str, Value]) -> bool:
        """Return whether each value in `cells` equals one of the row's measurements of this target, or their mean."""
        return has_all({t: [*values, mean(values)] for t, values in self.values.items()}, cells)


class Memory:
    """All rows with an event in the log."""

    def __init__(self, events: Iterable[Mapping[str, Any]] = ()):
        """Replay events, oldest first."""
        self.schema: Schema | None = None  # when the table was last read; None: no table was read yet
        self.rows: dict[str, Row] = {}  # by id
        self.batches: dict[int, list[Event]] = {}  # the events that can be undone, by batch number
        self._aliases: dict[str, str] = {}  # new id by old id
        events = list(events)
        undone = {event["values"]["batch"] for event in events if event["event"] == "undo"}
        for event in events:
            self.apply(event, event["batch"] in undone)

    def apply(self, event: Mapping[str, Any], undone: bool = False) -> None:
        """Apply one event; with `undone`, apply only the part that an undo does not revert."""
        kind, values = event["event"], event.get("values") or {}
        if kind not in KINDS or (kind == "schema" and values["format"] > FORMAT):
            raise InputError("The log was written by a newer version of explore. Update explore.")
        if kind == "schema":
            columns = tuple(values["targets"]), tuple(values["features"]), values["id"]
            self.schema = Schema(*columns, values.get("classes", False))
            for row in self.rows.values():
                row.pending = None if self.done(row) else row.pending
        elif kind == "change":
            name, to = event["id"], event["to"]
            row = self.rows.pop(name, Row(name))
            row.former |= row.cells
            row.id, row.cells = to, dict(event["cells"])
            self.rows[to] = row
            self._aliases.pop(to, None)
            if name != to:
                self._aliases[name] = to
        elif kind != "undo":
            row = self._describe(event)
            if kind in TOLD and not undone:
                self._tell(row, event)

    def find(self, name: str) -> Row | None:
        """Return the row with this current or former id; None if there is none."""
        while name not in self.rows and name in self._aliases:
            name = self._aliases[name]
        return self.rows.get(name)

    def complete(self, row: Row) -> bool:
        """Return whether all targets of a row are measured."""
        return self.schema is not None and all(row.mean.get(target) is not None for target in self.schema.targets)

    def done(self, row: Row) -> bool:
        """Return whether a row needs no further measurement: it is complete or failed."""
        return self.complete(row) or row.failed

    def resolve(self, name: str, ids: Iterable[str] = ()) -> str:
        """Return the id of the only row with this current, former or abbreviated id; `ids` are those of the table."""
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
        """Apply the part of an event that an undo does not revert, and return the event's row."""
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


def short(name: str) -> str:
    """For messages, shorten a fingerprint to 12 characters but keep a suffix such as -2; leave other ids unchanged."""
    return name if len(name) < FINGERPRINT else name[:12] + name[FINGERPRINT:]


def mean(values: Sequence[Value]) -> Value:
    """Return the mean of numbers, or the most frequent class (the latest, if tied); None if all values are failures."""
    numbers = [value for value in values if isinstance(value, int | float)]
    names = [value for value in reversed(values) if isinstance(value, str)]
    return fmean(numbers) if numbers else mode(names) if names else None
