"""Parsing and checks of a table's targets and identifiers."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from explore.core.errors import InputError, counted, listed, shown
from explore.data import texts
from explore.data.reading import Cells, Names

UNMEASURED = "; for tables with unmeasured rows use explore suggest"
WITH_GAPS = "; write only the number, 'failed' for a failed experiment, or nothing if it is not measured yet"
WITHOUT_GAPS = f"; write only the number, or leave out the row{UNMEASURED}"
FEW_CLASSES = 10  # up to this many classes, any number of examples will do


def quantities(table: Cells, names: Sequence[str], gaps: bool = False, targets: bool = False) -> np.ndarray:
    """Parse columns as finite float64 [N, columns]; with `gaps`, missing values are allowed and become NaN.

    With `gaps` and `targets`, cells that declare a failed experiment also become NaN. Other cells raise InputError.
    """
    columns = {name: texts.numbers(table.columns[name], table.decimal) for name in names}
    failed = texts.FAILED if gaps and targets else ()
    wrong = {
        name: [row for row in rows.tolist() if table.columns[name][row].casefold() not in failed]
        for name, (values, odd) in columns.items()
        if len(rows := odd if gaps else np.flatnonzero(np.isnan(values)))
    }
    if any(wrong.values()):
        raise no_numbers(table, wrong, (WITH_GAPS if gaps else WITHOUT_GAPS) if targets else "")
    return np.stack([values for values, _ in columns.values()], 1)


def no_numbers(table: Cells, wrong: Mapping[str, Sequence[int]], advice: str = WITH_GAPS) -> InputError:
    """Return the error for cells that are not numbers; `wrong` has their rows, by column. The message lists a few."""
    cells = {name: [(row, str(table.columns[name][row])) for row in rows] for name, rows in wrong.items() if rows}
    every = [cell for column in cells.values() for _, cell in column]
    if all(texts.number(cell, table.decimal) is None and texts.number(cell, ",") is not None for cell in every):
        advice = f"; {texts.POINT}"
    elif advice and any(cell.isalpha() and texts.number(cell) is None for cell in every):
        advice += " (for classes use --task classification)"
    if len(every) == 1:
        ((name, ((row, cell),)),) = cells.items()
        problem = f"{shown(cell)} is not" if cell else "an empty cell instead of"
        return InputError(f"{table.where(row, name)}: {problem} a finite number{advice}")
    parts = []
    for name, column in cells.items():
        examples = (f"{shown(cell, 40) if cell else 'empty'} ({table.unit} {table.lines[row]})" for row, cell in column)
        parts.append(f"column {shown(name)}: {listed(examples, 10)}")
    noun = "cells of targets" if advice else "cells"
    return InputError(f"{table.path}: {len(every)} {noun} are not finite numbers: {'; '.join(parts[:20])}{advice}")


def repeated(table: Cells, name: str | None) -> str:
    """Return a note if identifiers in column `name` repeat, else ""; raise InputError if an identifier is missing."""
    if name is None:
        return ""
    cells = table.columns[name]
    if "" in cells:
        raise InputError(f"{table.where(cells.index(''), name)}: the identifier is missing")
    if not (twice := [cell for cell, count in Counter(cells).items() if count > 1]):
        return ""
    return f"{len(twice)} identifiers of {shown(name)} occur in several rows, such as {shown(twice[0])}."


def marks(table: Cells, target: str, keep: bool = False, failed: Collection[str] = ()) -> str:
    """Return a note on how marks such as NA in a class target are read, or "". With `keep`, all marks are classes.

    `failed` has the strings, in lower case, that declare a failed experiment.
    """
    counts = Counter(cell for cell in map(str, table.columns[target]) if cell and cell.casefold() not in failed)
    usual = [cell for cell in sorted(counts) if texts.absent(cell) or cell.casefold() in texts.FAILED]
    skipped = [cell for cell in usual if texts.absent(cell, "classes") and not keep]
    named = [cell for cell in usual if cell not in skipped]
    declare = " (use --failed TEXT for failed experiments)" if {*map(str.casefold, named)} & {*texts.FAILED} else ""
    advice = f"use --keep-na {target}, in Python keep_na, to read them as classes"
    parts = [
        listed(f"{shown(cell)} ({counted(counts[cell], 'cell')})" for cell in cells) + f" as {reading}"
        for cells, reading in ((skipped, f"not measured ({advice})"), (named, f"classes{declare}"))
        if cells
    ]
    return f"Column {shown(target)} reads {', and '.join(parts)}." if parts else ""


def classes(
    table: Cells, targets: Sequence[str], gaps: bool = False, keep_na: Names = (), failed: Collection[str] = ()
) -> tuple[np.ndarray, tuple[str, ...], str]:
    """Return class indices [N], the class names, and notes. `keep_na` is as in `load_table`, `failed` as in `marks`.

    With `gaps`, rows may lack a class (index -1), and there may be fewer than two classes.
    """
    if len(targets) != 1:
        raise InputError(f"classification needs one target column, not {len(targets)}")
    (target,) = targets
    cells, column, keep = table.columns[target], f"column {shown(target)} of {table.path}", target in keep_na
    present = (cell for cell in cells if cell and cell.casefold() not in failed)
    counts = Counter(cell for cell in present if keep or not texts.absent(cell, "classes"))
    examples = counts.total()
    if examples < len(cells) and not gaps:
        row = next(i for i, cell in enumerate(cells) if cell not in counts)
        cell = f"{shown(cells[row])} marks a missing value" if cells[row] else "the class is missing"
        advice = f", or keep it as a class by --keep-na {target} (keep_na in Python)" if cells[row] else ""
        raise InputError(f"{table.where(row, target)}: {cell}{UNMEASURED}{advice}")
    if len(counts) < 2 and not gaps:
        raise InputError(f"{column} has a single class, {shown(cells[0])}; at least 2 are needed")
    numbers = {n: value for n in counts if (value := texts.exact(n)) is not None and not texts.absent(n)}  # "nan"
    numeric = len(numbers) == len(counts)
    if fraction := next((name for name in numbers if numeric and not float(numbers[name]).is_integer()), ""):
        where = table.where(cells.index(fraction), target)
        raise InputError(f"{where}: class {shown(fraction)} is not a whole number. For numbers use --task regression")
    if numeric and (same := texts.alike(numbers, numbers.__getitem__)):
        spellings = f"{shown(same[0])} and as {shown(same[1])}"
        raise InputError(f"{column} has one class written as {spellings}. Use one spelling")
    many = f"{column} has {len(counts)} classes for {examples} examples"
    if len(counts) > max(FEW_CLASSES, examples / 2):
        raise InputError(f"{many}. Every class needs at least 2. For numbers use --task regression")
    names = sorted(counts, key=numbers.__getitem__ if numeric else str)
    notes = [marks(table, target, keep, failed)]
    if FEW_CLASSES < len(names) > examples / 10:
        notes.append(f"{many}, so few of each class are in training.")
    if alike := texts.alike(names):
        notes.append(f"{column} has {shown(alike[0])} and {shown(alike[1])}, read as two classes.")
    index = {name: i for i, name in enumerate(names)}
    return np.array([index.get(cell, -1) for cell in cells], np.int64), tuple(names), " ".join(filter(None, notes))
