"""The kinds of columns: the features each becomes, and what its cells count."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from explore.core.errors import InputError, listed, shown
from explore.data import texts
from explore.data.reading import Cells

__all__ = ["CYCLES", "KINDS", "MISSING", "OTHER", "Category", "Column", "Date", "Flag", "LeftOut", "Number", "Quantity"]

OTHER, MISSING = "(other)", "(missing)"
CYCLES = {"year": 365.2425, "week": 7.0, "day": 1.0}  # days


@dataclass(frozen=True)
class LeftOut:
    """A column without features."""

    name: str
    why: str
    kind: ClassVar[str] = "left out"

    @property
    def features(self) -> tuple[str, ...]:
        return ()


@dataclass(frozen=True)
class Quantity(ABC):
    """A column whose cells are numbers, or count as such."""

    name: str
    fill: float  # for empty cells
    gaps: bool  # whether a feature says which are empty
    same: bool = field(default=False, kw_only=True)  # whether every row had one value, which is `fill`

    def values(self, cells: Cells) -> np.ndarray:
        """[N], NaN for empty cells.

        Raises:
            InputError: for a cell that is none of the kind.
        """
        column = cells.columns[self.name]
        values, odd = self._read(column, cells.decimal)
        if len(odd):
            row = int(odd[0])
            raise InputError(f"{cells.where(row, self.name)}: {self._objection(column[row], cells.decimal)}")
        return values

    @property
    def features(self) -> tuple[str, ...]:
        return (*self._names(), f"{self.name} = {MISSING}") if self.gaps else self._names()

    @abstractmethod
    def _names(self) -> tuple[str, ...]:
        """Of the features, but for the one that says which cells are empty."""

    @abstractmethod
    def _read(self, column: Sequence[str], decimal: str) -> tuple[np.ndarray, np.ndarray]:
        """The values [N], and the rows whose cells have none."""

    def _objection(self, cell: str, decimal: str) -> str:
        return texts.objection(cell, decimal, fixed=True)


@dataclass(frozen=True)
class Number(Quantity):
    """A column of numbers."""

    kind: ClassVar[str] = "number"

    def _names(self) -> tuple[str, ...]:
        return (self.name,)

    def _read(self, column: Sequence[str], decimal: str) -> tuple[np.ndarray, np.ndarray]:
        return texts.numbers(column, decimal)


@dataclass(frozen=True)
class Flag(Quantity):
    """A column of two words, of which the second one counts 1."""

    words: tuple[str, ...]
    kind: ClassVar[str] = "truth value"

    def _names(self) -> tuple[str, ...]:
        return (f"{self.name} = {self.words[1]}",)

    def _read(self, column: Sequence[str], decimal: str) -> tuple[np.ndarray, np.ndarray]:
        return texts.flags(column, self.words)

    def _objection(self, cell: str, decimal: str) -> str:
        return f"{shown(cell)} is neither of {listed(self.words)}"


@dataclass(frozen=True)
class Date(Quantity):
    """A column of dates, in days since the earliest when the schema was made, and parts of a cycle if asked for."""

    form: str
    origin: float  # in days since 1970
    cycles: tuple[str, ...]  # of CYCLES
    kind: ClassVar[str] = "date"

    def _names(self) -> tuple[str, ...]:
        start = np.datetime64(int(self.origin), "D")
        waves = [f"{self.name} ({part} of the {cycle})" for cycle in self.cycles for part in ("sine", "cosine")]
        return (f"{self.name} (days since {start})", *waves)

    def _read(self, column: Sequence[str], decimal: str) -> tuple[np.ndarray, np.ndarray]:
        days, odd = texts.dates(column, self.form)
        if len(odd) and self.form != texts.ISO:  # a spreadsheet may have saved them so since
            days, again = texts.dates(column, texts.ISO)
            odd = odd if len(again) else again
        return days - self.origin, odd


@dataclass(frozen=True)
class Category:
    """A column of words, or of numbers that are names."""

    name: str
    levels: tuple[str, ...]  # each has a feature
    rare: tuple[str, ...]  # they share one, with all levels that are not known
    gaps: bool
    kind: ClassVar[str] = "category"

    @property
    def features(self) -> tuple[str, ...]:
        return tuple(f"{self.name} = {level}" for level in self.groups)

    @property
    def groups(self) -> list[str]:
        """The levels and what else has a feature."""
        return [*self.levels, *([OTHER] if self.rare else []), *([MISSING] if self.gaps else [])]

    @property
    def by_number(self) -> dict[int | float, str]:
        """The levels that are numbers, where one alone is this number: a spreadsheet makes 7 of 007, and 100 of 1E2."""
        values = [(name, texts.exact(name)) for name in (*self.levels, *self.rare)]
        counts = Counter(value for _, value in values)
        return {value: name for name, value in values if value is not None and counts[value] == 1}


Column = LeftOut | Number | Flag | Date | Category
KINDS: dict[str, type[Column]] = {column.kind: column for column in (LeftOut, Number, Flag, Date, Category)}


def level(cell: str, decimal: str = ".") -> str:
    """The name of a category: as it is written, but that spreadsheets and data frames may write 7 as 7.0."""
    if texts.number(cell, decimal) is None:
        return cell
    plain = texts.pointed(cell, decimal).replace("\u2212", "-")
    return plain[:-2] if plain.endswith(".0") and plain[:-2].lstrip("+-").isdecimal() else plain
