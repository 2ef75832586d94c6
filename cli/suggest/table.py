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
from explore.data.columns import Date, LeftOut, Matrix
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
    """The table; its columns are looked at anew every time, as rows may have come, but stay what they were `before`.

    Raises:
        InputError: when it cannot be used; the sentence names the column or the cell.
    """
    written, classes = opened(path, settings.decimal, settings.sheet), settings.task == "classification"
    drop = [*settings.drop_columns, *([settings.cost] if settings.cost else [])]
    names, features = roles(written, settings.target, drop, settings.task, settings.id_column)
    _check(written, names, features, settings)
    rule = campaign.Schema(tuple(names), (), None, classes, bool(settings.keep_na), settings.failed)
    asked = {*settings.categorical, *settings.feature}
    late = _late(written, [name for name in features if name not in settings.categorical], rule)
    before = before or Learnt((), ())
    left = [name for name in features if name in before.left_out and name not in asked]
    used = [name for name in features if name not in (*late, *left)]
    schema, decided = infer(written, used, settings.categorical, settings.feature, before.features)
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
    notes = [*written.notes, *decided]
    if late:
        notes.append(
            f"Next to nothing stands in {listed(map(shown, late))} where {listed(names)} is not measured yet: left "
            "out; what an experiment tells besides may be another --target."
        )
    naming = [c.name for c in schema.columns if isinstance(c, LeftOut) and c.why in ("identifier", "order")]
    if naming and not settings.id_column:
        names_rows = f"If column {shown(naming[0])} names the rows, say so by --id"
        notes.append(f"{names_rows}; without it rows are known by their features.")
    return Table(path, written, cells, known_by, schema, costs, tuple(notes), before.updated(schema, learnt))


def _late(cells: Cells, features: Sequence[str], rule: campaign.Schema) -> list[str]:
    """Features whose cells are empty in (nearly) all rows of the pool, and not in those that are measured.

    They say which rows are measured and nothing of the others, which would be other rows once they are filled in.
    """
    measured = np.zeros(len(cells.lines), bool)
    for name in rule.targets:
        measured |= [bool(c) and (rule.keep_na or not texts.unmeasured(c, rule.classes)) for c in cells.columns[name]]
    pool = len(measured) - measured.sum()

    def late(name: str) -> bool:
        filled = np.array([not texts.absent(cell, True) for cell in cells.columns[name]])
        strayed, answered = (filled & ~measured).sum(), (filled & measured).sum()
        few = strayed == 0 or (strayed <= STRAY * pool and answered > measured.sum() / 2)
        return bool(filled.any() and ((filled == measured).all() or (pool >= FEW and few)))

    return [name for name in features if late(name)] if pool else []


def _check(cells: Cells, names: Sequence[str], features: Sequence[str], settings: Settings) -> None:
    """Refuse columns that next.csv has beside the table's, and options that name no column of their kind."""
    parts, classes = ("mean", "low", "high"), settings.task == "classification"
    beside = {"id", "rank", "cost", "score", "reason", *parts}
    beside |= {f"{part}_{target}" for part in parts for target in settings.target}
    for name in cells.columns:
        if name.startswith(OWN) and (name[len(OWN) :] in beside or (classes and name.startswith(f"{OWN}p_"))):
            raise InputError(
                f"{cells.path} has a column {shown(name)}, as next.csv has; rename it, or give the table itself"
            )
    for option, chosen in (("categorical", settings.categorical), ("feature", settings.feature)):
        if wrong := [name for name in chosen if name not in features]:
            raise InputError(f"--{option}: {cells.path} has no feature {shown(wrong[0])}")
    check_kept(cells, names, settings.task, settings.keep_na)


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
    complete, failed, pending = (
        [at[row.id] for row in some if row.id in at] for some in (known.measured, known.failed, known.pending)
    )
    measured = [row for row in (*known.measured, *known.partly) if row.id in at]
    costs, taken = table.costs, [*complete, *failed, *pending]
    if costs is not None:
        costs = np.concatenate([costs, [float(row.said.get("cost", "nan")) for row in kept]])
        if unknown := int(np.isnan(costs[taken]).sum()):
            lost = [*lost, f"The costs of {unknown} rows that are no longer in the table are not known, nor counted."]
    budget = float(len(taken) if costs is None else np.nansum(costs[taken]))
    spent = {"labels": float(len(complete) + len(pending)), "budget": budget}
    values = [[np.nan if (v := row.mean.get(t)) is None else v for t in table.roles.targets] for row in measured]
    return Rows(
        np.concatenate([matrix.x, x]), [at[row.id] for row in measured], values, pending, taken, list(known.pool),
        costs, spent, (*matrix.notes, *lost),
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
