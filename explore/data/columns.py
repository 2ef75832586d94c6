"""A schema: what the columns of a table become, which applies to new data in the same way, and is JSON.

A number stays as it is, a truth value is 0 or 1, a date counts days, and a category has one feature for each of its
levels. An empty cell counts as the column's median (as its most frequent truth value), and if the table had empty ones
when its schema was made, another feature says where.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from explore.core.errors import InputError, check_fields, counted, listed, shown
from explore.data import texts
from explore.data.kinds import CYCLES, KINDS, MISSING, OTHER, Category, Column, Date, LeftOut, Quantity, level
from explore.data.reading import Cells, called

__all__ = ["Matrix", "Schema"]


class Matrix(NamedTuple):
    """Rows as features."""

    x: np.ndarray  # float64 [N, D], all finite
    features: tuple[str, ...]  # D names
    notes: tuple[str, ...]  # sentences on what was imputed or not known


@dataclass(frozen=True)
class Schema:
    """The columns of a table, in its order."""

    columns: tuple[Column, ...]

    @property
    def features(self) -> tuple[str, ...]:
        """D names."""
        return tuple(feature for column in self.columns for feature in column.features)

    def apply(self, cells: Cells) -> Matrix:
        """The features of the rows of any table that has the columns, wherever they stand in it.

        Raises:
            InputError: naming a column that the table lacks, or a cell that is not of its column's kind.
        """
        used = [column for column in self.columns if not isinstance(column, LeftOut)]
        if lacking := [column.name for column in used if column.name not in cells.columns]:
            raise InputError(f"{cells.path} has no column {shown(lacking[0])}; {cells.listing}")
        x, notes = np.empty((len(cells.lines), len(self.features))), []
        start = 0
        for column in used:
            block, remarks = _category(column, cells) if isinstance(column, Category) else _quantity(column, cells)
            x[:, start : start + block.shape[1]] = block
            start += block.shape[1]
            notes += remarks
        return Matrix(x, self.features, tuple(notes))

    def to_json(self) -> dict[str, Any]:
        """What `from_json` takes, of values that JSON has."""
        return {"columns": [{"kind": column.kind} | asdict(column) for column in self.columns]}

    @staticmethod
    def from_json(value: Any) -> Schema:
        """The schema that was written.

        Raises:
            InputError: when the value is none.
        """
        try:
            return Schema(tuple(_column(dict(entry)) for entry in value["columns"]))
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{shown(value)} is no schema of a table ({error}); make it anew from the table") from None


def _column(entry: dict[str, Any]) -> Column:
    make: Any = KINDS[entry.pop("kind")]
    entry["name"] = called(entry["name"])  # as the tables are read that it is to apply to
    made: Column = make(**{k: tuple(v) if isinstance(v, list) else v for k, v in entry.items()})
    check_fields(made, {"fill": "(-inf, inf)", "origin": "(-inf, inf)"})
    return made


def _quantity(column: Quantity, cells: Cells) -> tuple[np.ndarray, list[str]]:
    """[N, columns] features of numbers, and notes on them."""
    values = column.values(cells)
    missing = np.isnan(values)
    parts = [np.where(missing, column.fill, values)]
    if isinstance(column, Date):
        for cycle in column.cycles:
            angle = (parts[0] + column.origin) * (2 * np.pi / CYCLES[cycle])
            parts += [np.sin(angle), np.cos(angle)]
    if column.gaps:
        parts.append(missing.astype(float))
    fill = f"{column.fill:.6g}{' days' if isinstance(column, Date) else ''}"
    written = cells.columns[column.name]
    empty = {written[row] for row in np.flatnonzero(missing).tolist()}
    return np.stack(parts, 1), [*_empty(column, cells, empty, fill), *_others(column, cells, values)]


def _category(column: Category, cells: Cells) -> tuple[np.ndarray, list[str]]:
    """[N, groups] features of a category, and notes on its cells."""
    own, groups = cells.columns[column.name], column.groups
    known, by_number = {*column.levels, *column.rare}, column.by_number
    names, new, empty, notes = {}, [], set(), []
    for cell in dict.fromkeys(own):
        if texts.absent(cell, among_words=True):
            empty.add(cell)
            names[cell] = MISSING if column.gaps else OTHER
            continue
        name = level(cell, cells.decimal)
        if name not in known and (value := texts.exact(name)) in by_number and value is not None:
            name = by_number[value]
            notes.append(f"Column {shown(column.name)}: {shown(cell)} is read as {shown(name)}, the same number.")
        names[cell] = name if name in column.levels else OTHER
        if name not in known:
            new.append(cell)
    places = {cell: groups.index(name) if name in groups else -1 for cell, name in names.items()}
    one_hot = np.eye(len(groups) + 1, len(groups))  # the last row is of no group
    x = one_hot[[places[cell] for cell in own]]
    taken_as = MISSING if column.gaps else OTHER if column.rare else "none of the known categories"
    return x, [*_empty(column, cells, empty, taken_as), *_unseen(column, cells, new), *notes[:1]]


def _empty(column: Quantity | Category, cells: Cells, empty: set[str], taken_as: str) -> list[str]:
    """A sentence on the cells without a value, which are among these."""
    if not empty:
        return []
    count = sum(cell in empty for cell in cells.columns[column.name])
    spelled = f" (or {listed(map(shown, sorted(empty - {''})))})" if empty != {""} else ""
    late = "" if column.gaps else "; none was when the table was first read"
    empty_cells = f"{counted(count, 'cell', be=True)} empty{spelled}"
    return [f"Column {shown(column.name)}: {empty_cells}, counted as {taken_as}{late}."]


def _others(column: Quantity, cells: Cells, values: np.ndarray) -> list[str]:
    """A sentence on values other than the one that every row had."""
    rows = np.flatnonzero((values != column.fill) & ~np.isnan(values)).tolist() if column.same else []
    if not rows:
        return []
    example = f"{shown(cells.columns[column.name][rows[0]])} in {cells.unit} {cells.lines[rows[0]]}"
    return [
        f"Column {shown(column.name)}: {counted(len(rows), 'cell', be=True)} not what every row had when the table "
        f"was first read, such as {example}; what another value does was not learnt."
    ]


def _unseen(column: Category, cells: Cells, new: Sequence[str]) -> list[str]:
    """A sentence on categories that were not known."""
    if not new:
        return []
    unknown = set(new)
    rows = [row for row, cell in enumerate(cells.columns[column.name]) if cell in unknown]
    taken_as = OTHER if column.rare else "none of the known categories"
    return [
        f"Column {shown(column.name)}: {counted(len(rows), 'cell', be=True)} of no category that was there when the "
        f"table was first read, such as {shown(new[0])} in {cells.unit} {cells.lines[rows[0]]}, counted as {taken_as}."
    ]
