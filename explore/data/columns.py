"""A schema: how columns of a table become features. It applies to new data alike, and converts to JSON.

A number stays as it is, a truth value is 0 or 1, a date counts days, and a category has one feature for each level. An
empty cell is imputed by the column's median (a truth value by the most frequent one). If the table had empty cells when
its schema was made, another feature marks them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from explore.core.errors import InputError, check_fields, counted, listed, shown
from explore.data import texts
from explore.data.reading import Cells, called

OTHER, MISSING = "(other)", "(missing)"
BEFORE = "when the schema was made"
EMPTY = "empty cell"


@dataclass(frozen=True)
class LeftOut:
    """A column without features."""

    name: str
    why: str
    kind: ClassVar[str] = "left out"
    features: ClassVar[tuple[str, ...]] = ()


@dataclass(frozen=True)
class Quantity:
    """A column whose cells are read as numbers: dates as days, and two words as 0 and 1."""

    name: str
    fill: float  # for empty cells
    gaps: bool  # whether a feature marks empty cells
    same: bool = False  # whether all rows had the value `fill`
    words: tuple[str, ...] = ()  # of truth values
    form: str = ""  # of dates, see `texts.dates`
    origin: float = 0.0  # of dates: the earliest when the schema was made, in days since 1970

    @property
    def kind(self) -> str:
        """What the cells are."""
        return "date" if self.form else "truth value" if self.words else "number"

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features: the values, and perhaps whether they are missing."""
        since = f" (days since {np.datetime64(int(self.origin), 'D')})" if self.form else ""
        values = f"{self.name} = {self.words[1]}" if self.words else f"{self.name}{since}"
        return (values, f"{self.name} = {MISSING}") if self.gaps else (values,)

    def block(self, cells: Cells) -> tuple[np.ndarray, list[str]]:
        """Return the features [N, columns], and notes on imputed or unusual cells; refuse cells of another kind."""
        column = cells.columns[self.name]
        values, odd = self._read(column, cells.decimal)
        if len(odd):
            accepted = (
                "a date in the format of the column, or like 2024-03-31"
                if self.form
                else "a finite number without a unit"
            )
            accepted = f"one of {listed(self.words)}" if self.words else accepted
            raise InputError(f"{cells.where(int(odd[0]), self.name)}: {shown(column[odd[0]])} is not {accepted}")
        missing = np.isnan(values)
        x = np.stack([np.where(missing, self.fill, values), missing][: len(self.features)], 1)
        changed = (values != self.fill) & ~missing & self.same
        middle = "most frequent value" if self.words else "median"
        unit = " days after the earliest date" if self.form else ""
        return x, [
            *_note(self, cells, missing, ("imputed ", EMPTY, f" with the {middle}, {self.fill:.6g}{unit}")),
            *_note(
                self,
                cells,
                changed,
                ("", "new value", f"; the column was constant {BEFORE}, so the model has not learnt its effect"),
            ),
        ]

    def _read(self, column: Sequence[str], decimal: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the values [N], NaN for empty cells, and the rows of other cells without a value."""
        if self.words:
            return texts.flags(column, self.words)
        if not self.form:
            return texts.numbers(column, decimal)
        days, odd = texts.dates(column, self.form)
        if len(odd) and self.form != texts.ISO:  # a spreadsheet may have saved them so since
            days, odd = min((days, odd), texts.dates(column, texts.ISO), key=lambda read: len(read[1]))
        return days - self.origin, odd


Date = Quantity  # whose `form` is not empty


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
    def by_number(self) -> dict[Any, str]:
        """Levels by their numbers, where these are unique: a spreadsheet makes 7 of 007, and 100 of 1E2."""
        numbers = {name: texts.exact(name) for name in (*self.levels, *self.rare)}
        counts = Counter(numbers.values())
        return {value: name for name, value in numbers.items() if value is not None and counts[value] == 1}

    def block(self, cells: Cells) -> tuple[np.ndarray, list[str]]:
        """Return the features [N, groups], and notes on empty and unknown cells."""
        column, groups, by_number = cells.columns[self.name], self.groups, self.by_number
        accepted, names, notes = {"", *self.levels, *self.rare}, {}, []
        for cell in dict.fromkeys(column):
            name = "" if texts.absent(cell, among_words=True) else level(cell, cells.decimal)
            if name not in accepted and (same := by_number.get(texts.exact(name))):
                notes.append(f"Column {shown(self.name)}: {shown(cell)} is read as {shown(same)}, the same number.")
                name = same
            names[cell] = name
        places = {name: i for i, name in enumerate(groups)}
        rest = places.get(OTHER, -1)  # the last row of `one_hot` is of no group
        places[""] = places.get(MISSING, rest)
        one_hot = np.eye(len(groups) + 1, len(groups))
        pooled = OTHER if self.rare else "none of the known categories"
        empty = MISSING if self.gaps else pooled
        return one_hot[[places.get(names[cell], rest) for cell in column]], [
            *_note(self, cells, [not names[cell] for cell in column], ("encoded ", EMPTY, f" as {empty}")),
            *_note(
                self, cells, [names[c] not in accepted for c in column], ("encoded ", "unknown value", f" as {pooled}")
            ),
            *notes[:1],
        ]


Column = LeftOut | Quantity | Category
KINDS: dict[str, type[Column]] = {
    "left out": LeftOut, "number": Quantity, "truth value": Quantity, "date": Quantity, "category": Category,
}  # fmt: skip


def level(cell: str, decimal: str = ".") -> str:
    """Name a category as it is written, except that 7.0, as in spreadsheets and data frames, becomes 7."""
    if texts.number(cell, decimal) is None:
        return cell
    plain = texts.pointed(cell, decimal).replace("\u2212", "-")
    return plain[:-2] if plain.endswith(".0") and plain[:-2].lstrip("+-").isdecimal() else plain


def _note(
    column: Quantity | Category, cells: Cells, rows: Sequence[bool] | np.ndarray, words: tuple[str, str, str]
) -> list[str]:
    """Describe the cells in some rows, bool [N]: a verb, a noun, and what follows the example."""
    verb, noun, effect = words
    places, texts = np.flatnonzero(rows).tolist(), cells.columns[column.name]
    if not places:
        return []
    row = next((row for row in places if texts[row]), places[0])
    example = f", such as {shown(texts[row])} in {cells.unit} {cells.lines[row]}" if texts[row] else ""
    late = f"; no cell was empty {BEFORE}" if noun == EMPTY and not column.gaps else ""
    comma = "," if example and not effect.startswith(";") else ""
    return [f"Column {shown(column.name)}: {verb}{counted(len(places), noun)}{example}{comma}{effect}{late}."]


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
        """Make features of the rows of a table that has the columns, in any order, with cells of their kinds."""
        used = [column for column in self.columns if not isinstance(column, LeftOut)]
        if lacking := [column.name for column in used if column.name not in cells.columns]:
            raise InputError(f"{cells.path} has no column {shown(lacking[0])}; {cells.listing}")
        x, notes, start = np.empty((len(cells.lines), len(self.features))), [], 0
        for column in used:
            block, remarks = column.block(cells)
            x[:, start : (start := start + block.shape[1])] = block
            notes += remarks
        return Matrix(x, self.features, tuple(notes))

    def to_json(self) -> dict[str, Any]:
        """Return the schema as JSON values."""
        return {"columns": [{"kind": column.kind} | asdict(column) for column in self.columns]}

    @staticmethod
    def from_json(value: Any) -> Schema:
        """Undo `to_json`; refuse other values."""
        try:
            return Schema(tuple(_column(dict(entry)) for entry in value["columns"]))
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{shown(value)} is not a table schema ({error}). Make one from the table") from None


def _column(entry: dict[str, Any]) -> Column:
    kind = entry.pop("kind")
    make: Any = KINDS[kind]
    entry["name"] = called(entry["name"])  # normalised as in the tables to which it applies
    if entry.pop("cycles", ()):  # empty in the schemas that commands of earlier versions wrote
        raise ValueError("cyclic dates are not supported")
    column: Column = make(**{k: tuple(v) if isinstance(v, list) else v for k, v in entry.items()})
    check_fields(column, {"fill": "(-inf, inf)", "origin": "(-inf, inf)"})
    if column.kind != kind or len(getattr(column, "words", ())) not in (0, 2):
        raise ValueError(f"a {kind} has other fields")
    return column
