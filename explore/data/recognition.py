"""Inference of column types from the cells of a table. Ambiguous cells raise InputError."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from explore.core.errors import InputError, listed, shown
from explore.data import texts
from explore.data.columns import MISSING, OTHER, Category, Column, LeftOut, Quantity, Schema, level
from explore.data.reading import Cells, Names

RARE = 0.01  # share of rows; rarer categories, or those with one row, are pooled
MOST_LEVELS = 30  # per column; the rarest levels beyond this are pooled
WORDS = 5  # from this many words on, a cell counts as free text
FEW = 5  # rows; in fewer rows, numbers may count up by chance
MANY = 20  # rows; from here on, numbers in any order that are mostly consecutive are row numbers
ORDERING = {"order": "numbers the rows", "timestamp": "says when rows were measured"}
ONE_WAY = "only rises or only falls from row to row; drop it if it is an order or a time of measurement"
CONSTANT = "is constant, so the model cannot learn its effect"

_ID = re.compile(r"(?i:(.*[\W_])?(id|uuid))|.*(ID|Id)")  # identifiers, if the values are distinct whole numbers
# Names without punctuation, in lower case.
_NAMED = re.compile(
    r"run|std|index|idx|unnamed\d+|column1|indexlevel\d+|level0|rownames?"
    r"|(run|std|standard|row|sample|experiment(al)?|exp|trial|test|entry|measurement|observation|obs|injection"
    r"|acquisition|execution|random|randomi[sz]ed)(order|nr|no|num|number|id|index|idx)"
)
_TIMED = re.compile(r"timestamp|datetime|unixtime|(measured|recorded|created|acquired|updated)(at|on)")


def infer(
    cells: Cells, names: Sequence[str], categorical: Names = (), feature: Names = (), decided: Names = ()
) -> tuple[Schema, tuple[str, ...]]:
    """Infer the schema of a table; also return notes on the decisions. Raise InputError if cells are ambiguous.

    `names` are the columns that may become features. In `categorical` columns, numbers and dates are categories; they
    are never left out. Columns in `feature`, and the features `decided` of an earlier schema, are kept even if they
    look like row numbers or timestamps; those in `feature` also if they look like codes.
    """
    columns: list[Column] = []
    notes: list[str] = []
    for name in names:
        if name in categorical:
            column, remarks = _words(name, cells, True)
        else:
            column, remarks = _recognised(name, cells, name in feature, name in decided)
        if name in feature and isinstance(column, LeftOut):
            raise InputError(f"column {shown(name)} of {cells.path} {remarks[0]}; it cannot be a feature")
        columns.append(column)
        notes += [f"Column {shown(name)} {remark}." for remark in remarks]
    schema = Schema(tuple(columns))
    if not schema.features:
        raise InputError(f"{cells.path} has no column left to learn from: {' '.join(notes)}")
    if twice := [name for name, count in Counter(schema.features).items() if count > 1]:
        raise InputError(f"{cells.path} would have several features {shown(twice[0])}. Rename a column")
    return schema, tuple(notes)


def _recognised(name: str, cells: Cells, wanted: bool, decided: bool) -> tuple[Column, list[str]]:
    column = cells.columns[name]
    values, odd = texts.numbers(column, cells.decimal)
    if not len(odd):
        if not wanted and (code := texts.code(column)):
            category, remarks = _words(name, cells, False)
            why = f"has {'leading zeros' if len(code) < 16 else 'more digits than a number keeps'}, as in {shown(code)}"
            remark = f"{why}, so it is read as a category; use --feature {shown(name)} to read numbers"
            return category, [remark, *remarks]
        return _number(name, column, values, wanted or decided)
    counts = Counter(column)
    present = [cell for cell in counts if not texts.absent(cell)]
    words = {cell.casefold() for cell in present}
    if pair := next((pair for pair in texts.PAIRS if words <= set(pair)), None):
        flags, _ = texts.flags(column, pair)
        return _quantity(name, flags, words=pair, fill=float(np.nanmean(flags) > 0.5))
    if forms := texts.date_formats(present):
        return _date(name, cells, forms, wanted or decided)
    resembling = sum(counts[cell] for cell in present if texts.resembles_a_number(cell))
    if 2 * resembling >= sum(counts[cell] for cell in present):
        # The first cell that is not a number or date like the others, or a time with a zone that others lack.
        rows = min(odd, texts.dates(column, texts.ISO)[1], key=len).tolist() or odd.tolist()
        row = next((row for row in rows if texts.resembles_a_number(column[row])), rows[0])
        more = f"; the column has {len(rows)} such cells" if len(rows) > 1 else ""
        raise InputError(f"{cells.where(row, name)}: {texts.objection(column[row], cells.decimal)}{more}")
    category, remarks = _words(name, cells, False)
    numbers = [cell for cell in present if texts.number(cell, cells.decimal) is not None]
    if numbers and isinstance(category, Category):
        example = shown(numbers[0])
        remarks.append(f"contains text in most rows, so numbers such as {example} are treated as categories too")
    return category, remarks


def _number(name: str, column: Sequence[str], values: np.ndarray, wanted: bool) -> tuple[Column, list[str]]:
    present = values[~np.isnan(values)]
    if not len(present):
        return LeftOut(name, "empty"), ["is empty and left out"]
    if not wanted and len(values) > 1:
        if _TIMED.fullmatch(_plain(name)):
            return _left_out(name, "timestamp")
        differ = len(np.unique(values)) == len(values)
        is_named = _NAMED.fullmatch(_plain(name)) or (_ID.fullmatch(name) and differ)
        if counts(values) or (is_named and np.array_equal(present, np.round(present))):
            return _left_out(name, "order")
    result, remarks = _quantity(name, values, wanted)
    if bare := texts.ambiguous(column):
        remarks.append(f"has {shown(bare)}, read as {float(bare):g}; use --categorical if it is a name")
    return result, remarks


def _left_out(name: str, why: str) -> tuple[Column, list[str]]:
    return LeftOut(name, why), [f"{ORDERING[why]} and is left out; use --feature {shown(name)} to include it"]


def _date(name: str, cells: Cells, forms: list[str], wanted: bool) -> tuple[Column, list[str]]:
    column, form = cells.columns[name], forms[0]
    days, _ = texts.dates(column, form)
    if len(forms) > 1:
        differs = (days != texts.dates(column, forms[1])[0]) & ~np.isnan(days)
        row = int(np.argmax(differs if differs.any() else ~np.isnan(days)))
        problem = f"{shown(column[row])} may start with the day or with the month"
        raise InputError(f"{cells.where(row, name)}: {problem}; write dates like 2024-03-31, or use --categorical")
    if not wanted and (_TIMED.fullmatch(_plain(name)) or (days[~np.isnan(days)] % 1).any()):
        return _left_out(name, "timestamp")
    origin = float(np.floor(np.nanmin(days)))
    result, remarks = _quantity(name, days - origin, wanted, form=form, origin=origin)
    if form != texts.ISO:
        row = int(np.nanargmax(days))
        remarks.insert(0, f"has dates: {shown(column[row])} is read as {np.datetime64(int(days[row]), 'D')}")
    return result, remarks


def _words(name: str, cells: Cells, requested: bool) -> tuple[Column, list[str]]:
    """Return a `Category` and remarks. Unless `requested`, return a `LeftOut` for free text or mostly unique cells."""
    distinct = dict.fromkeys(cells.columns[name])
    levels = {cell: level(cell, cells.decimal) for cell in distinct if not texts.absent(cell, "words")}
    counts = Counter(levels[cell] for cell in cells.columns[name] if cell in levels)
    if not (rows := counts.total()):
        return LeftOut(name, "empty"), ["is empty and left out"]
    if {OTHER, MISSING} & counts.keys():
        where = f"column {shown(name)} of {cells.path}"
        raise InputError(f"{where} has a cell {OTHER} or {MISSING}, which are reserved. Replace it")
    least = min(rows, max(2, math.ceil(RARE * rows)))
    common = sorted((name for name in counts if counts[name] >= least), key=lambda name: (-counts[name], name))
    if len(common) < len(counts) or len(common) > MOST_LEVELS:
        common = common[: MOST_LEVELS - 1]
    rare = sorted(counts.keys() - set(common))
    if requested and not common:
        raise InputError(f"column {shown(name)} of {cells.path}: no category occurs in two or more rows. Leave it out")
    if not requested:
        wordy = 2 * sum(len(text.split()) >= WORDS for text in counts) > len(counts)
        if wordy and 2 * len(counts) > rows:
            return LeftOut(name, "free text"), ["is free text and left out"]
        if len(counts) == rows > 1:
            return LeftOut(name, "identifier"), ["has a different text in every row and is left out"]
        if not common:
            return LeftOut(name, "too many categories"), ["has a different text in nearly every row and is left out"]
    column = Category(name, tuple(sorted(common)), tuple(rare), rows < len(cells.lines))
    remarks = [CONSTANT] if len(column.groups) == 1 else []
    if rare:
        remarks.append(f"has {len(rare)} rare categories, merged into one: {listed(map(repr, rare), 5)}")
    if same := texts.alike(levels, levels.__getitem__):
        remarks.append(f"has {shown(same[0])} and {shown(same[1])}, read as one category")
    if different := texts.alike(counts) or texts.alike(counts, texts.exact):
        remarks.append(f"has {shown(different[0])} and {shown(different[1])}, read as two categories")
    return column, remarks


def _quantity(name: str, values: np.ndarray, wanted: bool = True, **fields: Any) -> tuple[Column, list[str]]:
    """Return a `Quantity` for values [N] (NaN: missing), with a remark if the values are constant or monotonic."""
    present = values[~np.isnan(values)]
    with np.errstate(over="ignore"):  # the mean of the two middle values may overflow
        median = float(np.median(present))
    fill = median if np.isfinite(median) else float(present.min())
    fields = {"fill": fill, "gaps": len(present) < len(values), "same": bool(values.min() == values.max())} | fields
    column = Quantity(name, **fields)
    if column.same:
        return column, [CONSTANT]
    return column, [ONE_WAY] if not wanted and moves(values) else []


def counts(values: np.ndarray) -> bool:
    """Return whether numbers [N] (NaN: missing) look like row numbers, from any start.

    Consecutive numbers may be in any order, as in a randomised design. If some are skipped, most of the others
    must be consecutive, and the numbers must be monotonic, or at least MANY (20).
    """
    present = values[~np.isnan(values)]
    if len(present) < FEW or not np.array_equal(present, np.round(present)):
        return False
    steps = np.diff(np.sort(present))
    ordered = (steps > 0).all() and np.mean(steps == 1) > 0.5 and (moves(present) or len(present) >= MANY)
    return bool((steps == 1).all() or ordered)


def moves(values: np.ndarray) -> bool:
    """Return whether numbers [N] (NaN: missing) are monotonic with few repeats."""
    steps = np.diff(values[~np.isnan(values)])
    one_way = (steps >= 0).all() or (steps <= 0).all()
    return bool(len(steps) + 1 >= FEW and one_way and np.mean(steps != 0) > 0.5)


def _plain(name: str) -> str:
    return re.sub(r"[\W_]+", "", name.replace("#", "no")).casefold()
