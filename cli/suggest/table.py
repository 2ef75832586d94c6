"""The scientist's table: its cells, and the numbers that a model makes of its rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from explore import campaign, data
from explore.campaign import Campaign, Row
from explore.cli.suggest.settings import Settings
from explore.data import targets, texts
from explore.data.kinds import LeftOut
from explore.data.reading import Cells
from explore.data.recognition import infer
from explore.data.table import cells_of, roles
from explore.errors import InputError, shown

OWN = "_"  # begins the names of the columns that next.csv has more


@dataclass(frozen=True)
class Table:
    """A table that was read, before anything is known of its rows."""

    path: Path
    written: Cells  # as the file has them
    cells: Cells  # with points in the numbers
    roles: campaign.Schema  # which columns tell rows apart
    schema: data.Schema  # what they become
    costs: np.ndarray | None  # float64 [N], of --cost
    notes: tuple[str, ...]


def read(path: Path, settings: Settings) -> Table:
    """The table; its columns are looked at anew every time, as rows may have come.

    Raises:
        InputError: when it cannot be used; the sentence names the column or the cell.
    """
    written, classes = opened(path, settings.decimal), settings.task == "classification"
    drop = [*settings.drop_columns, *([settings.cost] if settings.cost else [])]
    names, features = roles(written, settings.target, drop, settings.task, settings.id_column)
    if own := [name for name in written.columns if name in _own(settings) or (classes and name.startswith(f"{OWN}p_"))]:
        raise InputError(f"{path} has a column {shown(own[0])}, as next.csv has; rename it, or give the table itself")
    cells = pointed(written)
    if wrong := [name for name in settings.categorical if name not in features]:
        raise InputError(f"--categorical: {path} has no feature {shown(wrong[0])}")
    schema, decided = infer(cells, features, settings.categorical)
    if classes:
        targets.classes(cells, names, gaps=True)
    learnt = tuple(column.name for column in schema.columns if not isinstance(column, LeftOut))
    known_by = campaign.Schema(tuple(names), learnt, settings.id_column, classes)
    costs = _costs(written, settings.cost) if settings.cost else None
    return Table(path, written, cells, known_by, schema, costs, (*written.notes, *decided, *_hint(schema, settings)))


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


def opened(path: Path, decimal: str) -> Cells:
    """The cells of a file.

    Raises:
        InputError: when it is missing or cannot be read.
    """
    try:
        return cells_of(path, decimal)
    except (OSError, ImportError) as error:
        raise InputError(str(error)) from error


def pointed(cells: Cells) -> Cells:
    """The same cells with a point as the decimal mark, which does not depend on the file."""
    if cells.decimal == ".":
        return cells
    columns = {name: [_pointed(cell, cells.decimal) for cell in own] for name, own in cells.columns.items()}
    return cells._replace(columns=columns, decimal=".")


def _pointed(cell: str, decimal: str) -> str:
    return cell.replace(decimal, ".") if decimal in cell and texts.number(cell, decimal) is not None else cell


def _hint(schema: data.Schema, settings: Settings) -> list[str]:
    """A column that may name the rows."""
    named = [c.name for c in schema.columns if isinstance(c, LeftOut) and c.why == "identifier"]
    if not named or settings.id_column:
        return []
    return [f"If column {shown(named[0])} names the rows, say so by --id; without it rows are known by their features."]


@dataclass(frozen=True)
class Rows:
    """What a model sees: the rows of the table, behind them known ones that are no longer there."""

    x: np.ndarray  # float64 [N + G, D]
    measured: list[int]
    values: list[list[float | str]]  # by target, of the measured ones
    pending: list[int]
    pool: list[int]
    costs: np.ndarray | None  # [N + G], NaN where it is not known any more
    spent: dict[str, float]  # "budget" and "labels" of the measured and the pending rows
    notes: tuple[str, ...]


def rows(table: Table, known: Campaign) -> Rows:
    """The rows after the campaign has read the table."""
    matrix = table.schema.apply(table.cells)
    gone = [row for row in known.memory.rows.values() if row.gone and (known.memory.complete(row) or row.pending)]
    kept, x, lost = _gone(table, gone)
    at = {name: i for i, name in enumerate(known.ids)} | {row.id: len(matrix.x) + i for i, row in enumerate(kept)}
    measured = [row for row in known.measured if row.id in at]
    pending = [row for row in known.pending if row.id in at]
    costs, taken = table.costs, [at[row.id] for row in measured] + [at[row.id] for row in pending]
    if costs is not None:
        costs = np.concatenate([costs, [float(row.said.get("cost", "nan")) for row in kept]])
        if unknown := int(np.isnan(costs[taken]).sum()):
            lost = [*lost, f"The costs of {unknown} rows that are no longer in the table are not known, nor counted."]
    spent = {"labels": float(len(taken)), "budget": float(len(taken) if costs is None else np.nansum(costs[taken]))}
    return Rows(
        np.concatenate([matrix.x, x]) if kept else matrix.x,
        [at[row.id] for row in measured],
        [[row.mean[target] for target in table.roles.targets] for row in measured],
        [at[row.id] for row in pending],
        list(known.pool), costs, spent, (*matrix.notes, *lost),
    )  # fmt: skip


def _gone(table: Table, rows: Sequence[Row]) -> tuple[list[Row], np.ndarray, list[str]]:
    """Rows that are no longer in the table, as numbers; those that its columns no longer allow are said."""
    kept, parts, lost = [], [], []
    for row in rows:
        columns = {name: [row.cells.get(name, "")] for name in table.roles.features}
        try:
            parts.append(table.schema.apply(Cells(table.path, columns, (0,))).x)
            kept.append(row)
        except InputError as error:
            lost.append(f"Row {campaign.short(row.id)}, which is no longer in the table, is not learnt from: {error}.")
    return kept, np.concatenate(parts) if parts else np.empty((0, len(table.schema.features))), lost
