"""The scientist's table: its cells, and the numbers that a model makes of its rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from explore import campaign, data
from explore.campaign import Campaign, Row
from explore.campaign.cells import folded
from explore.cli.suggest.settings import Settings
from explore.core.errors import InputError, listed, shown
from explore.data import targets, texts
from explore.data.base import check_units
from explore.data.columns import Matrix
from explore.data.kinds import Date, LeftOut
from explore.data.reading import Cells
from explore.data.recognition import infer
from explore.data.table import cells_of, check_kept, roles

OWN = "_"  # begins the names of the columns that next.csv has more
ORDERING = ("order", "timestamp")  # why a column is left out that stays so
FEW = 5  # rows, in which the cells of a feature may all be empty by accident
STRAY = 0.05  # of the rows of a pool: in so many what the most of the measured ones have may stand by accident


class Learnt(NamedTuple):
    """Which columns are learnt from: rows that come or go change what a column counts, but not what it is."""

    features: tuple[str, ...]
    left_out: tuple[str, ...]  # as they number the rows, or say when they were measured

    def updated(self, schema: data.Schema, learnt: Sequence[str]) -> Learnt:
        """With what was decided of columns that were not there before."""
        ordering = [c.name for c in schema.columns if isinstance(c, LeftOut) and c.why in ORDERING]
        features = dict.fromkeys([*self.features, *learnt])
        return Learnt(tuple(features), tuple(sorted({*self.left_out, *ordering} - {*learnt})))


@dataclass(frozen=True)
class Table:
    """A table that was read, before anything is known of its rows."""

    path: Path
    written: Cells  # as the file has them
    cells: Cells  # by which rows are known, see `comparable`
    roles: campaign.Schema  # which columns tell rows apart
    schema: data.Schema  # what they become
    costs: np.ndarray | None  # float64 [N], of --cost
    notes: tuple[str, ...]
    learnt: Learnt  # for the next start


def read(path: Path, settings: Settings, before: Learnt | None = None) -> Table:
    """The table; its columns are looked at anew every time, as rows may have come.

    Args:
        path: of the file.
        settings: of the campaign.
        before: which columns were learnt from at the last start, and which were not; None at the first one.

    Raises:
        InputError: when it cannot be used; the sentence names the column or the cell.
    """
    written, classes = opened(path, settings.decimal, settings.sheet), settings.task == "classification"
    drop = [*settings.drop_columns, *([settings.cost] if settings.cost else [])]
    names, features = roles(written, settings.target, drop, settings.task, settings.id_column)
    if own := [name for name in written.columns if name in _own(settings) or (classes and name.startswith(f"{OWN}p_"))]:
        raise InputError(f"{path} has a column {shown(own[0])}, as next.csv has; rename it, or give the table itself")
    for option, chosen in (("categorical", settings.categorical), ("feature", settings.feature)):
        if wrong := [name for name in chosen if name not in features]:
            raise InputError(f"--{option}: {path} has no feature {shown(wrong[0])}")
    check_kept(written, names, settings.task, settings.keep_na)
    rule = campaign.Schema(tuple(names), (), None, classes, bool(settings.keep_na), settings.failed)
    asked = {*settings.categorical, *settings.feature}
    late = _late(written, [name for name in features if name not in settings.categorical], rule)
    before = before or Learnt((), ())
    left = [name for name in features if name in before.left_out and name not in asked]
    used = [name for name in features if name not in (*late, *left)]
    schema, decided = infer(written, used, settings.categorical, (), settings.feature, before.features)
    if left:
        those = listed(map(shown, left))
        decided = (f"Still left out, as at the last start: {those}; --feature takes a column in.", *decided)
    cells = comparable(written, schema, () if classes else names)
    if classes:
        declared = set(map(folded, settings.failed))  # -999 is -999.0 too
        failed = {text.casefold() for text in map(str, cells.columns[names[0]]) if folded(text) in declared}
        targets.classes(cells, names, True, settings.keep_na, failed)
    learnt = tuple(column.name for column in schema.columns if not isinstance(column, LeftOut))
    known_by = rule._replace(features=learnt, id_column=settings.id_column)
    costs = _costs(written, settings.cost) if settings.cost else None
    if late:
        decided = (
            *decided,
            f"Next to nothing stands in {listed(map(shown, late))} where {listed(names)} is not measured yet: left "
            "out; what an experiment tells besides may be another --target.",
        )
    notes = (*written.notes, *decided, *_hint(schema, settings))
    return Table(path, written, cells, known_by, schema, costs, notes, before.updated(schema, learnt))


def _late(cells: Cells, features: Sequence[str], rule: campaign.Schema) -> list[str]:
    """Features whose cells are empty in (nearly) all rows of the pool, and not in those that are measured.

    They say which rows are measured and nothing of the others, which would be other rows once they are filled in.
    """
    told = {
        row
        for name in rule.targets
        for row, cell in enumerate(cells.columns[name])
        if cell and (rule.keep_na or not texts.unmeasured(cell, rule.classes))
    }
    if len(told) == len(cells.lines):
        return []
    filled = {n: {row for row, cell in enumerate(cells.columns[n]) if not texts.absent(cell, True)} for n in features}
    left = len(cells.lines) - len(told)

    def late(rows: set[int]) -> bool:
        strayed = len(rows - told) <= STRAY * left and len(rows & told) > len(told) / 2
        return rows == told or (left >= FEW and (rows <= told or strayed))

    return [name for name, rows in filled.items() if rows and late(rows)]


def _own(settings: Settings) -> set[str]:
    """What next.csv may call the columns that it has more, but for probabilities."""
    parts = ("mean", "low", "high")
    names = {"id", "rank", "cost", "score", "reason", *parts}
    return {OWN + name for name in names | {f"{part}_{target}" for part in parts for target in settings.target}}


def _costs(cells: Cells, name: str) -> np.ndarray:
    """What each row costs.

    Raises:
        InputError: naming a cell that is no positive number.
    """
    values = targets.quantities(cells, [name], gaps=True)[:, 0]
    if (bad := ~(values > 0)).any():
        row = int(bad.argmax())
        raise InputError(
            f"{cells.where(row, name)}: {shown(cells.columns[name][row])} is no cost; every row needs a positive number"
        )
    return values


def opened(path: Path, decimal: str, sheet: str | None = None, strict: bool = True) -> Cells:
    """The cells of a file, see `cells_of`.

    Raises:
        InputError: when it is missing or cannot be read.
    """
    try:
        return cells_of(path, decimal, sheet, strict)
    except (OSError, ImportError) as error:
        raise InputError(str(error)) from error


def labels(path: Path, table: Table, settings: Settings) -> Cells:
    """The cells of a file that has measurements of a table's rows, in the table's own way, see `comparable`.

    Raises:
        InputError: when it is missing or cannot be read.
    """
    cells = opened(path, settings.decimal, settings.sheet, strict=False)
    return comparable(cells, table.schema, () if table.roles.classes else table.roles.targets)


def comparable(cells: Cells, schema: data.Schema, numbers: Sequence[str]) -> Cells:
    """The same cells as one file has them and another: points in the numbers, and dates as 2024-03-31.

    Raises:
        InputError: when there is a point in one of the columns of `numbers` whose decimal mark is another.
    """
    columns = {
        name: [texts.pointed(cell, cells.decimal) for cell in own] if cells.decimal != "." else own
        for name, own in cells.columns.items()
    }
    for name in numbers if cells.decimal != "." else ():
        for row, cell in enumerate(cells.columns.get(name, ())):
            if texts.number(cell, cells.decimal) is None and texts.number(cell) is not None:
                raise InputError(
                    f"{cells.where(row, name)}: {shown(cell)} has a point, but --decimal says that the decimal mark is "
                    f"{cells.decimal!r}; write the digits and that mark alone"
                )
    for column in schema.columns:
        if isinstance(column, Date) and column.name in columns:
            columns[column.name] = texts.iso(columns[column.name], column.form)
    return cells._replace(columns=columns, decimal=".")


def _hint(schema: data.Schema, settings: Settings) -> list[str]:
    """A column that may name the rows."""
    named = [c.name for c in schema.columns if isinstance(c, LeftOut) and c.why in ("identifier", "order")]
    if not named or settings.id_column:
        return []
    return [f"If column {shown(named[0])} names the rows, say so by --id; without it rows are known by their features."]


@dataclass(frozen=True)
class Rows:
    """What a model sees: the rows of the table, behind them known ones that are no longer there."""

    x: np.ndarray  # float64 [N + G, D]
    measured: list[int]  # of which a target is measured, or all
    values: list[list[float | str]]  # by target, of these; NaN where it is not measured
    pending: list[int]
    taken: list[int]  # all that are measured, failed or pending
    pool: list[int]
    costs: np.ndarray | None  # [N + G], NaN where it is not known any more
    spent: dict[str, float]  # "budget" of these, and "labels" of the measured and the pending ones
    notes: tuple[str, ...]

    def complete(self) -> Rows:
        """The same, with the measured rows of which all targets are measured."""
        kept = [i for i, values in enumerate(self.values) if all(value == value for value in values)]  # not NaN
        return replace(self, measured=[self.measured[i] for i in kept], values=[self.values[i] for i in kept])


def rows(table: Table, known: Campaign) -> Rows:
    """The rows after the campaign has read the table."""
    matrix = table.schema.apply(table.written)
    check_units(matrix.features, matrix.x)
    gone = [row for row in known.memory.rows.values() if row.gone and (row.values or row.pending)]
    kept, x, lost = _gone(table, gone)
    at = {name: i for i, name in enumerate(known.ids)} | {row.id: len(matrix.x) + i for i, row in enumerate(kept)}
    complete = [row for row in known.measured if row.id in at]
    measured = [*complete, *(row for row in known.partly if row.id in at)]
    pending = [row for row in known.pending if row.id in at]
    failed = [row for row in known.failed if row.id in at]
    costs, taken = table.costs, [at[row.id] for row in (*complete, *failed, *pending)]
    if costs is not None:
        costs = np.concatenate([costs, [float(row.said.get("cost", "nan")) for row in kept]])
        if unknown := int(np.isnan(costs[taken]).sum()):
            lost = [*lost, f"The costs of {unknown} rows that are no longer in the table are not known, nor counted."]
    budget = float(len(taken) if costs is None else np.nansum(costs[taken]))
    spent = {"labels": float(len(complete) + len(pending)), "budget": budget}
    return Rows(
        np.concatenate([matrix.x, x]) if kept else matrix.x,
        [at[row.id] for row in measured],
        [[np.nan if (v := row.mean.get(t)) is None else v for t in table.roles.targets] for row in measured],
        [at[row.id] for row in pending],
        taken,
        list(known.pool), costs, spent, (*matrix.notes, *lost),
    )  # fmt: skip


def _gone(table: Table, rows: Sequence[Row]) -> tuple[list[Row], np.ndarray, list[str]]:
    """Rows that are no longer in the table, as numbers; those that its columns no longer allow are said."""
    kept, lost = [], []
    for row in rows:
        try:
            _features(table, [row])
            kept.append(row)
        except InputError as error:
            lost.append(f"Row {campaign.short(row.id)}, which is no longer in the table, is not learnt from: {error}.")
    if not kept:
        return kept, np.empty((0, len(table.schema.features))), lost
    matrix = _features(table, kept)
    return kept, matrix.x, [*lost, *(f"Of rows that are no longer in the table: {note}" for note in matrix.notes)]


def _features(table: Table, rows: Sequence[Row]) -> Matrix:
    """Known rows as the model sees them."""
    columns = {name: [row.cells.get(name, "") for row in rows] for name in table.roles.features}
    return table.schema.apply(Cells(table.path, columns, tuple(range(1, len(rows) + 1)), unit="number"))
