"""One reading of a table, and perhaps of a labels file: the updated state, and notes for the user.

The table says what is measured. A labels file, `retract` and `undo` may say something else; that counts until the
table's cell changes. An emptied cell withdraws a measurement. Rows that leave the table are unused until they return.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from explore.campaign.cells import Value, folded, same
from explore.campaign.matching import identify
from explore.campaign.sheet import Answers, Table
from explore.campaign.state import Row, Schema, State, short
from explore.core.errors import listed, shown
from explore.data.reading import Cells
from explore.data.texts import FAILED

SHOWN = 8  # most rows to name in a sentence


class Reading:
    """A table that was read into a state, with the ids of its rows."""

    def __init__(self, state: State, table: Table, labels: Cells | None = None):
        """Update the state as one step. Raise InputError if the table or the labels file cannot be used."""
        self.table, self._state, self._notes = table, state, list(table.notes)
        self._lines: dict[str, list[str]] = defaultdict(list)  # the rows in a note, by the note with {} in their place
        old, state.schema = state.schema, Schema(*table.schema[:3])
        if old is not None:
            self._compare_columns(old, table.schema)
        self.ids, names = identify(table, list(state.rows.values()), old or table.schema)
        state.rename(names)
        self.at = {name: line for line, name in enumerate(self.ids)}  # the lines of the table, by id
        answers = Answers(labels, table, self.ids, state) if labels else None
        before = {name: replace(row) for name, row in state.rows.items()}
        self._read_rows()
        if answers:
            self._notes += answers.notes
            for name, values in answers.by_row().items():
                self._tell(self.row(name), before.get(name), values)
        self._compare(before, answers.file.path.name if answers else "table")
        self._add_lasting_notes()

    @property
    def notes(self) -> list[str]:
        """All notes, in order."""
        return [*self._notes, *(note.format(listed(dict.fromkeys(v), SHOWN)) for note, v in self._lines.items())]

    @property
    def _rows(self) -> list[Row]:
        """The known rows of the table, in its order."""
        return [self._state.rows[name] for name in self.ids if name in self._state.rows]

    def name(self, name: str) -> str:
        """Describe the row with the id `name`, for messages."""
        return self.table.name(self.at[name]) if name in self.at else short(name)

    def row(self, name: str) -> Row:
        """Return the row with this id; if it is not known yet, add it with the features in the table."""
        return self._state.rows.get(name) or self._state.rows.setdefault(
            name, Row(name, self.table.cells(self.at[name]))
        )

    def _compare_columns(self, old: Schema, new: Schema) -> None:
        """Add notes on changed columns."""
        for role, was, now in (("feature", old.features, new.features), ("target", old.targets, new.targets)):
            for start, names in (("New", set(now) - set(was)), ("No longer", set(was) - set(now))):
                if names:
                    self._notes.append(f"{start} {role} columns: {listed(sorted(names))}.")
        if old.id_column != new.id_column:
            kinds = [shown(column) if column else "their features" for column in (old.id_column, new.id_column)]
            self._notes.append(f"Rows were identified by {kinds[0]}, now by {kinds[1]}.")

    def _read_rows(self) -> None:
        """Update all known and measured rows from the table."""
        schema, failed = self.table.schema, set(map(folded, self.table.schema.failed))
        for name, measured in zip(self.ids, self.table.measurements, strict=True):
            if not measured and name not in self._state.rows:
                continue
            row, cells = self.row(name), self.table.cells(self.at[name])
            if row.gone:
                self._lines["Back in the table: {}."].append(self.name(name))
            if changed := [c for c in cells if not same(row.cells.get(c, cells[c]), cells[c])]:
                changes = [f"{c} was {row.cells[c] or 'empty'} and is {cells[c] or 'empty'}" for c in changed]
                label = "; keeps its measurement" if row.values else ""
                self._notes.append(f"{self.name(name)}: {listed(changes, 4)}{label}.")
            row.gone, row.cells = False, cells
            row.read(measured, schema.targets)
            if schema.classes and failed:  # a class may be declared as a failure now
                each = row.overrides.items()
                row.overrides = {t: [None if folded(str(v)) in failed else v for v in vs] for t, vs in each}
        for row in (row for row in self._state.in_table if row.id not in self.at):
            row.gone = True
            if row.values or row.pending is not None or row.skipped:
                self._lines["No longer in the table, and unused until they return: {}."].append(short(row.id))

    def _tell(self, row: Row, before: Row | None, values: Mapping[str, list[Value]]) -> None:
        """Use measurements from a labels file for a row, unless they repeat what is known."""
        for target, new in values.items():
            # A single value may be the mean, or what was known when next.csv was written.
            rows = [row, *([before] if before and before.pending is not None else [])]
            repeats = len(new) == 1 and any(known.agrees({target: new[0]}) for known in rows)
            if not repeats and sorted(map(repr, new)) != sorted(map(repr, row.values.get(target, []))):
                row.overrides = row.overrides | {target: new}

    def _compare(self, before: Mapping[str, Row], labels: str) -> None:
        """Add a step with the rows whose measurements differ from `before`, and notes on them."""
        changes: dict[str, dict[str, Any]] = {}  # by row and target
        for row in self._rows:
            former = before.get(row.id) or Row(row.id)
            old, new = former.values, row.values
            for target in (t for t in {**old, **new} if old.get(t) != new.get(t)):
                source = labels if row.overrides.get(target) not in (None, former.overrides.get(target)) else "table"
                changes.setdefault(row.id, {})[target] = {"values": new.get(target, []), "from": source}
                self._note(former, target, old.get(target, []), new.get(target, []), source)
            row.skipped = row.skipped and not any(change["values"] for change in changes.get(row.id, {}).values())
            row.pending = None if self._state.is_done(row) else row.pending
        is_measured = any(change["values"] for targets in changes.values() for change in targets.values())
        self._state.step("measure" if is_measured else "withdraw", changes, before)

    def _note(self, row: Row, target: str, old: list[Value], new: list[Value], source: str) -> None:
        """Add a note on a measurement that changed; `row` is the former one."""
        name = self.name(row.id)
        of = f" ({target})" if len(self.table.schema.targets) > 1 else ""
        if old and new:
            reason = "" if source == "table" else f" (from {source})"
            self._notes.append(f"{name}: corrected {target} from {_values(old)} to {_values(new)}{reason}.")
        elif old:
            self._lines["Withdrawn, because their cells were emptied: {}."].append(name + of)
        elif new == [None]:
            self._lines["Failed, will not be suggested again: {}."].append(name + of)
        else:
            batch = "" if row.pending is None else f" from batch {row.pending}"
            self._lines[f"New measurements{batch}: {{}}."].append(name)

    def _add_lasting_notes(self) -> None:
        """Add notes that are repeated at each reading: on identical rows, replicates, and cells that do not count."""
        groups, used = defaultdict(list), "most frequent class" if self.table.schema.classes else "mean"
        for line, key in enumerate(self.table.keys):
            groups[key].append(self.table.name(line))
        if identical := [names for names in groups.values() if len(names) > 1]:
            examples = "; ".join(listed(names, 4) for names in identical[:3]) + (", ..." if len(identical) > 3 else "")
            rows = f"{sum(map(len, identical))} rows share their features with others"
            self._notes.append(f"{rows} ({examples}). They are treated as replicates.")
        unlike = "The table still has the old values of corrected measurements: {}. The corrected values are used."
        advice = "They are not used. Empty these cells, or pass them again with --labels."
        for row in self._rows:
            name = self.name(row.id)
            for t, values in row.values.items():
                if len(values) > 1:
                    text = f"{name} ({t} {_values(values)}: {_values([row.mean[t]])})"
                    self._lines[f"Measured more than once; the {used} is used: {{}}."].append(text)
            for t, cell in ((t, f"{name} ({t} {_values([row.table[t]])}") for t in row.overrides if t in row.table):
                if not row.overrides[t]:
                    self._lines[f"The table still has withdrawn measurements: {{}}. {advice}"].append(f"{cell})")
                elif not row.agrees({t: row.table[t]}):
                    self._lines[unlike].append(f"{cell}, not {_values(row.overrides[t])})")


def _values(values: Sequence[Value]) -> str:
    return listed(map(_value, values), SHOWN)


def _value(value: Value) -> str:
    if isinstance(value, str):  # a class may be called "failed"
        return shown(value) if value.casefold() in FAILED else value
    return "failed" if value is None else f"{value:.12g}"
