"""Which kind each column of a table is of, from its cells alone; what cannot be told for certain is refused."""

import math
import re
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from explore.core.errors import InputError, listed, one_of, shown
from explore.data import orders, texts
from explore.data.columns import Schema
from explore.data.kinds import CYCLES, MISSING, OTHER, Category, Column, Date, Flag, LeftOut, Number, level
from explore.data.reading import Cells

__all__ = ["infer"]

RARE = 0.01  # of the rows: a category with fewer, or with one row, is pooled with other such
MOST_LEVELS = 30  # of one column; those with fewest rows are pooled
WORDS = 5  # so many make a text free
_ID = re.compile(r"(.*[\W_])?(id|uuid)", re.IGNORECASE)  # whole numbers of such a name are none if all differ
ONE_WAY = "goes one way from row to row; drop it if it is an order or a time of measurement"
CONSTANT = "is the same in every row, so that what another value does is not learnt"


def infer(
    cells: Cells,
    names: Sequence[str],
    categorical: Collection[str] = (),
    cycles: Sequence[str] = (),
    feature: Collection[str] = (),
    decided: Collection[str] = (),
) -> tuple[Schema, tuple[str, ...]]:
    """A schema of some columns of a table, and sentences on what was decided.

    Args:
        cells: the table.
        names: of the columns.
        categorical: columns whose numbers or dates are names; they are never left out.
        cycles: of `kinds.CYCLES`: dates get sine and cosine of their part of the "year", "week" or "day" too.
        feature: columns that are learnt from though they number the rows, are times of measurement, or numbers that
            look like codes.
        decided: columns that were learnt from before, and still are if they number the rows now.

    Raises:
        InputError: naming a cell that cannot be told for certain (a number with a unit or marks between its digits,
            a date that may be two, a text among numbers), or when no feature is left.
    """
    if wrong := [cycle for cycle in cycles if cycle not in CYCLES]:
        raise one_of("cycle", str(wrong[0]), CYCLES)
    columns: list[Column] = []
    notes: list[str] = []
    for name in names:
        if name in categorical:
            column, said = _words(name, cells, True)
        else:
            column, said = _recognised(name, cells, tuple(cycles), name in feature, name in decided)
        if name in feature and isinstance(column, LeftOut):
            raise InputError(f"column {shown(name)} of {cells.path} {said[0]}; it cannot be a feature")
        columns.append(column)
        notes += [f"Column {shown(name)} {what}." for what in said]
    schema = Schema(tuple(columns))
    if not schema.features:
        raise InputError(f"{cells.path} has no column left to learn from: {' '.join(notes)}")
    if twice := [name for name, count in Counter(schema.features).items() if count > 1]:
        raise InputError(f"{cells.path} would have several features {shown(twice[0])}; rename a column")
    return schema, tuple(notes)


def _recognised(
    name: str, cells: Cells, cycles: tuple[str, ...], wanted: bool, decided: bool
) -> tuple[Column, list[str]]:
    own = cells.columns[name]
    values, odd = texts.numbers(own, cells.decimal)
    if np.isnan(values).all() and not len(odd):
        return LeftOut(name, "empty"), ["is empty and left out"]
    if not len(odd):
        if not wanted and (code := texts.code(own)):
            column, said = _words(name, cells, False)
            why = "leading zeros" if len(code) < 16 else "more digits than a number keeps"
            taken = f"has {why}, as in {shown(code)}, so that its cells are names; {_take_in(name)} reads numbers"
            return column, [taken, *said]
        column, said = _number(name, values, wanted or decided)
        if bare := texts.ambiguous(own):
            said.append(f"has {shown(bare)}, read as {float(bare):g}; if it is a name, call the column categorical")
        return column, said
    counts = Counter(own)
    present = [cell for cell in counts if not texts.absent(cell)]
    words = {cell.casefold() for cell in present}
    if pair := next((pair for pair in texts.PAIRS if words <= set(pair)), None):
        flags, _ = texts.flags(own, pair)
        return _remarked(Flag(name, words=pair, **_filled(flags) | {"fill": float(np.nanmean(flags) > 0.5)}), flags)
    if forms := texts.date_formats(present):
        return _date(name, cells, forms, cycles, wanted or decided)
    resembling = sum(counts[cell] for cell in present if texts.resembles_a_number(cell))
    if 2 * resembling >= sum(counts[cell] for cell in present):
        _refuse(name, cells, odd)
    column, said = _words(name, cells, False)
    numbers = [cell for cell in present if texts.number(cell, cells.decimal) is not None]
    if numbers and isinstance(column, Category):
        said.append(f"has texts in most rows, so that numbers among them are names, such as {shown(numbers[0])}")
    return column, said


def _number(name: str, values: np.ndarray, wanted: bool) -> tuple[Column, list[str]]:
    present = values[~np.isnan(values)]
    if not wanted and len(values) > 1:
        if orders.is_timed(name):
            return _timed(name)
        whole = np.array_equal(present, np.round(present))
        identifies = (_ID.fullmatch(name) or name.endswith(("ID", "Id"))) and len(np.unique(values)) == len(values)
        if whole and (identifies or orders.is_named(name) or orders.counts(values, name)):
            return LeftOut(name, "order"), [f"numbers the rows and is left out; {_take_in(name)} takes it in"]
    return _remarked(Number(name, **_filled(values)), values, wanted)


def _take_in(name: str) -> str:
    return f"--feature {shown(name)}"


def _timed(name: str) -> tuple[Column, list[str]]:
    return LeftOut(name, "timestamp"), [f"says when rows were measured and is left out; {_take_in(name)} takes it in"]


def _date(name: str, cells: Cells, forms: list[str], cycles: tuple[str, ...], wanted: bool) -> tuple[Column, list[str]]:
    own, form = cells.columns[name], forms[0]
    days, _ = texts.dates(own, form)
    if len(forms) > 1:
        differs = days != texts.dates(own, forms[1])[0]
        row = int(np.argmax(differs & ~np.isnan(days) if differs[~np.isnan(days)].any() else ~np.isnan(days)))
        raise InputError(
            f"{cells.where(row, name)}: {shown(own[row])} may begin with the day or with the month; write dates as "
            f"2024-03-31{texts.OTHERWISE}"
        )
    if not wanted and (orders.is_timed(name) or (days[~np.isnan(days)] % 1).any()):
        return _timed(name)
    origin = float(np.floor(np.nanmin(days)))
    date = Date(name, form=form, origin=origin, cycles=cycles, **_filled(days - origin))
    column, remarks = _remarked(date, days, wanted)
    if form != texts.ISO:
        row = int(np.nanargmax(days))
        remarks.insert(0, f"has dates: {shown(own[row])} is read as {np.datetime64(int(days[row]), 'D')}")
    return column, remarks


def _refuse(name: str, cells: Cells, odd: np.ndarray) -> None:
    """Name the first cell that does not fit the others, which look like numbers or dates."""
    own = cells.columns[name]
    _, no_date = texts.dates(own, texts.ISO)
    fewest = min(odd, no_date, key=len)
    rows = fewest.tolist()
    if not rows:
        where = f"column {shown(name)} of {cells.path}"
        raise InputError(f"{where}: some times have a zone and others have none; give all of them one, or none")
    row = next((row for row in rows if texts.resembles_a_number(own[row])), rows[0])
    more = f"; the column has {len(rows)} such cells" if len(rows) > 1 else ""
    raise InputError(f"{cells.where(row, name)}: {texts.objection(own[row], cells.decimal)}{more}")


def _words(name: str, cells: Cells, asked: bool) -> tuple[Column, list[str]]:
    """A category, or a column left out unless it was asked for: free text, identifiers, hardly any text twice."""
    cell_counts = Counter(cells.columns[name])
    levels = {cell: level(cell, cells.decimal) for cell in cell_counts if not texts.absent(cell, among_words=True)}
    if not levels:
        return LeftOut(name, "empty"), ["is empty and left out"]
    if {OTHER, MISSING} & set(levels.values()):
        raise InputError(
            f"column {shown(name)} of {cells.path} has a cell {OTHER} or {MISSING}; write it in another way"
        )
    counts: Counter[str] = Counter()
    for cell, called in levels.items():
        counts[called] += cell_counts[cell]
    rows = counts.total()
    common, rare = _pooled(counts)
    column = Category(name, common, rare, rows < len(cells.lines))
    if not asked:
        wordy = 2 * sum(len(text.split()) >= WORDS for text in counts) > len(counts)
        if wordy and 2 * len(counts) > rows:
            return LeftOut(name, "free text"), ["is free text and left out"]
        if len(counts) == rows > 1:
            return LeftOut(name, "identifier"), ["has another text in every row and is left out"]
        if not common:
            return LeftOut(name, "too many categories"), ["has another text in nearly every row and is left out"]
    elif not common:
        raise InputError(f"column {shown(name)} of {cells.path} has no category of two rows; leave it out")
    return column, _remarks(column, levels)


def _pooled(counts: Counter[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The levels that are common and those that are rare."""
    rows = counts.total()
    least = min(rows, max(2, math.ceil(RARE * rows)))
    common = sorted((name for name in counts if counts[name] >= least), key=lambda name: (-counts[name], name))
    if len(common) < len(counts) or len(common) > MOST_LEVELS:
        common = common[: MOST_LEVELS - 1]
    return tuple(sorted(common)), tuple(sorted(counts.keys() - set(common)))


def _remarks(column: Category, levels: dict[str, str]) -> list[str]:
    """What is to be said of a category whose cells have these levels."""
    said = [CONSTANT] if len(column.groups) == 1 else []
    if column.rare:
        rare = listed(map(repr, column.rare), 5)
        said.append(f"has {len(column.rare)} rare categories, which count as one: {rare}")
    if same := texts.alike(levels, levels.__getitem__):
        said.append(f"has {shown(same[0])} and {shown(same[1])}, which are one category")
    names = dict.fromkeys(levels.values())
    if different := texts.alike(names) or texts.alike(names, texts.exact):
        said.append(f"has {shown(different[0])} and {shown(different[1])}, which are two categories")
    return said


def _remarked(column: Number | Flag | Date, values: np.ndarray, wanted: bool = True) -> tuple[Column, list[str]]:
    """A column, with a note if its values are all the same or, unless it is wanted, go one way."""
    if column.same:
        return column, [CONSTANT]
    return column, [ONE_WAY] if not wanted and orders.moves(values) else []


def _filled(values: np.ndarray) -> dict[str, Any]:
    """Fields of a column of these values, [N] and NaN where there is none: their median counts for empty cells."""
    present = values[~np.isnan(values)]
    with np.errstate(over="ignore"):  # the median of two may be their mean
        median = float(np.median(present))
    fill = median if np.isfinite(median) else float(present.min())
    return {"fill": fill, "gaps": len(present) < len(values), "same": bool(values.min() == values.max())}
