"""The user's table: its cells, and its rows as numeric inputs of a model."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool

from explore import data
from explore.campaign import Campaign, Schema
from explore.campaign.cells import folded
from explore.campaign.sheet import ID, PREFIX
from explore.cli.suggest.settings import Settings
from explore.core.errors import InputError, listed, shown
from explore.data import targets, texts
from explore.data.base import check_units
from explore.data.columns import LeftOut, Quantity
from explore.data.parts import Columns, Places
from explore.data.reading import Cells, NoRows
from explore.data.recognition import infer
from explore.data.table import check_kept, roles

ORDERING = ("order", "timestamp")  # reasons to leave a column out for good
FEW = 5  # in a smaller pool, the cells of a feature may all be empty by chance
STRAY = 0.05  # a column filled by experiments may have values in this share of the pool by accident


class Learnt(NamedTuple):
    """The feature columns of a model, which stay the same when rows are added or removed."""

    features: tuple[str, ...]
    left_out: tuple[str, ...]  # columns that number the rows, or are time stamps


@dataclass(frozen=True)
class Table:
    """A table as read, before its rows are matched with the rows of the campaign."""

    path: Path
    whole: Cells  # all rows, as in the file
    written: Cells  # the rows at the indices `at`, as in the file: of a folder, those that the campaign knows
    cells: Cells  # the same rows, normalised to identify them, see `comparable`
    at: Sequence[int]
    roles: Schema
    schema: data.Schema  # of the model's inputs
    costs: np.ndarray | None  # float64 [N], from the column of --cost
    notes: tuple[str, ...]
    learnt: Learnt  # for the next run of the command
    measured: Sequence[int]  # indices of rows with a measured target


def read(path: Path, settings: Settings, before: Learnt | None = None) -> Table:
    """Read the table, and decide which new columns are features. Decisions on columns in `before` are kept."""
    written, classes = settings.cells(path), settings.task == "classification"
    if (in_parts := isinstance(written.lines, Places)) and settings.id_column:
        raise InputError(f"--id applies to files; rows of the folder {path} are named by number and part. Leave it out")
    drop = [*settings.drop_columns, *([settings.cost] if settings.cost else [])]
    names, features = roles(written, settings.target, drop, settings.task, settings.id_column)
    _check(written, names, features, settings)
    key = ID if in_parts else settings.id_column
    rule = Schema(tuple(names), (), key, classes, bool(settings.keep_na), settings.failed)
    asked = {*settings.categorical, *settings.feature}
    measured = np.zeros(len(written.lines), bool)  # whether a target of each row is measured
    among = "classes" if classes else "numbers"
    for column in (written.columns[name] for name in names):
        measured |= [bool(c) and (rule.keep_na or not texts.absent(c, among)) for c in column]
    late = _late(written, [name for name in features if name not in settings.categorical], measured)
    before = before or Learnt((), ())
    left_out = [name for name in features if name in before.left_out and name not in asked]
    used = [name for name in features if name not in (*late, *left_out)]
    schema, decided = infer(written, used, settings.categorical, settings.feature, before.features)
    cells = written if in_parts else comparable(written, schema, () if classes else names)
    if classes:
        declared = set(map(folded, settings.failed))  # so that -999 matches -999.0
        failed = {text.casefold() for text in map(str, cells.columns[names[0]]) if folded(text) in declared}
        targets.classes(cells, names, True, settings.keep_na, failed)
    reasons = {column.name: column.why for column in schema.columns if isinstance(column, LeftOut)}
    learnt = tuple(column.name for column in schema.columns if column.name not in reasons)
    costs = _costs(written, settings.cost) if settings.cost else None
    notes = [*written.notes]
    if left_out:
        columns = listed(map(shown, left_out))
        notes.append(f"Still left out, as in the last run: {columns}. Use --feature to include a column.")
    notes += decided
    if late:
        why = f"(nearly) empty where {listed(names)} is unmeasured, so probably known only after the experiment"
        notes.append(f"Left out {listed(map(shown, late))}: {why}. Use --target for results.")
    naming = [name for name, why in reasons.items() if why in ("identifier", "order")]
    if naming and not key:
        pass_id = f"Pass --id if column {shown(naming[0])} identifies the rows."
        notes.append(f"{pass_id} Otherwise rows are identified by their features.")
    ordering = {*before.left_out, *(name for name, why in reasons.items() if why in ORDERING)} - {*learnt}
    after = Learnt(tuple(dict.fromkeys([*before.features, *learnt])), tuple(sorted(ordering)))
    rule = rule._replace(features=learnt)
    every, found = range(len(written.lines)), np.flatnonzero(measured).tolist()
    return Table(path, written, written, cells, every, rule, schema, costs, tuple(notes), after, found)


def _late(cells: Cells, features: Sequence[str], measured: Bool[np.ndarray, " N"]) -> list[str]:
    """Return features that are empty in (nearly) all rows of the pool, so probably known only after experiments.

    Such features do not help to predict the pool. If they identified rows, a row would count as new once filled in.
    """
    pool, late = len(measured) - measured.sum(), []
    for name in features if pool else ():
        filled = np.array([not texts.absent(cell, "words") for cell in cells.columns[name]])
        strayed, answered = (filled & ~measured).sum(), (filled & measured).sum()
        few = strayed == 0 or (strayed <= STRAY * pool and answered > measured.sum() / 2)
        if filled.any() and ((filled == measured).all() or (pool >= FEW and few)):
            late.append(name)
    return late


def _check(cells: Cells, names: Sequence[str], features: Sequence[str], settings: Settings) -> None:
    """Raise InputError if a column name is reserved for next.csv, or an option does not name a suitable column."""
    parts, classes = ("mean", "low", "high"), settings.task == "classification"
    added = {"id", "rank", "cost", "score", "reason", *parts, *(f"{p}_{t}" for p in parts for t in settings.target)}
    for name in cells.columns:
        if name in {PREFIX + column for column in added} or (classes and name.startswith(f"{PREFIX}p_")):
            advice = "Rename it, or pass the original table as POOL."
            raise InputError(f"{cells.path} has a column {shown(name)}, a name reserved for next.csv. {advice}")
    for option, chosen in (("categorical", settings.categorical), ("feature", settings.feature)):
        if wrong := [name for name in chosen if name not in features]:
            allowed = f"a feature column of {cells.path} (features: {listed(features)})"
            raise InputError(f"--{option} {shown(wrong[0])} is not {allowed}.")
    check_kept(cells, names, settings.task, settings.keep_na)


def _costs(cells: Cells, name: str) -> np.ndarray:
    """Return the cost of each row. Raise InputError if any cost is not a positive number."""
    values = targets.quantities(cells, [name], gaps=True)[:, 0]
    if (bad := ~(values > 0)).any():
        row = int(bad.argmax())
        cost = f"cost {shown(cells.columns[name][row])} is invalid"
        raise InputError(f"{cells.where(row, name)}: {cost}; every row needs a positive number")
    return values


def labels(path: Path, table: Table, settings: Settings, optional: bool = False) -> Cells | None:
    """Return the cells of a file of measurements, normalised like the table's cells (see `comparable`).

    With `optional`, return None if the file does not exist or has no rows.
    """
    if optional and not path.exists():
        return None
    try:
        cells = settings.cells(path, strict=False)
    except NoRows:
        if not optional:
            raise
        return None
    return comparable(cells, table.schema, () if table.roles.classes else table.roles.targets)


def comparable(cells: Cells, schema: data.Schema, numbers: Sequence[str]) -> Cells:
    """Normalise cells so that they match between files: numbers with decimal points, and dates such as 2024-03-31.

    Raise InputError if a cell in a column of `numbers` has a decimal point, but the decimal mark is a comma.
    """
    columns = dict(cells.columns)
    if cells.decimal != ".":
        columns = {n: [texts.pointed(cell, cells.decimal) for cell in column] for n, column in columns.items()}
        for name in numbers:
            for row, cell in enumerate(cells.columns.get(name, ())):
                if texts.number(cell, cells.decimal) is None and texts.number(cell) is not None:
                    problem = f"{shown(cell)} has a decimal point, but --decimal is {cells.decimal!r}"
                    advice = "Use that mark, without thousands separators."
                    raise InputError(f"{cells.where(row, name)}: {problem}. {advice}")
    for column in schema.columns:
        if isinstance(column, Quantity) and column.name in columns:
            columns[column.name] = texts.iso(columns[column.name], column.form)
    return cells._replace(columns=columns, decimal=".")


def match(campaign: Campaign, table: Table, named: Iterable[str], labels: Cells | None = None) -> Table:
    """Let the campaign read the table and labels; return the table.

    Of a folder of Parquet files, only measured rows, those that the campaign or labels know, and rows `named` by an
    option become cells; the others stay in their files.
    """
    places, columns = table.whole.lines, table.whole.columns
    if isinstance(places, Places) and isinstance(columns, Columns):
        names = [*campaign.state.rows, *(labels.columns.get(ID, ()) if labels else ()), *named]
        rows = sorted({*table.measured, *(row for row in map(places.row, names) if row is not None)})
        lines = [places[row] for row in rows]
        written = table.whole._replace(columns=columns.of(rows), lines=lines)
        cells = comparable(written, table.schema, () if table.roles.classes else table.roles.targets)
        cells = cells._replace(columns={ID: lines, **cells.columns})
        table = replace(table, written=written, cells=cells, at=rows)
    campaign.read(table.cells, table.roles, labels, len(table.whole.lines) - len(table.at))
    return table


def suggest(campaign: Campaign, table: Table, rows: list[int], values: list[dict[Any, Any]]) -> Table:
    """Mark rows of the table as pending, with these values; return the table, with these rows as cells."""
    if isinstance(table.whole.lines, Places):
        notes = list(campaign.notes)
        table = match(campaign, table, [table.whole.lines[row] for row in rows])
        campaign.notes = notes  # without those that this reading repeats
    at = {row: i for i, row in enumerate(table.at)}
    campaign.suggest([at[row] for row in rows], values)
    return table


@dataclass(frozen=True)
class Rows:
    """The table's N rows as model inputs."""

    x: np.ndarray  # float64 [N, D]
    measured: list[int]  # rows with a measurement
    values: list[list[float | str]]  # measurements of these rows, by target; NaN: not measured
    pending: list[int]
    taken: list[int]  # all (fully) measured, failed or pending rows
    pool: np.ndarray  # int64
    costs: np.ndarray | None  # [N]
    spent: dict[str, float]  # "budget": cost of taken rows; "labels": count of measured and pending rows
    notes: tuple[str, ...]


def rows(table: Table, state: Campaign) -> Rows:
    """Return the rows as model inputs. The campaign must have read the table."""
    matrix, costs = table.schema.apply(table.whole), table.costs
    check_units(matrix.features, matrix.x)
    at = dict(zip(state.ids, table.at, strict=True))
    pool, known = np.ones(len(matrix.x), bool), np.array(table.at, int)
    pool[known] = False
    pool[known[list(state.pool)]] = True
    groups = state.measured, state.failed, state.pending
    complete, failed, pending = ([at[row.id] for row in some] for some in groups)
    measured, taken = [*state.measured, *state.partly], [*complete, *failed, *pending]
    budget = float(len(taken) if costs is None else costs[taken].sum())
    spent = {"labels": float(len(complete) + len(pending)), "budget": budget}
    values = [[np.nan if (v := row.mean.get(t)) is None else v for t in table.roles.targets] for row in measured]
    found = [at[row.id] for row in measured]
    return Rows(matrix.x, found, values, pending, taken, np.flatnonzero(pool), costs, spent, matrix.notes)
