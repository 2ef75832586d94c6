"""Which line of a table is which known row."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import count
from typing import cast

import numpy as np
from jaxtyping import Float, Int

from explore.campaign.cells import ROUNDING, Value, canonical, fingerprint, same
from explore.campaign.sheet import Table
from explore.campaign.state import FINGERPRINT, Row, Schema
from explore.data.texts import number

Measurements = Mapping[str, Value]  # by target


def identify(table: Table, rows: Sequence[Row], old: Schema) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the id of each line, and new ids by old ones of rows whose id changed with the columns of the table.

    An id is the line's key; identical rows are k, k-2, k-3, ..., told apart by their target cells. `old` is the former
    schema of the table.
    """
    found, ids, names, used = dict[int, Row](), list[str](), dict[str, str](), {row.id for row in rows}
    for lines, alike in _groups(table, rows, old):
        cells = {line: table.measurements[line] for line in lines}
        pairs = _pairs(cells, alike)
        if len(lines) == len(alike) == 1:
            pairs = {lines[0]: alike[0]}
        elif len({table.keys[line] for line in lines}) > 1:  # told apart by new columns: only its own value is certain
            single = [line for line, some in cells.items() if some and list(cells.values()).count(some) == 1]
            pairs = {line: row for line, row in pairs.items() if line in single and row.table == cells[line]}
        found |= pairs
    for line, k in enumerate(table.keys):
        row = found.get(line)
        if row and (row.id if table.schema.id_column else row.id[:FINGERPRINT]) == k:  # without a suffix such as -2
            ids.append(row.id)
        else:
            ids.append(next(name for n in count(1) if (name := k if n == 1 else f"{k}-{n}") not in used))
            names |= {row.id: ids[-1]} if row else {}
        used.add(ids[-1])
    return tuple(ids), names


def _groups(table: Table, rows: Sequence[Row], old: Schema) -> Iterator[tuple[list[int], list[Row]]]:
    """Yield lines and known rows that may be the same: with the same identifier, or the same features.

    If features were only added, or only removed, or one was renamed, these are the features that are still there.
    """
    new, lines, known = table.schema, defaultdict[str, list[int]](list), defaultdict[str, list[Row]](list)
    by_id = new.id_column is not None and old.id_column == new.id_column
    removed = [n for n in old.features if n not in (*new.features, new.id_column)]
    added = [n for n in new.features if n not in (*old.features, old.id_column)]
    column = {n: n for n in old.features if n in new.features} | dict(zip(removed, added, strict=False))
    if removed and added and len(removed) + len(added) > 2 and not by_id:
        return
    for row in rows:
        cells = {n: row.cells.get(was, "") for was, n in column.items()}
        measured = {t: value for t, value in row.table.items() if t in new.targets}
        known[row.id if by_id else fingerprint(cells)].append(replace(row, table=measured))
    is_key = by_id or (new.id_column is None and set(column) == set(new.features))  # else its part without new columns
    for line, k in enumerate(table.keys):
        lines[k if is_key else fingerprint({n: table.features[n][line] for n in column.values()})].append(line)
    yield from ((alike, known[mark]) for mark, alike in lines.items() if mark in known)
    missing = [row for mark, alike in known.items() if mark not in lines for row in alike]
    if missing and (by_id or not (removed or added)):
        rest = np.array([line for mark, alike in lines.items() if mark not in known for line in alike], int)
        yield from _rewritten(table, rest, missing, by_id)


def _rewritten(
    table: Table, lines: Int[np.ndarray, " n"], rows: Sequence[Row], by_id: bool
) -> Iterator[tuple[list[int], list[Row]]]:
    """Yield lines and rows that differ only as a spreadsheet rewrites cells, if only one line and one row fit.

    It may round features or, if rows are known `by_id`, write 7 for 007.
    """

    @cache
    def numbers(name: str) -> Float[np.ndarray, " n"]:
        return np.array([math.nan if (x := number(cell)) is None else x for cell in table.features[name]])

    def fitting(row: Row) -> list[int]:
        if by_id:
            return [line for line in lines.tolist() if canonical(table.keys[line]) == canonical(row.id)]
        remaining = lines
        for name, cell in row.cells.items():
            if (value := number(cell)) is not None and not value.is_integer():  # as `same`, for many lines at once
                remaining = remaining[np.isclose(numbers(name)[remaining], value, rtol=ROUNDING, atol=0)]
            else:
                equal = [line for line in remaining.tolist() if same(table.features[name][line], cell)]
                remaining = np.array(equal, int)
        return cast(list[int], remaining.tolist())

    fits = [(row, fitting(row)) for row in rows]
    uses = Counter(line for _, lines_of_row in fits for line in lines_of_row)
    yield from ((found, [row]) for row, found in fits if len(found) == 1 and uses[found[0]] == 1)


def _pairs(lines: Mapping[int, Measurements], rows: Sequence[Row]) -> dict[int, Row]:
    """Pair lines and rows with the same features, those of lowest rank first."""
    ranks = [(_rank(cells, row), line, i) for line, cells in lines.items() for i, row in enumerate(rows)]
    pairs = dict[int, int]()
    for _, line, i in sorted(entry for entry in ranks if entry[0]):
        if line not in pairs and i not in pairs.values():
            pairs[line] = i
    return {line: rows[i] for line, i in pairs.items()}


def _rank(cells: Measurements, row: Row) -> tuple[int, ...]:
    """Rank a line and a row with the same features by their target cells; () if they are not the same.

    Unchanged cells come first, perhaps with one more target. Other values correct a measured row whose value left the
    table, or else belong to an unmeasured row, first of all to a pending one. Empty lines get the rows that are left.
    """
    if not row.table:
        level = 2 if row.agrees(cells) else 4
    elif row.table.items() <= cells.items():
        level = 0 if row.table == cells else 1
    elif cells and not row.gone:
        level = 3
    else:
        return ()
    return not cells, level, bool(row.values), row.gone, row.pending is None
