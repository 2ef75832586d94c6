"""Which row of the table is which of those that are known."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from explore.campaign.cells import Value, canonical, coarse, fingerprint, same, saved_short
from explore.campaign.memory import Row
from explore.campaign.sheet import Sheet

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
    """Rows that are in the table under another id.

    Attributes:
        keys: the key that each has now, by its id until now.
        unclear: rows for which several of the table fit.
    """

    keys: dict[str, str]
    unclear: list[Row]


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
    result = Found({}, [])
    groups = defaultdict(list)
    for row in lost:
        groups[tuple(sorted(row.cells))].append(row)
    for columns, rows in groups.items():
        for names, needs, certain in _names(columns, sheet.schema.features):
            found = _Search(sheet, names, certain, by_id).run([r for r in rows if r.id not in result.keys], fresh)
            if len(found.keys) >= needs * len(rows):
                result.keys.update(found.keys)
                result.unclear.extend(found.unclear)
    return Found(result.keys, [row for row in result.unclear if row.id not in result.keys])


def _names(columns: Sequence[str], features: Sequence[str]) -> Iterator[tuple[dict[str, str], float, bool]]:
    """What columns may be called now: new name by old name, the share of rows that must fit, whether that is enough."""
    common = {name: name for name in columns if name in features}
    removed, added = [n for n in columns if n not in features], [n for n in features if n not in columns]
    if len(removed) == len(added) == 1:
        yield {**common, removed[0]: added[0]}, 0.5, True  # renamed
    if common:
        yield common, 0.0, not (removed and added)


class _Search:
    """Rows of the table that agree with known rows in some columns."""

    def __init__(self, sheet: Sheet, names: Mapping[str, str], certain: bool, by_id: bool):
        self._sheet, self._names, self._certain, self._by_id = sheet, names, certain, by_id

    def run(self, rows: Sequence[Row], fresh: Mapping[str, int]) -> Found:
        found = Found({}, [])
        if self._by_id:
            ids = {canonical(row.id) for row in rows}
            fresh = {key: row for key, row in fresh.items() if canonical(key) in ids}
        rounded = any(saved_short(cell) for row in rows for cell in row.cells.values())
        for digits in (None, *COARSE) if rounded else (None,):
            self._pass(digits, [row for row in rows if row.id not in found.keys], fresh, found)
        return found

    def _pass(self, digits: int | None, rows: Sequence[Row], fresh: Mapping[str, int], found: Found) -> None:
        """Compare what is rounded to some digits, or is not."""

        def project(cells: Mapping[str, str]) -> str:
            return fingerprint(cells) if digits is None else coarse(cells, digits)

        if not (rows and fresh):
            return
        buckets, twins = defaultdict(list), defaultdict(list)
        for key, i in fresh.items():
            buckets[project(self._theirs(i))].append(key)
        for row in rows:
            twins[project(self._ours(row))].append(row)
        for name, alike in twins.items():
            fitting = [(row, [k for k in buckets[name] if self._fits(row, k, fresh[k])]) for row in alike]
            for row, keys in fitting:
                rivals = [r for r in alike if r is not row and r.seen and _within(row.seen, r.seen)]
                told = [k for k in keys if row.seen and not rivals and _within(row.seen, self._sheet.told[fresh[k]])]
                if (len(keys) == 1 and self._certain) or len(told) == 1:
                    found.keys[row.id] = (told or keys)[0]
                elif keys:
                    found.unclear.append(row)

    def _ours(self, row: Row) -> dict[str, str]:
        return {new: row.cells[old] for old, new in self._names.items()}

    def _theirs(self, row: int) -> dict[str, str]:
        cells = self._sheet.cells(row)
        return {new: cells[new] for new in self._names.values()}

    def _fits(self, row: Row, key: str, i: int) -> bool:
        theirs = self._theirs(i)
        alike = all(same(cell, theirs[name]) for name, cell in self._ours(row).items())
        return alike and (not self._by_id or canonical(key) == canonical(row.id))
