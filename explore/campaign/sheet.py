"""Tables and labels files: the canonical features, measurements and ids of their lines."""

import math
from collections.abc import Sequence

from explore.campaign.cells import Value, canonical, canonicals, fingerprint, folded, stripped
from explore.campaign.state import Schema
from explore.core.errors import InputError, shown
from explore.data.reading import Cells
from explore.data.targets import marks, no_numbers
from explore.data.texts import FAILED, absent, number


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
