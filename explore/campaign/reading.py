"""Comparison of a table with a campaign's memory: events that update the memory, and notes for the user.

A new value in an empty target cell is a label. A value that differs from the last reading is a correction. Unchanged
cells are ignored. Therefore, a label that was withdrawn, or corrected by a labels file, is not restored by the old
value in the table; a note reports the old value at every reading. An emptied cell changes nothing.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from explore.campaign.cells import Value, folded, same, same_value
from explore.campaign.log import Event
from explore.campaign.matching import match_identical, match_moved
from explore.campaign.memory import FORMAT, Memory, Row, short
from explore.campaign.sheet import Table, key
from explore.core.errors import InputError, listed, shown
from explore.data.texts import FAILED

SHOWN = 8  # most rows to name in a sentence
EMPTIED = "Ignored emptied cells of "  # start of a sentence


class Reading:
    """The result of reading a table: the updated memory, and the new events for the log."""

    def __init__(self, events: Sequence[Event], table: Table):
        """Compare the table with the memory replayed from the events of a log."""
        self.memory, self.table, self.before = Memory(events), table, Memory(events)  # after and before the new events
        self.events: list[Event] = []  # the new ones
        self.notes = list(table.notes)  # on single rows and columns; `sentences` returns all notes
        self.lines: dict[str, list[str]] = defaultdict(list)  # rows to list in a sentence, by the start of the sentence
        self.ids: list[str] = []  # of every row of the table
        self.at: dict[str, int] = {}  # the lines of the table, by id
        self.outside: dict[str, str] = {}  # the places of rows that only a labels file has
        groups: dict[str, list[int]] = defaultdict(list)  # lines of the table by key
        for line, k in enumerate(table.keys):
            groups[k].append(line)
        has_other_ids = self._read_columns()
        self._move_rows(groups, has_other_ids)
        self._identify_rows(groups)
        for line in (line for members in groups.values() for line in members):
            if table.measurements[line] or self.ids[line] in self.memory.rows:
                self._read_row(self.ids[line], line)
        self._note_identical(groups)
        self._retire_rows()
        self._declare_failures()

    def tell(self, event: str, name: str, **more: Any) -> None:
        """Add an event on row `name`, with the further fields `more`, and apply the event to the memory."""
        if name not in self.memory.rows and "cells" not in more:
            more = {"cells": self.cells(name), **more}
        self.events.append({"event": event, "id": name, **more})
        self.memory.apply(self.events[-1])

    def cells(self, name: str) -> dict[str, str] | None:
        """Return the features of a row; None if the row is neither known nor in the table."""
        if name in self.memory.rows:
            return self.memory.rows[name].cells
        return self.table.cells(self.at[name]) if name in self.at else None

    def name(self, name: str) -> str:
        """Describe the row with the id `name`, for messages."""
        if name in self.at:
            return self.table.name(self.at[name])
        return self.outside.get(name) or short(name)

    def tell_measurements(
        self, name: str, values: Mapping[str, list[Value]], source: str, **table: Mapping[str, Value]
    ) -> None:
        """Add events on a row: a label for targets whose `values` extend known measurements, a correction for others.

        `values` has all measurements by target. `source` is the name of a labels file, "table" (then the keyword
        `table` has the row's target cells), or "failed" for classes that are now declared as failures.
        """
        row = self.memory.rows.get(name) or Row(name)
        pending, was = row.pending, {t: list(row.values.get(t, [])) for t in values}
        labels = {t: new for t, new in values.items() if new[: len(was[t])] == was[t]}
        corrected = {t: new for t, new in values.items() if t not in labels}
        for t, new in corrected.items():
            still = f"; the table still has {_values([row.table[t]])}" if t in row.table else ""
            reason = "" if source in ("table", "failed") else f" (from {source}{still})"
            self.notes.append(f"{self.name(name)}: corrected {t} from {_values(was[t])} to {_values(new)}{reason}.")
        if labels:
            self.tell("label", name, values=labels, **{"from": source}, **table)
            if failed := [target for target, new in labels.items() if new == [None]]:
                targets = "" if len(self.table.schema.targets) == 1 else f" ({listed(failed)})"
                self.lines["Failed, will not be suggested again: "].append(self.name(name) + targets)
            if len(failed) < len(labels):
                start = "New measurements: " if pending is None else f"New measurements from batch {pending}: "
                self.lines[start].append(self.name(name))
        if corrected:
            was = {t: was[t] for t in corrected}
            self.tell("correct", name, values=corrected, was=was, **{"from": source}, **table)

    def _read_columns(self) -> bool:
        """Add a schema event if columns changed; return whether the identifier column changed."""
        old, new = self.memory.schema, self.table.schema
        if old is not None and old.classes != new.classes:
            has, needs = ("numbers", "classes") if new.classes else ("classes", "numbers")
            asked = f"--task {'classification' if new.classes else 'regression'} needs {needs}"
            advice = "Copy the table and start a new campaign."
            raise InputError(f"This campaign has {has} as measurements; {asked}. {advice}")
        if old and (old.targets, {*old.features}, old.id_column) == (new.targets, {*new.features}, new.id_column):
            return False
        values = {"targets": list(new.targets), "features": list(new.features), "id": new.id_column, "format": FORMAT}
        self.events.append({"event": "schema", "values": values | ({"classes": True} if new.classes else {})})
        self.memory.apply(self.events[-1])
        if old is None:
            return False
        for role, was, now in (("feature", old.features, new.features), ("target", old.targets, new.targets)):
            for start, names in (("New", set(now) - set(was)), ("No longer", set(was) - set(now))):
                if names:
                    self.notes.append(f"{start} {role} columns: {listed(sorted(names))}.")
        if old.id_column != new.id_column:
            kinds = [shown(c) if c else "their features" for c in (old.id_column, new.id_column)]
            self.notes.append(f"Rows were identified by {kinds[0]}, now by {kinds[1]}.")
        return old.id_column != new.id_column

    def _move_rows(self, groups: Mapping[str, list[int]], has_other_ids: bool) -> None:
        """Match known rows that left the table to new lines, and update these rows' ids. `groups` has lines by key."""
        has_other_columns = any(event["event"] == "schema" for event in self.events)
        schema, rows = self.table.schema, self.memory.rows
        old_keys = {key(name, schema) for name in rows}
        lost = [r for r in rows.values() if key(r.id, schema) not in groups and (has_other_columns or not r.gone)]
        fresh = {k: members[0] for k, members in groups.items() if k not in old_keys} if lost else {}
        keys, unclear = match_moved(lost, self.table, fresh, bool(schema.id_column) and not has_other_ids)
        for row in (row for row in lost if row.id in keys):
            name, old = row.id, dict(row.cells)
            to = next(_free_ids(keys[name], rows))
            self.tell("change", name, to=to, cells=self.table.cells(fresh[keys[name]]))
            if not has_other_columns:
                change = f"{short(name)} is now {short(to)}" if schema.id_column else _changes(old, row.cells)
                self.lines["Matched to known rows although they changed: "].append(change)
        if names := [short(row.id) for row in unclear if row.is_known]:
            moved = f"{'row' if len(names) == 1 else 'rows'} {listed(names, SHOWN)} to the changed table"
            advice = "stay under the old ids. Enter any measurements in the correct rows of the table."
            self.notes.append(f"Cannot match {moved}: several rows fit. Data recorded so far {advice}")

    def _identify_rows(self, groups: Mapping[str, list[int]]) -> None:
        """Set the id of every line of the table; `groups` has the lines by key."""
        old = defaultdict(list)
        for row in self.memory.rows.values():
            old[key(row.id, self.table.schema)].append(row)
        self.ids = list(self.table.keys)
        for k, members in groups.items():
            if (rows := old.get(k, [])) or len(members) > 1:
                names = _free_ids(k, {row.id for row in rows})
                matched = match_identical(rows, [self.table.measurements[line] for line in members])
                for line, match in zip(members, matched, strict=True):
                    self.ids[line] = match.id if match else next(names)
        self.at = {name: line for line, name in enumerate(self.ids)}

    def _read_row(self, name: str, line: int) -> None:
        """Compare one known or measured row of the table with the memory, and add events for the differences."""
        is_new, row = name not in self.memory.rows, self.memory.rows.get(name) or Row(name)
        cells, now = self.table.cells(line), self.table.measurements[line]
        if row.gone:
            self.tell("return", name)
            self.lines["Back in the table: "].append(self.name(name))
        if not is_new and row.cells != cells:
            common = {c: row.cells[c] for c in row.cells if c in cells}
            if any(not same(cell, cells[c]) for c, cell in common.items()):
                label = "; keeps its measurement" if row.values else ""
                self.notes.append(f"{self.name(name)}: {_changes(common, cells)}{label}.")
            self.tell("change", name, to=name, cells=cells)
        new = {t: v for t, v in now.items() if t not in row.table or not same_value(v, row.table[t])}
        values = {t: [v] for t, v in new.items() if not row.agrees({t: v})}
        emptied = [t for t in row.table if t not in now]
        if withdrawn := [self.name(name) for t in emptied if t in row.values]:
            self.lines[EMPTIED] += withdrawn
        if values:
            self.tell_measurements(name, values, "table", table=dict(now))
        elif new or emptied:
            self.tell("seen", name, table=dict(now))

    def _note_identical(self, groups: Mapping[str, list[int]]) -> None:
        if identical := [members for members in groups.values() if len(members) > 1]:
            lines = [listed([self.table.name(line) for line in members], 4) for members in identical[:3]]
            examples = f"{'; '.join(lines)}{', ...' if len(identical) > 3 else ''}"
            rows = f"{sum(map(len, identical))} rows share their features with others"
            self.notes.append(f"{rows} ({examples}). They are treated as replicates.")

    def _retire_rows(self) -> None:
        """Add events for known rows that left the table. Without identifiers, note new rows that may replace them."""
        new = [e for e in self.events if e["event"] == "label" and "cells" in e]
        for row in [r for r in self.memory.rows.values() if r.is_known and not r.gone and r.id not in self.at]:
            self.tell("retire", row.id)
            answer = "failed" if row.failed else "measured" if row.values else ""
            state = answer or ("pending" if row.pending is not None else "skipped")
            self.lines[f"No longer in the table, but kept as {state}: "].append(short(row.id))
            alike = [e for e in new if row.table and e["table"] == row.table]
            near = [e for e in alike if len({name for name, _ in row.cells.items() ^ e["cells"].items()}) == 1]
            if len(near) == 1 and not self.table.schema.id_column:
                old = f"{short(row.id)}, which is no longer in the table; {_changes(row.cells, near[0]['cells'])}"
                advice = f"Both are used. If the new row replaces the old one, run with --retract {short(row.id)}."
                self.notes.append(f"{self.name(near[0]['id'])} has the same measurement as {old}. {advice}")

    def _declare_failures(self) -> None:
        """Correct recorded classes to failures if `--failed` now declares these classes as failures."""
        failed = set(map(folded, self.table.schema.failed))
        for row in [row for row in self.memory.rows.values() if self.table.schema.classes and failed]:
            declared = {v for vs in row.values.values() for v in vs if isinstance(v, str) and folded(v) in failed}
            values = {t: [None if v in declared else v for v in vs] for t, vs in row.values.items()}
            self.tell_measurements(row.id, {t: v for t, v in values.items() if v != row.values[t]}, "failed")

    def sentences(self) -> list[str]:
        """Return all notes, including notes on table cells that differ from the memory."""
        used = "most frequent class" if self.table.schema.classes else "mean"
        several = f"Measured more than once; the {used} is used: "
        unlike = "The table still has the old values of corrected measurements: "
        withdrawn = "The table still has withdrawn measurements: "
        ends = {
            EMPTIED: " Use --retract to withdraw a measurement.",
            unlike: " The corrected values are used.",
            withdrawn: " They are not used. Empty these cells, or pass them again with --labels.",
        }
        lines = defaultdict(list, self.lines)
        for row in self.memory.rows.values():
            for t, values in row.values.items():
                if len(values) > 1:
                    lines[several].append(f"{self.name(row.id)} ({t} {_values(values)}: {_values([row.mean[t]])})")
        for row in (self.memory.rows[name] for name in self.ids if name in self.memory.rows):
            for t, value in row.table.items():
                cell = f"{self.name(row.id)} ({t} {_values([value])}"
                if t not in row.values:
                    lines[withdrawn].append(f"{cell})")
                elif not row.agrees({t: value}):
                    lines[unlike].append(f"{cell}, not {_values(row.values[t])})")
        return [*self.notes, *(f"{start}{listed(lines[start], SHOWN)}.{ends.get(start, '')}" for start in lines)]


def _free_ids(k: str, ids: Collection[str]) -> Iterator[str]:
    """Yield new ids for rows with the key k: k, k-2, k-3, ..., skipping the ids in `ids`."""
    for number in count(1):
        if (name := k if number == 1 else f"{k}-{number}") not in ids:
            yield name


def _values(values: Sequence[Value]) -> str:
    return listed(map(_value, values), SHOWN)


def _value(value: Value) -> str:
    if isinstance(value, str):  # a class may be called "failed"
        return shown(value) if value.casefold() in FAILED else value
    return "failed" if value is None else f"{value:.12g}"


def _changes(old: Mapping[str, str], new: Mapping[str, str]) -> str:
    differ = [name for name in old if name in new and old[name] != new[name]]
    return listed([f"{name} was {old[name] or 'empty'} and is {new[name] or 'empty'}" for name in differ], 4)
