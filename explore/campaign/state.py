"""The state of a campaign: what its table does not say. It is one file, which is replaced atomically.

campaign.json has the fields of `State`, and their SHA-256, which detects damage and edits.
"""

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, mode
from typing import Any, NamedTuple

from explore.campaign.cells import Value, close
from explore.core import files
from explore.core.errors import Failure, InputError, listed, shown
from explore.runs.recorded import digest

NAME = "campaign.json"
SETTINGS = "config.json"  # a folder that has this file must have a campaign.json
FORMER = "log.jsonl"  # the file in which earlier versions kept a campaign
FORMAT = 2
FINGERPRINT = 64  # characters of a row's id if there is no identifier column
FEWEST = 6  # fewest characters of an abbreviated id


class Schema(NamedTuple):
    """The roles of columns, and how target cells are parsed. Only the columns are stored."""

    targets: tuple[str, ...]
    features: tuple[str, ...]
    id_column: str | None = None
    classes: bool = False  # targets are class names; otherwise they are numbers
    keep_na: bool = False  # marks such as NA are classes; otherwise they mean "not measured"
    failed: tuple[str, ...] = ()  # strings for failed experiments; numeric targets always accept FAILED


@dataclass
class Row:
    """A row of the table that is or was measured, pending or skipped. Its fields are replaced, never changed."""

    id: str  # its identifier, or else the fingerprint of its features; identical rows get a suffix -2, -3, ...
    cells: dict[str, str] = field(default_factory=dict)  # canonical features, by column
    table: dict[str, Value] = field(default_factory=dict)  # its target cells when the table was last read
    overrides: dict[str, list[Value]] = field(default_factory=dict)  # count until the target's cell changes
    pending: int | None = None  # the step that suggested it, if it has no complete result yet
    suggestion: dict[str, Any] = field(default_factory=dict)  # prediction and score of the last suggestion
    skipped: bool = False  # never to be suggested
    gone: bool = False  # not in the table when the table was last read

    @property
    def values(self) -> dict[str, list[Value]]:
        """All measurements, by target; None stands for a failed experiment."""
        values = {target: [value] for target, value in self.table.items()} | self.overrides
        return {target: some for target, some in values.items() if some}

    @property
    def mean(self) -> dict[str, Value]:
        """The value used for training, by target: the mean, or the most frequent class."""
        return {target: mean(values) for target, values in self.values.items()}

    def agrees(self, cells: Mapping[str, Value]) -> bool:
        """Return whether each value in `cells` equals one of the row's measurements of this target, or their mean."""
        values = self.values
        return all(t in values and _contains(values[t], value) for t, value in cells.items())

    def read(self, cells: Mapping[str, Value], targets: Sequence[str]) -> None:
        """Set the row's target cells. An override ends when the cell changes to another value."""
        absent = ""  # unlike None, a failed experiment; no class has this name
        changed = {t for t in targets if not close(self.table.get(t, absent), cells.get(t, absent))}
        agreed = {t for t, values in self.overrides.items() if values and t in cells and _contains(values, cells[t])}
        self.overrides = {t: values for t, values in self.overrides.items() if t not in changed or t in agreed}
        self.table = {t: value for t, value in self.table.items() if t not in targets} | dict(cells)

    def record(self) -> dict[str, Any]:
        """Return the row as JSON values, without empty fields."""
        return {name: value for name, value in vars(self).items() if value}


@dataclass
class State:
    """The content of campaign.json."""

    id: str  # of the campaign, which its other files contain too
    schema: Schema | None = None  # the columns when the table was last read; None: no table was read yet
    rows: dict[str, Row] = field(default_factory=dict)  # those that are or were measured, pending or skipped, by id
    # The history, oldest first: {"time", "kind", "rows": the new data of each row, "before": the former rows}.
    steps: list[dict[str, Any]] = field(default_factory=list)  # numbered from 1
    # New ids by former ids, of rows whose id changed together with the columns of the table.
    aliases: dict[str, str] = field(default_factory=dict)

    @property
    def in_table(self) -> list[Row]:
        """The rows that were in the table when it was last read."""
        return [row for row in self.rows.values() if not row.gone]

    @property
    def targets(self) -> tuple[str, ...]:
        """The target columns."""
        return self.schema.targets if self.schema else ()

    def is_complete(self, row: Row) -> bool:
        """Return whether all targets of a row are measured."""
        return bool(self.targets) and all(row.mean.get(target) is not None for target in self.targets)

    def has_failed(self, row: Row) -> bool:
        """Return whether the experiment failed for at least one target."""
        return any(row.mean.get(target, "") is None for target in self.targets)

    def is_done(self, row: Row) -> bool:
        """Return whether a row needs no further measurement."""
        return self.is_complete(row) or self.has_failed(row)

    def step(self, kind: str, changes: Mapping[str, Any], before: Mapping[str, Row]) -> None:
        """Add a step with the changes by row, unless there are none; `before` has the former rows."""
        if changes:
            now = datetime.now(UTC).isoformat(timespec="seconds")
            former = {name: before[name].record() if name in before else None for name in changes}
            self.steps.append({"time": now, "kind": kind, "rows": dict(changes), "before": former})

    def undo(self) -> dict[str, Any]:
        """Revert the last step and return it. Cells of the table that it had read are not used until they change."""
        if not self.steps:
            raise InputError("there is nothing to undo")
        step = self.steps.pop()
        for former, record in step["before"].items():
            name = self.aliases.get(former, former)
            row, now = Row(**((record or {}) | {"id": name})), self.rows[name]
            values = row.values
            row.cells, row.table, row.gone = now.cells, now.table, now.gone
            differ = [t for t in {**values, **row.values} if values.get(t) != row.values.get(t)]
            row.overrides = row.overrides | {target: values.get(target, []) for target in differ}
            self.rows[name] = row
        return step

    def rename(self, names: Mapping[str, str]) -> None:
        """Change the ids of rows, given the new ids by the old ones; steps keep the old ones."""
        self.aliases = {old: names.get(new, new) for old, new in self.aliases.items()} | dict(names)
        for row in self.rows.values():
            row.id = names.get(row.id, row.id)
        self.rows = {row.id: row for row in self.rows.values()}

    def resolve(self, name: str, ids: Sequence[str] = ()) -> str:
        """Return the id of the only row with this current, former or abbreviated id; `ids` are those of the table."""
        every = {*self.rows, *ids}
        name = name if name in every else self.aliases.get(name, name)
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

    def json(self) -> dict[str, Any]:
        """Return the content of campaign.json, without the checksum."""
        schema = self.schema and dict(zip(Schema._fields[:3], self.schema[:3], strict=True))
        rows = [row.record() for row in self.rows.values()]
        return {"format": FORMAT} | vars(self) | {"schema": schema, "rows": rows}


def read(folder: Path) -> State:
    """Read the state of a campaign, or begin one. Raise InputError if the file is missing, damaged or edited."""
    path = folder / NAME
    if (folder / FORMER).exists():
        raise InputError(
            f"{folder} was written by an earlier version of explore; continue with that version, or move the folder "
            f"away and start over from the table (measurements that came from --labels are only in {FORMER})"
        )
    remedy = f"Restore {folder} from a backup, or move it away to start over from the table."
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content.pop("sha256") != digest(content):
            raise ValueError("its checksum is wrong")
        if content["format"] != FORMAT:
            raise files.other_version(path)
        schema = None
        if names := content["schema"]:
            schema = Schema(tuple(names["targets"]), tuple(names["features"]), names["id_column"])
        rows = {record["id"]: Row(**record) for record in content["rows"]}
        return State(content["id"], schema, rows, content["steps"], content["aliases"])
    except InputError:
        raise
    except FileNotFoundError:
        if (folder / SETTINGS).exists():
            raise InputError(f"{path} is missing, but the campaign has started. {remedy}") from None
        return State(secrets.token_hex(16))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{path} is damaged or was edited ({error}). {remedy}") from error


def write(folder: Path, state: State) -> None:
    """Write the state of a campaign. Raise Failure if it cannot be written; the former state then remains."""
    content = state.json()
    try:
        files.write_json(folder / NAME, content | {"sha256": digest(content)})
    except OSError as error:
        raise Failure(f"Cannot write {folder / NAME}: {error.strerror}. Nothing was recorded.") from error


def short(name: str) -> str:
    """For messages, shorten a fingerprint to 12 characters but keep a suffix such as -2; leave other ids unchanged."""
    return name if len(name) < FINGERPRINT else name[:12] + name[FINGERPRINT:]


def mean(values: Sequence[Value]) -> Value:
    """Return the mean of numbers, or the most frequent class (the latest, if tied); None if all values are failures."""
    numbers = [value for value in values if isinstance(value, int | float)]
    names = [value for value in reversed(values) if isinstance(value, str)]
    return fmean(numbers) if numbers else mode(names) if names else None


def _contains(values: Sequence[Value], value: Value) -> bool:
    return any(close(value, other) for other in (*values, mean(values)))
