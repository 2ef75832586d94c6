"""Table schemas: how columns become features. A schema also applies to new data, and converts to JSON.

Numbers stay as they are, Booleans become 0 or 1, dates become days, and categories are one-hot encoded. Empty cells are
imputed with the column's median (for Booleans, the most frequent value). If a column had empty cells when the schema
was made, an extra feature marks them.
"""

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
    """A column that is not used, so it has no features; `why` is the reason."""

    name: str
    why: str
    kind: ClassVar[str] = "left out"
    features: ClassVar[tuple[str, ...]] = ()


@dataclass(frozen=True)
class Quantity:
    """A column whose cells are read as numbers. Dates are read as days, and Booleans as 0 and 1."""

    name: str
    fill: float  # imputed for empty cells
    gaps: bool  # whether a feature marks empty cells
    same: bool = False  # whether the column was constant, equal to `fill`
    words: tuple[str, ...] = ()  # for Booleans: the words for 0 and 1
    form: str = ""  # for dates: their format, see `texts.dates`
    origin: float = 0.0  # for dates: the earliest date of the first table, in days since 1970

    @property
    def kind(self) -> str:
        """The type of the cells: "date", "truth value" (Boolean) or "number"."""
        return "date" if self.form else "truth value" if self.words else "number"

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features: the values and, with `gaps`, the marker of missing values."""
        since = f" (days since {np.datetime64(int(self.origin), 'D')})" if self.form else ""
        values = f"{self.name} = {self.words[1]}" if self.words else f"{self.name}{since}"
        return (values, f"{self.name} = {MISSING}") if self.gaps else (values,)

    def block(self, cells: Cells) -> tuple[np.ndarray, list[str]]:
        """Return features [N, 1 or 2] and notes on imputed and unseen values. Raise InputError for invalid cells."""
        column = cells.columns[self.name]
        values, odd = self._read(column, cells.decimal)
        if len(odd):
            accepted = f"one of {listed(self.words)}" if self.words else "a finite number without a unit"
            accepted = "a date in the format of the column, or like 2024-03-31" if self.form else accepted
            raise InputError(f"{cells.where(int(odd[0]), self.name)}: {shown(column[odd[0]])} is not {accepted}")
        missing = np.isnan(values)
        x = np.stack([np.where(missing, self.fill, values), missing][: len(self.features)], 1)
        changed = (values != self.fill) & ~missing & self.same
        middle = "most frequent value" if self.words else "median"
        unit = " days after the earliest date" if self.form else ""
        constant = f"; the column was constant {BEFORE}, so the model has not learnt its effect"
        imputed = _note(self, cells, missing, "imputed ", EMPTY, f" with the {middle}, {self.fill:.6g}{unit}")
        return x, imputed + _note(self, cells, changed, "", "new value", constant)

    def _read(self, column: Sequence[str], decimal: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the values [N] (NaN for empty cells), and the rows of cells that cannot be parsed."""
        if self.words:
            return texts.flags(column, self.words)
        if not self.form:
            return texts.numbers(column, decimal)
        days, odd = texts.dates(column, self.form)
        if len(odd) and self.form != texts.ISO:  # a spreadsheet may since have saved them in ISO format
            days, odd = min((days, odd), texts.dates(column, texts.ISO), key=lambda read: len(read[1]))
        return days - self.origin, odd


@dataclass(frozen=True)
class Category:
    """A categorical column: words, or numbers used as names."""

    name: str
    levels: tuple[str, ...]  # each has its own feature
    rare: tuple[str, ...]  # rare levels, which share one feature with unknown levels
    gaps: bool
    kind: ClassVar[str] = "category"

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the one-hot features, one per group in `groups`."""
        return tuple(f"{self.name} = {level}" for level in self.groups)

    @property
    def groups(self) -> list[str]:
        """The levels and, if used, the groups for rare levels and for missing values."""
        return [*self.levels, *([OTHER] if self.rare else []), *([MISSING] if self.gaps else [])]

    def block(self, cells: Cells) -> tuple[np.ndarray, list[str]]:
        """Return the one-hot features [N, groups], and notes on empty and unknown cells."""
        column, groups = cells.columns[self.name], self.groups
        accepted, names, notes = {"", *self.levels, *self.rare}, {}, []
        numbers: dict[str, Any] = {name: texts.exact(name) for name in accepted}
        counts = Counter(numbers.values())
        # A spreadsheet may have turned 007 into 7, or 1E2 into 100.
        by_number = {value: name for name, value in numbers.items() if value is not None and counts[value] == 1}
        for cell in dict.fromkeys(column):
            name = "" if texts.absent(cell, "words") else level(cell, cells.decimal)
            if name not in accepted and (same := by_number.get(texts.exact(name))):
                notes.append(f"Column {shown(self.name)}: {shown(cell)} is read as {shown(same)}, the same number.")
                name = same
            names[cell] = name
        places = {name: i for i, name in enumerate(groups)}
        rest = places.get(OTHER, -1)  # the last row of `one_hot` is all zeros: no group
        places[""] = places.get(MISSING, rest)
        one_hot = np.eye(len(groups) + 1, len(groups))[[places.get(names[cell], rest) for cell in column]]
        pooled = OTHER if self.rare else "none of the known categories"
        empty = [not names[cell] for cell in column]
        unknown = [names[cell] not in accepted for cell in column]
        encoded = _note(self, cells, empty, "encoded ", EMPTY, f" as {MISSING if self.gaps else pooled}")
        encoded += _note(self, cells, unknown, "encoded ", "unknown value", f" as {pooled}")
        return one_hot, encoded + notes[:1]


Column = LeftOut | Quantity | Category
KINDS: dict[str, type[Column]] = {
    "left out": LeftOut, "number": Quantity, "truth value": Quantity, "date": Quantity, "category": Category,
}  # fmt: skip


def level(cell: str, decimal: str = ".") -> str:
    """Return the category name of a cell: the cell itself, except that 7.0 (as in data frames) becomes 7."""
    if texts.number(cell, decimal) is None:
        return cell
    plain = texts.pointed(cell, decimal).replace("\u2212", "-")
    return plain[:-2] if plain.endswith(".0") and plain[:-2].lstrip("+-").isdecimal() else plain


def _note(column: Quantity | Category, cells: Cells, rows: Any, verb: str, noun: str, effect: str) -> list[str]:
    """Return a list with a note on the cells in the mask `rows` [N]; `effect` ends the sentence."""
    places, texts = np.flatnonzero(rows).tolist(), cells.columns[column.name]
    if not places:
        return []
    row = next((row for row in places if texts[row]), places[0])
    example = f", such as {shown(texts[row])} in {cells.unit} {cells.lines[row]}" if texts[row] else ""
    late = f"; no cell was empty {BEFORE}" if noun == EMPTY and not column.gaps else ""
    comma = "," if example and not effect.startswith(";") else ""
    return [f"Column {shown(column.name)}: {verb}{counted(len(places), noun)}{example}{comma}{effect}{late}."]


class Matrix(NamedTuple):
    """The features of a table's rows."""

    x: np.ndarray  # float64 [N, D], all finite
    features: tuple[str, ...]  # D names
    notes: tuple[str, ...]  # sentences on imputed and unknown cells


@dataclass(frozen=True)
class Schema:
    """The columns of a table, in table order, and how they become features."""

    columns: tuple[Column, ...]

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the D features."""
        return tuple(feature for column in self.columns for feature in column.features)

    def apply(self, cells: Cells) -> Matrix:
        """Compute the features of a table. Its columns may be in any order, but must have the schema's types."""
        used = [column for column in self.columns if not isinstance(column, LeftOut)]
        cells.require(column.name for column in used)
        x, notes, start = np.empty((len(cells.lines), len(self.features))), [], 0
        for column in used:
            block, remarks = column.block(cells)
            x[:, start : (start := start + block.shape[1])] = block
            notes += remarks
        return Matrix(x, self.features, tuple(notes))

    def to_json(self) -> dict[str, Any]:
        """Return the schema as JSON-compatible values."""
        return {"columns": [{"kind": column.kind} | asdict(column) for column in self.columns]}

    @staticmethod
    def from_json(value: Any) -> "Schema":
        """Restore a schema from the result of `to_json`; raise InputError for invalid values."""
        try:
            return Schema(tuple(_column(dict(entry)) for entry in value["columns"]))
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{shown(value)} is not a table schema ({error}). Make one from the table") from None


def _column(entry: dict[str, Any]) -> Column:
    kind = entry.pop("kind")
    make: Any = KINDS[kind]
    entry["name"] = called(entry["name"])  # normalised like the column names of tables
    column: Column = make(**{k: tuple(v) if isinstance(v, list) else v for k, v in entry.items()})
    check_fields(column, {"fill": "(-inf, inf)", "origin": "(-inf, inf)"})
    if column.kind != kind or len(getattr(column, "words", ())) not in (0, 2):
        raise ValueError(f"a {kind} has other fields")
    return column
