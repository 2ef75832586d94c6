"""Labels files: measurements in a separate file, such as `--labels new.csv` or a filled-in next.csv.

A labels file takes precedence over the table. If its lines repeat all known measurements of a row, further values are
replicates; otherwise its values replace the known ones. A line identifies its row by the column `_id`, by the table's
identifier column, or by all features. If a line has an id and features, both must belong to the same row.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from explore.campaign.cells import Value, canonical, fingerprint, same, same_value
from explore.campaign.matching import pair
from explore.campaign.memory import Row
from explore.campaign.reading import Reading
from explore.campaign.sheet import Sheet, identifiers, key
from explore.core.errors import InputError, listed, shown
from explore.data.reading import Cells

PREFIX = "_"  # of the names of columns that only next.csv has


class Answers(Sheet):
    """A labels file, matched to the rows of a table; lines without a measurement are skipped."""

    def __init__(self, file: Cells, reading: Reading):
        """Parse a labels file. Raise InputError for invalid target cells, or without target or identifying columns."""
        schema = reading.table.schema
        columns = ["_id", *filter(None, [schema.id_column])]
        self._reading, self._id_column, self._rows = reading, schema.id_column, reading.memory.rows
        self._ids = {name: identifiers(file.columns[name]) for name in columns if name in file.columns}
        self._has_all_features = set(schema.features) <= set(file.columns)
        if not set(schema.targets) & set(file.columns):
            advice = "Add one with the measurements."
            raise InputError(f"{file.path} has none of the target columns ({listed(schema.targets)}). {advice}")
        if not self._ids and not self._has_all_features:
            advice = f"Add a column {' or '.join(map(shown, columns))}, or all feature columns."
            raise InputError(f"Cannot match the rows of {file.path} to the table. {advice}")
        super().__init__(file, schema)

    def tell(self) -> None:
        """Add the file's measurements to the reading; raise InputError if a line matches several rows or none."""
        names = self._reading.table.file.columns
        if unused := [name for name in self.file.columns if name not in names and not name.startswith(PREFIX)]:
            self._reading.notes.append(f"Ignored columns of {self.file.path}: {listed(unused)}.")
        self._reading.notes += self.notes
        rows: dict[str, list[int]] = defaultdict(list)
        unnamed: dict[str, list[int]] = defaultdict(list)
        for line in (line for line, values in enumerate(self.measurements) if values):
            name = self._named(line)
            (rows[name] if name else unnamed[fingerprint(self.cells(line))]).append(line)
        if unnamed:
            self._match_features(unnamed, rows)
        for name, lines in rows.items():
            self._tell_row(name, lines)

    def _named(self, line: int) -> str:
        """Return the id of the row that a line identifies; "" if the line has no identifier."""
        written = [column[line] for column in self._ids.values() if column[line]]
        if not written and self._has_all_features:
            return ""
        if not written:
            raise InputError(f"{self._where(line)}: no identifier. Fill in {' or '.join(map(shown, self._ids))}.")
        names = [self._resolved(line, text) for text in written]
        if canonical(names[0]) != canonical(names[-1]):
            one, other = f"{shown('_id')} names row {shown(written[0])}", f"names row {shown(written[-1])}"
            raise InputError(f"{self._where(line)}: {one}, but {shown(self._id_column)} {other}. Empty the wrong cell.")
        cells = self._reading.cells(names[0])
        if cells is None and not (self._id_column and self._has_all_features):
            raise InputError(f"{self._where(line)}: no row {shown(names[0])}")
        for column, cell in self.cells(line).items():
            if cells and cell and column in cells and not same(cell, cells[column]):
                remedy = "give it its own identifier" if self._id_column else "empty its identifier"
                problem = f"{shown(cell)}, but row {shown(written[0])} has {shown(cells[column])}. Correct the cell."
                new = f"If the experiment did use {shown(cell)}, it is a new row: {remedy}."
                raise InputError(f"{self._where(line)}, column {shown(column)}: {problem} {new}")
        return names[0]

    def _resolved(self, line: int, text: str) -> str:
        """Return the current id for an identifier; a changed spelling (7 for 007) needs the features of the row."""
        if row := self._reading.memory.find(text):
            return row.id
        if not self._id_column or text in self._reading.at:
            return text
        names = [*self._reading.ids, *(row.id for row in self._rows.values() if row.gone)]
        meant = [name for name in names if canonical(name) == canonical(text)]
        cells = self.cells(line)
        features = {name: self._reading.cells(name) or {} for name in meant}
        certain = [name for name in meant if all(same(cells.get(c, ""), v) for c, v in features[name].items())]
        if meant and len(certain) != 1:
            advice = f"Did you mean {listed(map(shown, meant), 3)}? Write the identifier exactly as in the table."
            raise InputError(f"{self._where(line)}: no row {shown(text)}. {advice}")
        return certain[0] if certain else text

    def _match_features(self, unnamed: Mapping[str, list[int]], rows: dict[str, list[int]]) -> None:
        """Add each line without an id (`unnamed`, by fingerprint) to the row in `rows` (by id) with equal features."""
        names: dict[str, list[str]] = defaultdict(list)
        table = self._reading.table
        for i, name in enumerate(self._reading.ids):
            names[fingerprint(table.cells(i)) if self._id_column else key(name, table.schema)].append(name)
        for row in (row for row in self._rows.values() if row.gone):
            names[fingerprint(row.cells)].append(row.id)
        for features, lines in unnamed.items():
            alike = names.get(features, [])
            if self._id_column and len(alike) != 1:
                candidates = f"rows {listed(map(shown, alike), 4)} have" if alike else "no row of the table has"
                new = "" if alike else f", or a new identifier in {shown(self._id_column)}"
                raise InputError(f"{self._where(lines[0])}: {candidates} these features. Fill in {shown('_id')}{new}.")
            # Among identical rows: one with this measurement, else one without measurements, pending ones first.
            free = [self._rows.get(name) or Row(name) for name in alike or [features]]
            free.sort(key=lambda row: (bool(row.values), row.pending is None, row.gone))
            told = {line: self.measurements[line] for line in lines}
            pairs = pair(told, free, lambda row, values: bool(row.values) and row.agrees(values), lambda *_: True)
            for line in lines:
                rows[pairs.get(line, free[0]).id].append(line)

    def _tell_row(self, name: str, lines: Sequence[int]) -> None:
        """Add the measurements that `lines` have for row `name` to the reading."""
        if name not in self._reading.at and name not in self._rows:
            self._reading.outside[name] = place = self._where(lines[0])
            self._reading.lines["Added rows that are in the labels file only, not in the table: "].append(place)
            self._reading.tell("retire", name, cells=self.cells(lines[0]))
        row = self._rows.get(name) or Row(name)
        answers: dict[str, list[Value]] = defaultdict(list)
        for line in lines:
            for target, value in self.measurements[line].items():
                answers[target].append(value)
        measured, old = dict[str, list[Value]](), self._reading.before.find(row.id)
        for target, values in answers.items():
            before = row.values.get(target, [])
            # A single value is not new if it repeats the known mean, or a measurement in an earlier next.csv.
            was_written = old is not None and old.pending is not None and old.agrees({target: values[0]})
            if before and len(values) == 1 and (was_written or same_value(values[0], row.mean[target])):
                continue
            new = _without(values, before)
            repeats_all = len(new) == len(values) - len(before)
            if new or not repeats_all:
                measured[target] = [*before, *new] if repeats_all else values
        self._reading.tell_measurements(name, measured, self.file.path.name)

    def _where(self, line: int) -> str:
        return f"{self.file.path}, {self.file.unit} {self.file.lines[line]}"


def _without(values: Sequence[Value], old: Sequence[Value]) -> list[Value]:
    """Return `values` minus `old` as multisets: each old value removes one equal value."""
    new = list(values)
    for value in old:
        if match := [i for i, other in enumerate(new) if same_value(other, value)]:
            del new[match[0]]
    return new
