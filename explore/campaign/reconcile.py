"""What a table says that was not known: the events that bring the memory up to it, and what to say of them.

Of a cell of a target it counts what it says anew: a number where there was none is a label, another number than when
the table was last read is a correction. A cell that still says what it said tells nothing, so that a label which was
corrected by a file, or taken back, stays so; that they differ is said every time. An emptied cell changes nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from itertools import count
from typing import Any

from explore.campaign.cells import Value, folded, same
from explore.campaign.log import Event
from explore.campaign.matching import agrees, found_again, identical, same_value
from explore.campaign.memory import FORMAT, Memory, Row, Schema
from explore.campaign.sheet import Sheet, key
from explore.core.errors import InputError, listed, shown
from explore.data.texts import FAILED

SHOWN = 8  # rows that a sentence names


class Reading:
    """The memory as a table leaves it, and how it came to that.

    Attributes:
        memory: a copy, brought up to the table.
        before: as it was.
        ids: of every row of the table.
        events: what has to be appended to the log.
        notes: sentences on single rows and columns; `sentences` has all.
    """

    def __init__(self, memory: Memory, sheet: Sheet):
        """Compare what is known with a table; the memory that is given stays as it is."""
        self.memory, self.sheet, self.before = deepcopy(memory), sheet, memory
        self.events: list[Event] = []
        self.notes = list(sheet.notes)
        self._lines: dict[str, list[str]] = defaultdict(list)  # of what several rows share: name by name
        self._cells: dict[str, dict[str, str]] = {}  # features by id, of the rows that something is known of
        self.names: dict[str, str] = {}  # of the same, as messages call them
        self._groups: dict[str, list[int]] = {}  # rows of the table by what they are told apart by
        for i, k in enumerate(sheet.keys):
            self._groups.setdefault(k, []).append(i)
        changed = self._columns()
        self._move(changed)
        self.ids = self._match()
        self._retire()
        self._declare()

    def tell(self, event: str, name: str, **more: Any) -> None:
        """Make an event, and remember it."""
        known = self.memory.rows.get(name)
        cells = {} if known or "cells" in more else {"cells": self._cells[name]} if name in self._cells else {}
        self.events.append({"event": event, "id": name, **cells, **more})
        self.memory.apply(self.events[-1])

    def show(self, name: str, i: int) -> None:
        """Remember a row of the table, of which something is to be told."""
        self.names[name], self._cells[name] = self.sheet.name(i), self.sheet.cells(i)

    def measured(
        self,
        name: str,
        labels: Mapping[str, list[Value]],
        corrected: Mapping[str, list[Value]],
        source: str,
        **table: Mapping[str, Value],
    ) -> None:
        """Tell measurements of a row by target, new ones and others than before.

        Args:
            name: the row's id.
            labels: all measurements of targets of which there were none, or fewer.
            corrected: those that replace what is known.
            source: the name of a file; "table", or "failed" for classes that are declared as failures.
            table: what the cells of the targets hold, if they tell it.
        """
        row = self.memory.rows.get(name) or Row(name)
        pending, was = row.pending, {t: list(row.values[t]) for t in corrected}
        for t, values in corrected.items():
            reason = "" if source in ("table", "failed") else f", as {source} says"
            if reason and t in row.seen:
                reason += f", though the table says {_values([row.seen[t]])}"
            self.notes.append(
                f"{self.name(row)}: {t} is corrected from {_values(was[t])} to {_values(values)}{reason}."
            )
        if labels:
            self.tell("label", name, values=labels, **{"from": source}, **table)
            failed = [target for target, values in labels.items() if values == [None]]
            if failed:
                which = "" if len(self.sheet.schema.targets) == 1 else f" ({listed(failed)})"
                self._lines["Failed, and not suggested again: "].append(self.name(row) + which)
            if len(failed) < len(labels):
                batch = "New measurements: " if pending is None else f"Answered, of batch {pending}: "
                self._lines[batch].append(self.name(row))
        if corrected:
            self.tell("correct", name, values=corrected, was=was, **{"from": source}, **table)

    def outside(self, name: str, cells: Mapping[str, str], where: str) -> None:
        """Remember a row that only a file of labels has."""
        self.names[name], self._cells[name] = where, dict(cells)
        self._lines["Not in the table, but used all the same: "].append(where)
        self.tell("retire", name)

    def name(self, row: Row) -> str:
        """A row that is known, as messages call it, whether it is in the table or not."""
        return self.names.get(row.id) or short(row.id)

    def _columns(self) -> bool:
        """Notice other columns; whether the ids are of another kind."""
        old, new = self.memory.schema, self.sheet.schema
        if old is not None and old.classes != new.classes:
            raise InputError(
                f"the measurements so far are {'classes' if old.classes else 'numbers'}, not "
                f"{'classes' if new.classes else 'numbers'}; begin anew with a copy of the table"
            )
        if old is not None and _sets(old) == _sets(new):
            return False
        values = {"targets": list(new.targets), "features": list(new.features), "id": new.id_column, "format": FORMAT}
        values |= {"classes": True} if new.classes else {}
        self.events.append({"event": "schema", "values": values})
        self.memory.apply(self.events[-1])
        if old is None:
            return False
        for what, was, now in (("feature", old.features, new.features), ("target", old.targets, new.targets)):
            for verb, names in (("new", set(now) - set(was)), ("no longer there", set(was) - set(now))):
                if names:
                    self.notes.append(f"These columns are {verb} as {what}s: {listed(sorted(names))}.")
        if old.id_column != new.id_column:
            kinds = [shown(c) if c else "their features" for c in (old.id_column, new.id_column)]
            self.notes.append(f"Rows were known by {kinds[0]} and are now known by {kinds[1]}.")
        return old.id_column != new.id_column

    def _move(self, rekeyed: bool) -> None:
        """Give rows that are in the table under another id that id."""
        anew = any(event["event"] == "schema" for event in self.events)
        schema, rows = self.sheet.schema, self.memory.rows
        taken = {key(name, schema) for name in rows}
        lost = [row for row in rows.values() if key(row.id, schema) not in self._groups and (anew or not row.gone)]
        fresh = {k: members[0] for k, members in self._groups.items() if k not in taken} if lost else {}
        found = found_again(lost, self.sheet, fresh, bool(schema.id_column) and not rekeyed)
        for row in lost:
            if row.id in found.keys:
                to = next(free(found.keys[row.id], rows.keys()))
                name, was = row.id, dict(row.cells)
                self.tell("change", row.id, to=to, cells=self.sheet.cells(fresh[found.keys[row.id]]))
                if not anew:
                    what = f"{short(name)} is now {short(to)}" if schema.id_column else _changes(was, row.cells)
                    self._lines["Found again, though written in another way: "].append(what)
        if unclear := [short(row.id) for row in found.unclear if row.known]:
            rows_known = "the row that was known" if len(unclear) == 1 else f"the {len(unclear)} rows that were known"
            self.notes.append(
                f"Several rows of the table may be {rows_known}, by {listed(unclear, SHOWN)}; what is known of them is "
                "kept apart. Write measurements in the cells of the rows that they are of."
            )

    def _match(self) -> list[str]:
        """The id of every row; what its cells tell becomes events."""
        units = defaultdict(list)
        for row in self.memory.rows.values():
            units[key(row.id, self.sheet.schema)].append(row)
        ids = list(self.sheet.keys)
        for k, members in self._groups.items():
            known = units.get(k, [])
            if not known and len(members) == 1 and not self.sheet.told[members[0]]:
                continue
            names = free(k, {unit.id for unit in known})
            for i, unit in zip(members, identical(known, [self.sheet.told[i] for i in members]), strict=True):
                ids[i] = unit.id if unit else next(names)
                if unit or self.sheet.told[i]:
                    self._row(ids[i], i)
        self._twins()
        return ids

    def _row(self, name: str, i: int) -> None:
        """One row of the table, of which something is known or told."""
        self.show(name, i)
        row, now = self.memory.rows.get(name), self.sheet.told[i]
        if row is not None and row.gone:
            self.tell("return", name)
            self._lines["In the table again: "].append(self.names[name])
        if row is not None and row.cells != self._cells[name]:
            common = {c: row.cells[c] for c in row.cells if c in self._cells[name]}
            if any(not same(cell, self._cells[name][c]) for c, cell in common.items()):
                kept = "; its measurement stays with it" if row.values else ""
                self.notes.append(f"{self.names[name]}: {_changes(common, self._cells[name])}{kept}.")
            self.tell("change", name, to=name, cells=self._cells[name])
        self._filled_in(name, row or Row(name), now)

    def _filled_in(self, name: str, row: Row, now: Mapping[str, Value]) -> None:
        """What the cells of the targets say anew."""
        new = {t: v for t, v in now.items() if t not in row.seen or not same_value(v, row.seen[t])}
        labels = {t: [v] for t, v in new.items() if t not in row.values}
        corrected = {t: [v] for t, v in new.items() if t in row.values and not agrees(row, {t: v})}
        emptied = [t for t in row.seen if t not in now]
        withdrawn = [self.names[name] for t in emptied if t in row.values]
        if withdrawn:
            self._lines["Emptied cells change nothing (--retract withdraws a measurement): "] += withdrawn
        if labels or corrected:
            self.measured(name, labels, corrected, "table", table=dict(now))
        elif new or emptied:
            self.tell("seen", name, table=dict(now))

    def _declare(self) -> None:
        """Take classes that files told for failures where they are declared as such since."""
        failed = set(map(folded, self.sheet.schema.failed))
        for row in [row for row in self.memory.rows.values() if self.sheet.schema.classes and failed]:
            changed: dict[str, list[Value]] = {}
            for t, values in row.values.items():
                changed[t] = [None if isinstance(v, str) and folded(v) in failed else v for v in values]
            self.measured(row.id, {}, {t: v for t, v in changed.items() if v != row.values[t]}, "failed")

    def _retire(self) -> None:
        """Notice rows that are gone.

        Without identifiers one may seem to be there with another feature, which is a guess that is said.
        """
        new = [e for e in self.events if e["event"] == "label" and "cells" in e]
        for row in [r for r in self.memory.rows.values() if r.known and not r.gone and r.id not in self.names]:
            self.tell("retire", row.id)
            answer = "failed" if row.failed else "measured" if row.values else ""
            what = answer or ("pending" if row.pending is not None else "skipped")
            self._lines[f"No longer in the table, but still known as {what}: "].append(short(row.id))
            alike = [e for e in new if row.seen and e["table"] == row.seen]
            near = [e for e in alike if _differences(row.cells, e["cells"]) == 1]
            if len(near) == 1 and not self.sheet.schema.id_column:
                self.notes.append(
                    f"{self.names[near[0]['id']]} has the measurement of a row that is gone, but "
                    f"{_changes(row.cells, near[0]['cells'])}. Both are used; if the old one was wrong, --retract "
                    f"{short(row.id)}."
                )

    def _twins(self) -> None:
        twins = [members for members in self._groups.values() if len(members) > 1]
        if twins:
            lines = [listed([self.sheet.name(i) for i in members], 4) for members in twins[:3]]
            self.notes.append(
                f"{sum(map(len, twins))} rows have the same features as others ({'; '.join(lines)}"
                f"{', ...' if len(twins) > 3 else ''}): they are taken as repetitions, whichever is which."
            )

    def sentences(self) -> list[str]:
        """All that there is to say, with the cells of the table that do not say what is known."""
        used = "most frequent class" if self.sheet.schema.classes else "mean"
        several = f"Measured more than once; the {used} is used: "
        unlike, withdrawn = "The table still has what was corrected since: ", "The table still has what was withdrawn: "
        ends = {
            unlike: " The corrections count.",
            withdrawn: " It is not used; empty these cells, or tell them again by --labels.",
        }
        lines = defaultdict(list, self._lines)
        for row in self.memory.rows.values():
            for t, values in row.values.items():
                if len(values) > 1:
                    lines[several].append(f"{self.name(row)} ({t} {_values(values)}: {_values([row.mean[t]])})")
        for row in (self.memory.rows[name] for name in self.names if name in self.memory.rows):
            for t, value in row.seen.items():
                cell = f"{self.name(row)} ({t} {_values([value])}"
                if t not in row.values:
                    lines[withdrawn].append(f"{cell})")
                elif not agrees(row, {t: value}):
                    lines[unlike].append(f"{cell}, not {_values(row.values[t])})")
        shared = [f"{start}{listed(names, SHOWN)}.{ends.get(start, '')}" for start, names in lines.items()]
        return [*self.notes, *shared]


def _sets(schema: Schema) -> tuple[object, ...]:
    """Columns whose order does not matter where they are features."""
    return schema.targets, set(schema.features), schema.id_column


def free(k: str, taken: Collection[str]) -> Iterator[str]:
    """Ids of further identical rows."""
    for number in count(1):
        if (name := k if number == 1 else f"{k}-{number}") not in taken:
            yield name


def short(name: str) -> str:
    """An id as messages show it: of a fingerprint the first letters, by which it can be named."""
    return name if len(name) < 64 else name[:12] + name[64:]


def _values(values: Sequence[Value]) -> str:
    return listed(map(_value, values), SHOWN)


def _value(value: Value) -> str:
    if isinstance(value, str):  # a class may be called so
        return shown(value) if value.casefold() in FAILED else value
    return "failed" if value is None else f"{value:.12g}"


def _differences(a: Mapping[str, str], b: Mapping[str, str]) -> int:
    return sum(a.get(name) != b.get(name) for name in {*a, *b})


def _changes(old: Mapping[str, str], new: Mapping[str, str]) -> str:
    differ = [name for name in old if name in new and old[name] != new[name]]
    return listed([f"{name} was {old[name] or 'empty'} and is {new[name] or 'empty'}" for name in differ], 4)
