"""Matching of the lines of a table or labels file to known rows."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from explore.campaign.cells import DIGITS, Value, canonical, digits, has_all, same
from explore.campaign.memory import Row
from explore.campaign.sheet import Table
from explore.data.texts import number

COARSE = (4, 3)  # significant digits; cells that are `same` rarely differ at both roundings
Measurements = Mapping[str, Value]  # by target
Matched = tuple[dict[str, str], list[Row]]  # new keys by old id, and rows that fit several lines


def pair(
    lines: Mapping[int, Measurements], rows: Iterable[Row], *tests: Callable[[Row, Measurements], bool]
) -> dict[int, Row]:
    """Pair each line with an unused row that passes the first test; pair the rest by the second test, and so on."""
    free, pairs = list(rows), dict[int, Row]()
    for test in tests:
        for line in (line for line in lines if line not in pairs):
            if row := next((row for row in free if test(row, lines[line])), None):
                pairs[line] = row
                free.remove(row)
    return pairs


def match_identical(rows: Iterable[Row], measurements: Sequence[Measurements]) -> list[Row | None]:
    """Match each line to a known row, or None, by its target cells; all lines and rows have the same id or features.

    Lines with unchanged target cells are matched first. Then a line with new values corrects a measured row whose old
    values left the table, or else is the result of an unmeasured row, first of a pending one. Empty lines come last.
    """
    rows = sorted(rows, key=lambda row: (row.gone, row.pending is None, bool(row.values)))
    if len(measurements) == len(rows) == 1:
        return list(rows)
    filled = {line: cells for line, cells in enumerate(measurements) if cells}
    pairs = pair(
        filled,
        rows,
        lambda row, cells: row.table == cells,
        lambda row, cells: bool(row.table) and _within(row.table, cells),  # perhaps one more target was measured
        lambda row, cells: not row.table and row.agrees(cells),  # its measurement is from a labels file
    )
    rows = _unpaired(rows, pairs)
    in_table = [row for row in rows if not row.gone]
    measured = [row for row in in_table if row.table]
    unmeasured = [row for row in rows if row not in measured and not row.values]
    labelled = [row for row in rows if row not in measured and row.values]  # by a labels file; cells may be empty
    deleted = max(0, len(in_table) - (len(measurements) - len(pairs)))  # assume measured rows were deleted first
    new = {line: cells for line, cells in filled.items() if line not in pairs}
    pairs |= pair(new, [*measured[deleted:], *unmeasured], lambda *_: True)
    empty = {line: cells for line, cells in enumerate(measurements) if not cells}
    pairs |= pair(empty, _unpaired([*unmeasured, *measured, *labelled], pairs), lambda *_: True)
    return [pairs.get(line) for line in range(len(measurements))]


def _unpaired(rows: Iterable[Row], pairs: Mapping[int, Row]) -> list[Row]:
    paired = {row.id for row in pairs.values()}
    return [row for row in rows if row.id not in paired]


def _within(a: Measurements, b: Measurements) -> bool:
    return has_all({t: [value] for t, value in b.items()}, a)


def match_moved(lost: Iterable[Row], table: Table, fresh: Mapping[str, int], by_id: bool) -> Matched:
    """Match known rows to changed lines of the table.

    Columns may have been added, removed or (one) renamed; a spreadsheet may have saved fewer digits, or 7 for the id
    007. If several lines fit, or a column was replaced, the target cells decide. `lost` are rows whose id is not in the
    table; `fresh` has the first line of each key without a row. With `by_id`, the column of identifiers is the same.
    """
    keys: dict[str, str] = {}
    unclear: list[Row] = []
    groups = defaultdict(list)
    for row in lost:
        groups[tuple(sorted(row.cells))].append(row)
    for columns, rows in groups.items():
        for names, share, certain in _renamings(columns, table.schema.features):
            open_rows = [row for row in rows if row.id not in keys]
            matched, several = _search(open_rows, table, fresh, names, certain, by_id)
            if len(matched) >= share * len(rows):
                keys |= matched
                unclear += several
    return keys, [row for row in unclear if row.id not in keys]


def _renamings(columns: Sequence[str], features: Sequence[str]) -> Iterator[tuple[dict[str, str], float, bool]]:
    """Yield renamings to try: (new name by old, minimum share of rows to match, whether equal features suffice)."""
    common = {name: name for name in columns if name in features}
    removed, added = [n for n in columns if n not in features], [n for n in features if n not in columns]
    if len(removed) == len(added) == 1:
        yield {**common, removed[0]: added[0]}, 0.5, True  # renamed
    if common:
        yield common, 0.0, not (removed and added)


def _search(
    rows: Sequence[Row], table: Table, fresh: Mapping[str, int], names: Mapping[str, str], certain: bool, by_id: bool
) -> Matched:
    """Match rows by the columns `names` (new by old), exactly, then rounded; `certain`: equal cells suffice."""
    matched: dict[str, str] = {}
    unclear: list[Row] = []
    cells_of = {row.id: {new: row.cells[old] for old, new in names.items()} for row in rows}
    ids = set(map(canonical, cells_of))
    lines = {k: {name: table.features[name][i] for name in names.values()} for k, i in fresh.items()}
    lines = {k: cells for k, cells in lines.items() if not by_id or canonical(k) in ids}
    rounded = any(digits(cell) >= DIGITS for cells in cells_of.values() for cell in cells.values())
    for most in (None, *COARSE) if rounded and lines else (None,):
        buckets, twins = defaultdict(list), defaultdict(list)
        for k, cells in lines.items():
            buckets[_rounded(cells, most)].append(k)
        for row in (row for row in rows if row.id not in matched):
            twins[_rounded(cells_of[row.id], most)].append(row)
        for row, bucket in ((row, bucket) for bucket, alike in twins.items() for row in alike):
            fits = (k for k in buckets[bucket] if all(same(c, lines[k][name]) for name, c in cells_of[row.id].items()))
            keys = [k for k in fits if not by_id or canonical(k) == canonical(row.id)]
            has_rival = any(r is not row and r.table and _within(row.table, r.table) for r in twins[bucket])
            decided = row.table and not has_rival
            decisive = [k for k in keys if decided and _within(row.table, table.measurements[fresh[k]])]
            if (len(keys) == 1 and certain) or len(decisive) == 1:
                matched[row.id] = (decisive or keys)[0]
            elif keys:
                unclear.append(row)
    return matched, unclear


def _rounded(cells: Mapping[str, str], most: int | None) -> tuple[tuple[str, str], ...]:
    """Return a lookup key: the cells with rounded numbers. Cells that are equal by `same` nearly always share a key."""
    if most is None:
        return tuple(sorted(cells.items()))
    values = ((name, cell, number(cell)) for name, cell in sorted(cells.items()))
    return tuple((name, cell if value is None else f"{value:.{most - 1}e}") for name, cell, value in values)
