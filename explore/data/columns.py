"""A schema: how columns of a table become features. It applies to new data alike, and converts to JSON.

A number stays as it is, a truth value is 0 or 1, a date counts days, and a category has one feature for each level. An
empty cell is imputed by the column's median (a truth value by the most frequent one). If the table had empty cells when
its schema was made, another feature marks them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np

from explore.core.errors import InputError, check_fields, counted, listed, shown
from explore.data import texts
from explore.data.reading import Cells, called

OTHER, MISSING = "(other)", "(missing)"


@dataclass(frozen=True)
class LeftOut:
    """A column without features."""

    name: str
    why: str
    kind: ClassVar[str] = "left out"
    features: ClassVar[tuple[str, ...]] = ()


@dataclass(frozen=True)
class Quantity(ABC):
    """A column whose cells are read as numbers."""

    name: str
    fill: float  # for empty cells
    gaps: bool  # whether a feature marks empty cells
    same: bool = field(default=False, kw_only=True)  # whether all rows had the value `fill`
    unit: ClassVar[str] = ""  # of `fill`, in messages
    average: ClassVar[str] = "median"  # the meaning of `fill`, in messages

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features."""
        return (self._feature, f"{self.name} = {MISSING}") if self.gaps else (self._feature,)

    @property
    def _feature(self) -> str:
        """The name of the feature of the values."""
        return self.name

    @abstractmethod
    def _read(self, column: Sequence[str], decimal: str) -> tuple[np.ndarray, np.ndarray]:
        """The values [N], NaN for empty cells, and the rows of other cells without a value."""

    def _objection(self, cell: str, decimal: str) -> str:
        return texts.objection(cell, decimal, fixed=True)

    def block(self, cells: Cells) -> tuple[np.ndarray, list[str]]:
        """The features [N, columns], and notes on imputed or unusual cells; refuse cells of another type."""
        column = cells.columns[self.name]
        values, odd = self._read(column, cells.decimal)
        if len(odd):
            row = int(odd[0])
            raise InputError(f"{cells.where(row, self.name)}: {self._objection(column[row], cells.decimal)}")
        missing = np.isnan(values)
        parts = [np.where(missing, self.fill, values), *([missing.astype(float)] if self.gaps else [])]
        empty = {column[row] for row in np.flatnonzero(missing).tolist()}
        notes = _note_empty(self, cells, empty, "imputed", f"with the {self.average}, {self.fill:.6g}{self.unit}")
        rows = np.flatnonzero((values != self.fill) & ~missing).tolist() if self.same else []
        if rows:
            example = f"{shown(column[rows[0]])} in {cells.unit} {cells.lines[rows[0]]}"
            notes.append(
                f"Column {shown(self.name)}: {counted(len(rows), 'cell', be=True)} other than the one value that every "
                f"row had when the table was first read, such as {example}; its effect was not learnt."
            )
        return np.stack(parts, 1), notes


@dataclass(frozen=True)
class Number(Quantity):
    """A column of numbers."""

    kind: ClassVar[str] = "number"

    def _read(self, column: Sequence[str], decimal: str) -> tuple[np.ndarray, np.ndarray]:
        return texts.numbers(column, decimal)


@dataclass(frozen=True)
class Flag(Quantity):
    """A column of two words; the second is encoded as 1."""

    words: tuple[str, ...]
    kind: ClassVar[str] = "truth value"
    average: ClassVar[str] = "most frequent value"

    @property
    def _feature(self) -> str:
        return f"{self.name} = {self.words[1]}"

    def _read(self, column: Sequence[str], decimal: str) -> tuple[np.ndarray, np.ndarray]:
        return texts.flags(column, self.words)

    def _objection(self, cell: str, decimal: str) -> str:
        return f"{shown(cell)} is neither of {listed(self.words)}"


@dataclass(frozen=True)
class Date(Quantity):
    """A column of dates, in days since the earliest when the schema was made."""

    form: str
    origin: float  # in days since 1970
    kind: ClassVar[str] = "date"
    unit: ClassVar[str] = " days after the earliest date"

    @property
    def _feature(self) -> str:
        return f"{self.name} (days since {np.datetime64(int(self.origin), 'D')})"

    def _read(self, column: Sequence[str], decimal: str) -> tuple[np.ndarray, np.ndarray]:
        days, odd = texts.dates(column, self.form)
        if len(odd) and self.form != texts.ISO:  # a spreadsheet may have saved them so since
            days, again = texts.dates(column, texts.ISO)
            odd = odd if len(again) else again
        return days - self.origin, odd


@dataclass(frozen=True)
class Category:
    """A column of words, or of numbers used as names."""

    name: str
    levels: tuple[str, ...]  # each has a feature
    rare: tuple[str, ...]  # they share one, with all unknown levels
    gaps: bool
    kind: ClassVar[str] = "category"

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features."""
        return tuple(f"{self.name} = {level}" for level in self.groups)

    @property
    def groups(self) -> list[str]:
        """The levels and other groups with a feature."""
        return [*self.levels, *([OTHER] if self.rare else []), *([MISSING] if self.gaps else [])]

    @property
    def by_number(self) -> dict[int | float, str]:
        """Levels by their numbers, where these are unique: a spreadsheet makes 7 of 007, and 100 of 1E2."""
        values = [(name, texts.exact(name)) for name in (*self.levels, *self.rare)]
        counts = Counter(value for _, value in values)
        return {value: name for name, value in values if value is not None and counts[value] == 1}

    def block(self, cells: Cells) -> tuple[np.ndarray, list[str]]:
        """The features [N, groups], and notes on empty and unknown cells."""
        column, groups, by_number = cells.columns[self.name], self.groups, self.by_number
        levels = {*self.levels, *self.rare}
        names, new, empty, notes = {}, [], set(), []
        for cell in dict.fromkeys(column):
            if texts.absent(cell, among_words=True):
                empty.add(cell)
                names[cell] = MISSING if self.gaps else OTHER
                continue
            name = level(cell, cells.decimal)
            if name not in levels and (value := texts.exact(name)) in by_number and value is not None:
                name = by_number[value]
                notes.append(f"Column {shown(self.name)}: {shown(cell)} is read as {shown(name)}, the same number.")
            names[cell] = name if name in self.levels else OTHER
            if name not in levels:
                new.append(cell)
        places = {cell: groups.index(name) if name in groups else -1 for cell, name in names.items()}
        one_hot = np.eye(len(groups) + 1, len(groups))  # the last row is of no group
        x = one_hot[[places[cell] for cell in column]]
        unknown = OTHER if self.rare else "none of the known categories"
        before = _note_empty(self, cells, empty, "encoded", f"as {MISSING if self.gaps else unknown}")
        return x, [*before, *self._note_unknown(cells, new, unknown), *notes[:1]]

    def _note_unknown(self, cells: Cells, new: Sequence[str], unknown: str) -> list[str]:
        if not new:
            return []
        unlisted = set(new)
        rows = [row for row, cell in enumerate(cells.columns[self.name]) if cell in unlisted]
        example = f"{shown(new[0])} in {cells.unit} {cells.lines[rows[0]]}"
        return [
            f"Column {shown(self.name)}: encoded {counted(len(rows), 'cell')} of a new category, such as {example}, as "
            f"{unknown}."
        ]


Column = LeftOut | Number | Flag | Date | Category
KINDS: dict[str, type[Column]] = {column.kind: column for column in (LeftOut, Number, Flag, Date, Category)}


def level(cell: str, decimal: str = ".") -> str:
    """Name a category as it is written, except that 7.0, as in spreadsheets and data frames, becomes 7."""
    if texts.number(cell, decimal) is None:
        return cell
    plain = texts.pointed(cell, decimal).replace("\u2212", "-")
    return plain[:-2] if plain.endswith(".0") and plain[:-2].lstrip("+-").isdecimal() else plain


def _note_empty(column: Quantity | Category, cells: Cells, empty: set[str], verb: str, value: str) -> list[str]:
    """Describe how the cells without a value (a subset of `empty`) are imputed or encoded."""
    if not empty:
        return []
    count = sum(cell in empty for cell in cells.columns[column.name])
    marks = f" (or {listed(map(shown, sorted(empty - {''})))})" if empty != {""} else ""
    late = "" if column.gaps else "; no cell was empty when the table was first read"
    return [f"Column {shown(column.name)}: {verb} {counted(count, 'empty cell')}{marks} {value}{late}."]


class Matrix(NamedTuple):
    """Rows as features."""

    x: np.ndarray  # float64 [N, D], all finite
    features: tuple[str, ...]  # D names
    notes: tuple[str, ...]  # sentences on imputed and unknown cells


@dataclass(frozen=True)
class Schema:
    """The columns of a table, in its order."""

    columns: tuple[Column, ...]

    @property
    def features(self) -> tuple[str, ...]:
        """D names."""
        return tuple(feature for column in self.columns for feature in column.features)

    def apply(self, cells: Cells) -> Matrix:
        """Make features of the rows of any table that has the columns, in any order, with cells of their kinds."""
        used = [column for column in self.columns if not isinstance(column, LeftOut)]
        if lacking := [column.name for column in used if column.name not in cells.columns]:
            raise InputError(f"{cells.path} has no column {shown(lacking[0])}; {cells.listing}")
        x, notes = np.empty((len(cells.lines), len(self.features))), []
        start = 0
        for column in used:
            block, remarks = column.block(cells)
            x[:, start : start + block.shape[1]] = block
            start += block.shape[1]
            notes += remarks
        return Matrix(x, self.features, tuple(notes))

    def to_json(self) -> dict[str, Any]:
        """The schema as JSON values."""
        return {"columns": [{"kind": column.kind} | asdict(column) for column in self.columns]}

    @staticmethod
    def from_json(value: Any) -> Schema:
        """Undo `to_json`; refuse other values."""
        try:
            return Schema(tuple(_column(dict(entry)) for entry in value["columns"]))
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{shown(value)} is no schema of a table ({error}); make one from the table") from None


def _column(entry: dict[str, Any]) -> Column:
    kind: Any = KINDS[entry.pop("kind")]
    entry["name"] = called(entry["name"])  # normalised as in the tables to which it applies
    if entry.pop("cycles", ()):  # empty in the schemas that commands of earlier versions wrote
        raise ValueError("cycles of dates are not supported")
    column: Column = kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in entry.items()})
    check_fields(column, {"fill": "(-inf, inf)", "origin": "(-inf, inf)"})
    return column
