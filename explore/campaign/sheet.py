"""Tables and labels files: the canonical features, measurements and ids of their lines."""

import math
from collections import defaultdict
from collections.abc import Collection, Sequence

from explore.campaign.cells import Value, canonical, canonicals, fingerprint, folded, same, stripped
from explore.campaign.state import Row, Schema, State
from explore.core.errors import InputError, listed, shown
from explore.data.reading import Cells
from explore.data.targets import marks, no_numbers
from explore.data.texts import FAILED, absent, number

PREFIX = "_"  # of the names of columns that only next.csv has
ID = f"{PREFIX}id"


class Sheet:
    """The content of a table or labels file: canonical features by column, measured values by line and target."""

    def __init__(self, file: Cells, schema: Schema):
        """Parse the file's columns; raise InputError if cells of numeric targets are not numbers."""
        self.file, self.schema = file, schema
        self.features = {name: canonicals(file.columns[name]) for name in schema.features if name in file.columns}
        self.measurements = measurements(file, schema)
        failed = set(map(folded, schema.failed))
        names = [name for name in schema.targets if schema.classes and name in file.columns]
        self.notes = [note for name in names if (note := marks(file, name, schema.keep_na, failed))]

    def cells(self, line: int) -> dict[str, str]:
        """Return the canonical features of a line, by column."""
        return {name: column[line] for name, column in self.features.items()}


class Table(Sheet):
    """A table with all columns of a schema; `keys` are the identifiers of rows, or fingerprints of features."""

    def __init__(self, file: Cells, schema: Schema):
        """Parse the table; raise InputError for missing columns, empty or repeated identifiers, or invalid targets."""
        file.require([*schema.targets, *schema.features, *filter(None, [schema.id_column])])
        super().__init__(file, schema)
        if not (column := schema.id_column):
            self.keys = [fingerprint(self.cells(line)) for line in range(len(file.lines))]
            return
        self.keys = identifiers(file.columns[column])
        lines: dict[str, int | str] = {}
        for row, (key, line) in enumerate(zip(self.keys, file.lines, strict=True)):
            if not key:
                raise InputError(f"{file.where(row, column)}: the identifier is empty. Fill it in.")
            if lines.setdefault(key, line) != line:
                places = f"{file.unit}s {lines[key]} and {line} of column {shown(column)}"
                unique = "Identifiers must be unique."
                raise InputError(f"{file.path}: identifier {shown(key)} occurs in {places}. {unique}")

    def name(self, row: int) -> str:
        """Return the description of a row for messages: its line, and its identifier if there is one."""
        line = f"{self.file.unit} {self.file.lines[row]}"
        named = self.schema.id_column and self.keys[row] != self.file.lines[row]
        return f"{shown(self.keys[row])} ({line})" if named else line


class Answers(Sheet):
    """A labels file, such as a filled-in next.csv, matched to the rows of a table.

    A line identifies its row by the column `_id`, by the table's identifier column, or by all features. If a line has
    an id and features, both must belong to the same row. Several lines of one row are replicates; lines without a
    measurement are skipped.
    """

    def __init__(self, file: Cells, table: Table, ids: Sequence[str], state: State):
        """Parse a labels file. Raise InputError for invalid target cells, or without target or identifying columns."""
        schema = table.schema
        columns = list(dict.fromkeys([ID, schema.id_column or ID]))
        self._table, self._state, self._at = table, state, {name: line for line, name in enumerate(ids)}
        self._ids = {name: identifiers(file.columns[name]) for name in columns if name in file.columns}
        self._has_all_features = set(schema.features) <= set(file.columns)
        if not set(schema.targets) & set(file.columns):
            advice = "Add one with the measurements."
            raise InputError(f"{file.path} has none of the target columns ({listed(schema.targets)}). {advice}")
        if not self._ids and not self._has_all_features:
            advice = f"Add a column {' or '.join(map(shown, columns))}, or all feature columns."
            raise InputError(f"Cannot match the rows of {file.path} to the table. {advice}")
        super().__init__(file, schema)
        self._alike: dict[str, list[str]] = defaultdict(list)  # rows by their features
        for i, name in enumerate(ids if self._has_all_features else ()):
            self._alike[fingerprint(table.cells(i))].append(name)
        unused = [name for name in file.columns if name not in table.file.columns and not name.startswith(PREFIX)]
        self.notes += [f"Ignored columns of {file.path}: {listed(unused)}."] if unused else []

    def by_row(self) -> dict[str, dict[str, list[Value]]]:
        """Return the measurements by row and target. Raise InputError if a line matches several rows or none."""
        rows: dict[str, dict[str, list[Value]]] = defaultdict(lambda: defaultdict(list))
        for line, values in ((line, values) for line, values in enumerate(self.measurements) if values):
            name = self._named(line) or self._like(line, rows)
            for target, value in values.items():
                rows[name][target].append(value)
        return rows

    def _named(self, line: int) -> str:
        """Return the id of the row that a line identifies; "" if the line has no identifier."""
        written = [column[line] for column in self._ids.values() if column[line]]
        if not written and self._has_all_features:
            return ""
        if not written:
            raise InputError(f"{self._where(line)}: no identifier. Fill in {' or '.join(map(shown, self._ids))}.")
        names = [self._resolved(line, text) for text in written]
        if names[0] != names[-1]:
            by_id, by_column = (f"names row {shown(text)}" for text in written)
            problem = f"{shown(ID)} {by_id}, but {shown(self.schema.id_column)} {by_column}"
            raise InputError(f"{self._where(line)}: {problem}. Empty the wrong cell.")
        cells = self._table.cells(self._at[names[0]])
        for column, cell in self.cells(line).items():
            if cell and not same(cell, cells[column]):
                problem = f"{shown(cell)}, but row {shown(written[0])} has {shown(cells[column])}. Correct the cell."
                new = f"If the experiment did use {shown(cell)}, add a row with its result to {self._table.file.path}."
                raise InputError(f"{self._where(line)}, column {shown(column)}: {problem} {new}")
        return names[0]

    def _resolved(self, line: int, text: str) -> str:
        """Return the id of the table's row that an identifier means; a spreadsheet may have written 7 for 007."""
        if (name := self._state.aliases.get(text, text)) in self._at:
            return name
        meant = [name for name in self._at if self.schema.id_column and canonical(name) == canonical(text)]
        if len(meant) == 1:
            return meant[0]
        advice = f"Add the row with its result to {self._table.file.path}, or correct the identifier."
        if meant:
            advice = f"Did you mean {listed(map(shown, meant), 3)}? Write the identifier exactly as in the table."
        raise InputError(f"{self._where(line)}: {self._table.file.path} has no row {shown(text)}. {advice}")

    def _like(self, line: int, answered: Collection[str]) -> str:
        """Return the id of the row with the features of a line; among identical rows, one with this measurement.

        Otherwise one without measurements, first of all a pending one.
        """
        alike = self._alike.get(fingerprint(self.cells(line)), [])
        if not alike or (self.schema.id_column and len(alike) > 1):
            candidates = f"rows {listed(map(shown, alike), 4)} have" if alike else "no row of the table has"
            add = "" if alike else f", or add the row with its result to {self._table.file.path}"
            raise InputError(f"{self._where(line)}: {candidates} these features. Fill in {shown(ID)}{add}.")

        def rank(name: str) -> tuple[bool, ...]:
            row = self._state.rows.get(name) or Row(name)
            repeats = bool(row.values) and row.agrees(self.measurements[line])
            return not repeats, name in answered, bool(row.values), row.pending is None

        return min(alike, key=rank)

    def _where(self, line: int) -> str:
        return f"{self.file.path}, {self.file.unit} {self.file.lines[line]}"


def identifiers(column: Sequence[object]) -> list[str]:
    """Return identifiers as strings: strings are stripped, numbers become canonical, an empty cell is ""."""
    return [stripped(cell) if isinstance(cell, str) else canonical(cell) for cell in column]


def measurements(file: Cells, schema: Schema) -> list[dict[str, Value]]:
    """Return each line's measured values, by target in the file; None is a failed experiment.

    Marks such as NA are classes only with `schema.keep_na`. Raise InputError for cells that are not finite numbers,
    unless targets are classes.
    """
    lines: list[dict[str, Value]] = [{} for _ in file.lines]
    wrong: dict[str, list[int]] = {}
    failed = {*map(folded, schema.failed), *(() if schema.classes else FAILED)}
    for target in (target for target in schema.targets if target in file.columns):
        for line, cell in enumerate(file.columns[target]):
            if not (text := stripped(cell)):  # most rows of a pool
                continue
            if folded(text) in failed:
                lines[line][target] = None
            elif schema.classes:  # "None" may be one
                if schema.keep_na or not absent(text, "classes"):
                    lines[line][target] = canonical(text) or text
            elif not absent(text):
                if (value := number(text)) is None or not math.isfinite(value):
                    wrong.setdefault(target, []).append(line)
                else:
                    lines[line][target] = value
    if wrong:
        raise no_numbers(file, wrong)
    return lines
