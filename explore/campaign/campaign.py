"""A campaign: a table, the folder next to it, and all suggestions and measurements so far."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from explore.campaign import state as states
from explore.campaign.reading import SHOWN, Reading
from explore.campaign.sheet import Table
from explore.campaign.state import Row, Schema, short
from explore.core import files
from explore.core.errors import InputError, counted, listed
from explore.data.packed import PACKED
from explore.data.reading import Cells


def folder_of(table: Path) -> Path:
    """Return the campaign folder next to a table: POOL.explore for POOL.csv, POOL.csv.gz and POOL.xlsx."""
    while table.suffix in PACKED:
        table = table.with_suffix("")
    return table.with_suffix(".explore")


class Campaign(ExitStack):
    """A campaign on the rows of a table; use it in a `with` statement, or call `close` at the end.

    All methods change the campaign in memory; `save` writes it to the disk. Lists of rows have those in the table.
    """

    def __init__(self, folder: Path, dry: bool = False):
        """Open or create the campaign folder, and lock it. With `dry`, nothing is written, locked or created.

        Raise InputError if another process has the campaign open, or if its file is damaged or of another version.
        """
        super().__init__()
        self._folder, self._dry = folder, dry
        self.notes: list[str] = []  # sentences for the user, in order
        self.ids: tuple[str, ...] = ()  # of every row of the table, once the table is read
        self._others = 0  # rows that were not read, all candidates
        self._reading: Reading | None = None
        if not dry:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise InputError(f"cannot make the folder {folder}: {error.strerror}") from error
            self.callback(files.lock(folder).release)
        try:
            self.state = states.read(folder)
        except BaseException:
            self.close()
            raise

    def read(self, table: Cells, schema: Schema, labels: Cells | None = None, others: int = 0) -> None:
        """Read the table, then the labels file, which takes precedence, as one step.

        A table larger than memory may lack rows that are neither known nor measured; `others` is their number.
        Raise InputError if a file cannot be used; the campaign must then not be saved.
        """
        self._reading = Reading(self.state, Table(table, schema), labels)
        self.ids, self._others = self._reading.ids, others
        self.notes += self._reading.notes

    @property
    def measured(self) -> list[Row]:
        """The rows of which all targets are measured."""
        return [row for row in self.state.in_table if self.state.is_complete(row)]

    @property
    def partly(self) -> list[Row]:
        """The rows of which some targets are measured; the others are unmeasured or failed."""
        some = [row for row in self.state.in_table if any(row.mean.get(t) is not None for t in self.state.targets)]
        return [row for row in some if not self.state.is_complete(row)]

    @property
    def failed(self) -> list[Row]:
        """The rows that failed for at least one target; they are not suggested again."""
        return [row for row in self.state.in_table if self.state.has_failed(row)]

    @property
    def pending(self) -> list[Row]:
        """The rows that were suggested and have no complete result yet."""
        return [row for row in self.state.in_table if row.pending is not None]

    @property
    def skipped(self) -> list[Row]:
        """The rows that are excluded from suggestions by `skip`."""
        return [row for row in self.state.in_table if row.skipped]

    @property
    def pool(self) -> tuple[int, ...]:
        """The indices (from 0) of the rows that may be suggested."""
        closed = {row.id for row in self.state.in_table if self.state.is_done(row)}
        closed |= {row.id for row in (*self.pending, *self.skipped)}
        return tuple(i for i, name in enumerate(self.ids) if name not in closed)

    @property
    def candidates(self) -> int:
        """The number of rows that may be suggested."""
        return len(self.pool) + self._others

    @property
    def answered(self) -> bool:
        """Whether anything was measured since the last suggestion."""
        kinds = [step["kind"] for step in self.state.steps if step["kind"] in ("measure", "suggest")]
        return kinds[-1:] == ["measure"]

    def suggest(self, rows: Sequence[int], values: Sequence[Mapping[Any, Any]] = ()) -> list[str]:
        """Mark rows (indices from `pool`) as pending, keep `values` (predictions and scores by row), and return ids."""
        if len(set(rows)) < len(rows) or set(rows) - set(self.pool):
            raise InputError(f"rows must be distinct indices from `pool`; got {listed(rows)}")
        names = [self.ids[i] for i in rows]
        suggestions = {n: dict(v) for n, v in zip(names, values or [{}] * len(names), strict=True)}
        for row in self._change("suggest", suggestions):
            row.pending, row.skipped, row.suggestion = len(self.state.steps), False, suggestions[row.id]
        return names

    def operate(self, kind: str, names: Iterable[str] | None = None) -> None:
        """Do "skip", "release" or "retract" to rows, by default to all pending ones.

        Skipped rows are not suggested until they are released. To retract is to withdraw all results. Raise InputError
        if the operation does not apply to a row.
        """
        chosen = [row.id for row in self.pending] if names is None else names
        ids = list(dict.fromkeys(self.state.resolve(name.strip(), self.ids) for name in chosen))
        for row in (self.state.rows.get(name, Row(name)) for name in ids):
            name, done = short(row.id), "failed" if self.state.has_failed(row) else "is already measured"
            problem = {
                "skip": self.state.is_done(row) and f"{done} and will not be suggested; --retract {name} withdraws it",
                "release": row.pending is None and not row.skipped and "is neither pending nor skipped",
                "retract": not row.values and "was not measured; there is nothing to retract",
            }[kind]
            if problem:
                raise InputError(f"row {name} {problem}")
        sentence = {"skip": "Skipped", "release": "Released", "retract": "Retracted the measurements of"}[kind]
        self.notes.append(f"{sentence}: {self._listed(ids)}." if ids else "No row is pending.")
        for row in self._change(kind, dict.fromkeys(ids)):
            if kind == "retract":
                row.overrides = row.overrides | {target: [] for target in row.values}
            else:
                row.pending, row.skipped = None, kind == "skip"

    def undo(self) -> None:
        """Undo the last step: measurements, suggestions or an operation."""
        number, step = len(self.state.steps), self.state.undo()
        when, rows = step["time"][:16].replace("T", " "), f"{len(step['rows'])} x {step['kind']}"
        self.notes.append(f"Undid batch {number} of {when} UTC: {rows}.")

    def status(self) -> list[str]:
        """Return sentences that summarise the state of the campaign."""
        gone = sum(row.gone and self.state.is_complete(row) for row in self.state.rows.values())
        away = f" ({gone} more no longer in the table)" if gone else ""
        pool = f", {counted(self.candidates, 'candidate')} left" if self._reading else ""
        groups = []
        for batch in sorted({row.pending for row in self.pending if row.pending is not None}):
            since = self.state.steps[batch - 1]["time"][:10]
            groups.append((f"Pending since {since} (batch {batch})", [r for r in self.pending if r.pending == batch]))
        groups.append(("Measured in part", [row for row in self.partly if not self.state.has_failed(row)]))
        groups += [("Failed", self.failed), ("Skipped", self.skipped)]
        lines = [f"{title}: {self._listed(row.id for row in rows)}." for title, rows in groups if rows]
        return [f"{len(self.measured)} measured{away}{pool}.", *lines]

    def save(self) -> None:
        """Write the state, unless `dry`. Raise Failure if it cannot be written; the former state then remains."""
        if not self._dry:
            states.write(self._folder, self.state)

    def _listed(self, names: Iterable[str]) -> str:
        return listed(map(self._reading.name if self._reading else short, names), SHOWN)

    def _change(self, kind: str, changes: Mapping[str, Any]) -> list[Row]:
        """Add a step that changes these rows, and return the rows."""
        self.state.step(kind, changes, self.state.rows)
        return [self._reading.row(name) if self._reading else self.state.rows[name] for name in changes]
