"""Which row of the table is which of those that are known."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from explore.campaign.cells import Value, canonical, same, saved_short
from explore.campaign.memory import Row
from explore.campaign.sheet import Sheet
from explore.data.texts import number

COARSE = (4, 3)  # digits; rarely one of them separates what is the same


def agrees(row: Row, told: Mapping[str, Value]) -> bool:
    """Whether the cells of targets say what is known of a row: a measurement of each, or their mean."""
    return all(
        t in row.values and any(same_value(value, known) for known in (*row.values[t], row.mean[t]))
        for t, value in told.items()
    )


def same_value(a: Value, b: Value) -> bool:
    """Whether two measurements are one, but for the digits that a spreadsheet may not have saved."""
    return a == b or (isinstance(a, int | float) and isinstance(b, int | float) and same(canonical(a), canonical(b)))


def logged(row: Row, told: Mapping[str, Value]) -> bool:
    """Whether the log has what cells of targets say of a row, even if it was corrected or taken back since."""
    return all(any(same_value(value, old) for old in row.logged.get(t, ())) for t, value in told.items())


def identical(units: Sequence[Row], told: Sequence[Mapping[str, Value]]) -> list[Row | None]:
    """Which of the known rows with the same features each row of the table with these is.

    They are interchangeable, so that their cells of the targets decide. A row whose cells say what they said when the
    table was last read is taken first. Of the others, new numbers are taken as corrections where rows with the old
    ones should still be there, then as answers of pending rows.

    Args:
        units: the known ones.
        told: the cells of the targets of each row in the table.

    Returns:
        For each of these the known one; None: nothing is known of it.
    """
    if len(told) == len(units) == 1:
        return [units[0]]
    pairs: dict[int, Row] = {}
    left = {u.id: u for u in sorted(units, key=lambda u: (u.gone, u.pending is None, bool(u.values)))}
    exact = defaultdict(list)
    for unit in left.values():
        exact[_items(unit.seen)].append(unit)
    for row, now in enumerate(told):
        if now and exact[_items(now)]:
            pairs[row] = left.pop(exact[_items(now)].pop(0).id)
    tests: tuple[Callable[[Row, Mapping[str, Value]], bool], ...] = (
        lambda unit, now: bool(unit.seen) and _within(unit.seen, now),  # perhaps one more target was measured
        lambda unit, now: not unit.seen and agrees(unit, now),  # it was told by a file of labels
    )
    for test in tests:
        for row, now in enumerate(told):
            if now and row not in pairs and (fit := next((u for u in left.values() if test(u, now)), None)):
                pairs[row] = left.pop(fit.id)
    here, gone = [u for u in left.values() if not u.gone], [u for u in left.values() if u.gone]
    seen = [u for u in here if u.seen]
    deleted = max(0, len(here) - (len(told) - len(pairs)))  # measured ones sooner than those to measure
    unmeasured = [u for u in (*here, *gone) if not (u.seen and not u.gone or u.values)]
    others = [u for u in (*here, *gone) if u not in unmeasured and u not in seen]  # their cells may well be empty
    for filled, candidates in ((True, [*seen[deleted:], *unmeasured]), (False, [*unmeasured, *seen, *others])):
        rows = [row for row, now in enumerate(told) if row not in pairs and bool(now) == filled]
        for row, unit in zip(rows, [u for u in candidates if u.id in left], strict=False):
            pairs[row] = left.pop(unit.id)
    return [pairs.get(row) for row in range(len(told))]


def _items(told: Mapping[str, Value]) -> tuple[tuple[str, Value], ...]:
    return tuple(sorted(told.items()))


def _within(a: Mapping[str, Value], b: Mapping[str, Value]) -> bool:
    return all(t in b and same_value(value, b[t]) for t, value in a.items())


class Found(NamedTuple):
    """Rows that are in the table under another id."""

    keys: dict[str, str]  # the key that each has now, by its id until now
    unclear: list[Row]  # rows for which several of the table fit


def found_again(lost: Iterable[Row], sheet: Sheet, fresh: Mapping[str, int], by_id: bool) -> Found:
    """Known rows whose id is not in the table, but that are there for certain.

    Columns may have been added, left out, or one of them renamed; a spreadsheet may have saved fewer digits than there
    were; and an identifier may be written as another number of the same value ("007" and "7"). Where several rows of
    the table fit, or a column was replaced, what stands in the cells of the targets decides.

    Args:
        lost: the known rows.
        sheet: the table.
        fresh: the keys of rows that nothing is known of, each with one of its rows in the table.
        by_id: whether ids are identifiers in the same column as before.
    """
    keys: dict[str, str] = {}
    unclear: list[Row] = []
    groups = defaultdict(list)
    for row in lost:
        groups[tuple(sorted(row.cells))].append(row)
    for columns, rows in groups.items():
        for names, share, certain in _names(columns, sheet.schema.features):
            open_rows = [row for row in rows if row.id not in keys]
            found = _search(open_rows, sheet, fresh, names, certain, by_id)
            if len(found.keys) >= share * len(rows):
                keys |= found.keys
                unclear += found.unclear
    return Found(keys, [row for row in unclear if row.id not in keys])


def _names(columns: Sequence[str], features: Sequence[str]) -> Iterator[tuple[dict[str, str], float, bool]]:
    """What columns may be called now: new name by old name, the share of rows that must fit, whether that is enough."""
    common = {name: name for name in columns if name in features}
    removed, added = [n for n in columns if n not in features], [n for n in features if n not in columns]
    if len(removed) == len(added) == 1:
        yield {**common, removed[0]: added[0]}, 0.5, True  # renamed
    if common:
        yield common, 0.0, not (removed and added)


def _search(
    rows: Sequence[Row], sheet: Sheet, fresh: Mapping[str, int], names: Mapping[str, str], certain: bool, by_id: bool
) -> Found:
    """Rows of the table that agree with known rows in some columns: first in all digits, then in fewer."""
    found = Found({}, [])
    cells = {row.id: {new: row.cells[old] for old, new in names.items()} for row in rows}
    ids = {canonical(name) for name in cells}
    candidates = {key: i for key, i in fresh.items() if cells and (not by_id or canonical(key) in ids)}
    theirs = {key: {name: sheet.cells(i)[name] for name in names.values()} for key, i in candidates.items()}
    rounded = any(saved_short(cell) for row in cells.values() for cell in row.values())
    for digits in (None, *COARSE) if rounded and theirs else (None,):
        buckets, twins = defaultdict(list), defaultdict(list)
        for key in theirs:
            buckets[_rounded(theirs[key], digits)].append(key)
        for row in rows:
            if row.id not in found.keys:
                twins[_rounded(cells[row.id], digits)].append(row)
        for bucket, alike in twins.items():
            for row in alike:
                keys = [
                    key
                    for key in buckets[bucket]
                    if all(same(cell, theirs[key][name]) for name, cell in cells[row.id].items())
                    and (not by_id or canonical(key) == canonical(row.id))
                ]
                rivals = any(r is not row and r.seen and _within(row.seen, r.seen) for r in alike)
                decided = [k for k in keys if row.seen and not rivals and _within(row.seen, sheet.told[fresh[k]])]
                if (len(keys) == 1 and certain) or len(decided) == 1:
                    found.keys[row.id] = (decided or keys)[0]
                elif keys:
                    found.unclear.append(row)
    return found


def _rounded(cells: Mapping[str, str], digits: int | None) -> tuple[tuple[str, str], ...]:
    """Cells whose numbers have so many digits: nearly always equal where all cells are the `same`."""
    values = {name: None if digits is None else number(cell) for name, cell in cells.items()}
    return tuple(
        (name, cells[name] if (value := values[name]) is None else f"{value:.{(digits or 1) - 1}e}")
        for name in sorted(cells)
    )
