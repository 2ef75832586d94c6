"""The table as it is now: which id every row has, and what its cells say."""

from __future__ import annotations

from collections.abc import Sequence

from explore.campaign.cells import Value, canonical, canonicals, fingerprints, folded, measured, stripped
from explore.campaign.memory import FINGERPRINT, Schema
from explore.core.errors import InputError, shown
from explore.data.reading import Cells
from explore.data.targets import marks, no_numbers
from explore.data.texts import FAILED


class Sheet:
    """A table that was read.

    Attributes:
        schema: which of its columns are what.
        columns: the names of all of them.
        keys: of every row its identifier, or the fingerprint of its features, which identical rows share.
        told: of every row the values in its cells of the targets, by target.
        notes: sentences on how they were read.
    """

    def __init__(self, table: Cells, schema: Schema):
        """Read the cells, which may be text, or what Excel and Parquet have instead.

        Raises:
            InputError: when a column is missing, an identifier too or there twice, or when a target is no number.
        """
        self._table, self.schema, self.columns = table, schema, tuple(table.columns)
        own = [schema.id_column] if schema.id_column else []
        for what, names in (("target", schema.targets), ("feature", schema.features), ("column of identifiers", own)):
            for name in names:
                if name not in table.columns:
                    raise InputError(f"{table.path} has no {what} {shown(name)}; {table.listing}")
        if not schema.targets or set(schema.targets) & {*schema.features, *own} or set(own) & set(schema.features):
            raise InputError("a column is either a target, or a feature, or that of the identifiers")
        self._columns = {name: canonicals(table.columns[name]) for name in schema.features}
        self.told, self.notes = told(table, schema.targets, schema), marked(table, schema)
        self.keys = self._identifiers(own[0]) if own else fingerprints(self._columns)

    def cells(self, row: int) -> dict[str, str]:
        """The features of a row, canonical."""
        return {name: column[row] for name, column in self._columns.items()}

    def name(self, row: int) -> str:
        """A row, as messages call it."""
        line = f"{self._table.unit} {self._table.lines[row]}"
        return f"{shown(self.keys[row])} ({line})" if self.schema.id_column else line

    def _identifiers(self, column: str) -> list[str]:
        keys = identifiers(self._table.columns[column])
        lines: dict[str, int] = {}
        for row, (key, line) in enumerate(zip(keys, self._table.lines, strict=True)):
            if not key:
                raise InputError(f"{self._table.where(row, column)}: an empty cell instead of an identifier")
            if lines.setdefault(key, line) != line:
                raise InputError(
                    f"{self._table.path}, {self._table.unit}s {lines[key]} and {line}, column {shown(column)}: both "
                    f"rows are called {shown(key)}; an identifier names one row"
                )
        return keys


def identifiers(column: Sequence[object]) -> list[str]:
    """Identifiers: text as it stands, numbers as text has them, and "" where there is none."""
    return [stripped(cell) if isinstance(cell, str) else canonical(cell) for cell in column]


def told(table: Cells, targets: Sequence[str], schema: Schema) -> list[dict[str, Value]]:
    """Of every row the values in its cells of the targets, by target.

    Raises:
        InputError: naming all cells that are no numbers, as targets must be that are no classes.
    """
    found: list[dict[str, Value]] = [{} for _ in table.lines]
    wrong: dict[str, list[int]] = {}
    failed = {*map(folded, schema.failed), *(() if schema.classes else FAILED)}
    for target in targets:
        for row, cell in enumerate(table.columns[target]):
            if cell == "":  # of most rows of a pool
                continue
            try:
                for value in measured(cell, schema.classes, schema.keep_na, failed):
                    found[row][target] = value
            except InputError:
                wrong.setdefault(target, []).append(row)
    if wrong:
        raise no_numbers(table, wrong)
    return found


def marked(table: Cells, schema: Schema) -> list[str]:
    """Sentences on texts in class targets that may say that there is no class."""
    failed = set(map(folded, schema.failed))
    names = [name for name in schema.targets if schema.classes and name in table.columns]
    return [note for name in names if (note := marks(table, name, schema.keep_na, failed))]


def key(name: str, schema: Schema) -> str:
    """What identical rows share, of an id."""
    return name if schema.id_column else name[:FINGERPRINT]
