"""Loaders for user tables: `load_table`, and `map_parquet` for large files."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from explore.core.errors import InputError, check_known, counted, listed, shown
from explore.core.files import check_regular
from explore.data import packed, parts, reading, texts
from explore.data.base import Dataset, Task
from explore.data.columns import Schema
from explore.data.reading import Cells, called
from explore.data.recognition import infer
from explore.data.targets import classes, quantities, repeated

Source = str | os.PathLike[str] | pd.DataFrame  # of a table: a file or a data frame
ROWS = 2**14  # rows of a Parquet file that `map_parquet` keeps in memory at a time


class Loaded(NamedTuple):
    """A loaded table, with columns of any type."""

    dataset: Dataset  # y is NaN, or class -1, for rows without a measurement
    schema: Schema  # converts other tables to the same features
    measured: np.ndarray  # bool [N]: whether all targets of the row are measured
    cells: Cells  # the cells of the table as strings
    notes: tuple[str, ...]  # sentences on everything assumed, left out, pooled and imputed


def load_table(
    source: Source,
    target: str | Sequence[str],
    drop: Sequence[str] = (),
    task: Task | None = None,
    id_column: str | None = None,
    categorical: Sequence[str] = (),
    decimal: str = ".",
    schema: Schema | None = None,
    allow_missing_target: bool = False,
    feature: str | Sequence[str] = (),
    sheet: str | None = None,
    keep_na: Sequence[str] = (),
) -> Loaded:
    """Load a table with numbers, categories, dates, Booleans and empty cells.

    Args:
        source: a text file in UTF-8 or Latin-1 with commas, semicolons, tabs or bars as separators, possibly
            compressed (.gz, .bz2, .xz, .zip); an Excel (.xlsx) or Parquet file; a folder of Parquet files, of which one
            column at a time is in memory; or a data frame.
        target: the column to predict, or several for regression with O outputs.
        drop: columns to leave out.
        task: "regression" (the default), or "classification" with one target column of whole numbers or strings.
            Its distinct values are the classes, in numerical or alphabetical order.
        id_column: a column that identifies the examples; it is not a feature.
        categorical: columns whose numbers are categories.
        decimal: the decimal mark, "." or ",", of numbers in text files, and of strings in other tables.
        schema: the schema of another table, to compute the same features; None: infer it from this table.
        allow_missing_target: whether to accept rows without a measured target, or with a failed experiment.
        feature: one or more columns to keep as features, although they look like row numbers, timestamps or codes.
        sheet: the sheet of an Excel file; None: the first sheet.
        keep_na: class targets in which marks such as NA are classes. Empty cells are never classes, nor are None and
            NaN in data frames.

    Raises:
        FileNotFoundError: if there is no such file.
        InputError: if the table does not fit the arguments, or a cell is ambiguous.
    """
    cells = cells_of(source, decimal, sheet)
    id_column, categorical, feature = id_column and called(id_column), _names(categorical), _names(feature)
    targets, names = roles(cells, target, drop, task, id_column)
    check_known("categorical column", categorical, names)
    check_known("feature", feature, names)
    varied = schema is None and not allow_missing_target
    if schema is None:
        schema, notes = infer(cells, names, categorical, feature=feature)
    else:
        columns = {column.name for column in schema.columns}
        if both := [name for name in targets if name in columns]:
            raise InputError(f"target {shown(both[0])} is a feature of the schema. Make a new schema")
        new = listed([name for name in names if name not in columns], 5)
        notes = (f"Ignored columns that are not in the schema: {new}.",) if new else ()
    matrix, keep_na = schema.apply(cells), _names(keep_na)
    check_kept(cells, targets, task, keep_na)
    if task == "classification":
        y, labels, remark = classes(cells, targets, allow_missing_target, keep_na)
        measured = y >= 0
    else:
        y, labels, remark = _numbers(cells, targets, allow_missing_target, varied)
        measured = ~np.isnan(y).any(1)
    gaps = (~measured).sum()
    empty = f"{gaps} of {len(measured)} rows have no value of {listed(targets)} yet." if gaps else ""
    note = "\n".join(filter(None, [*cells.notes, *notes, *matrix.notes, repeated(cells, id_column), remark, empty]))
    ids = tuple(cells.columns[id_column]) if id_column else ()
    name, kind = cells.path.name.partition(".")[0] or cells.path.name, task or "regression"
    dataset = Dataset(name, matrix.x, y, matrix.features, kind, labels, note, cells.lines, ids)
    return Loaded(dataset, schema, measured, cells, tuple(filter(None, note.split("\n"))))


def _numbers(
    cells: Cells, targets: Sequence[str], missing: bool, varied: bool
) -> tuple[np.ndarray, tuple[str, ...], str]:
    """Return numeric targets [N, O], no class names, and a note. With `varied`, no target may be constant."""
    y, remark = quantities(cells, targets, missing, targets=True), ""
    if failed := sum(cell.casefold() in texts.FAILED for name in targets for cell in cells.columns[name]):
        remark = f"{counted(failed, 'failed experiment')} in {listed(targets)}."
    for name, column in zip(targets, y.T, strict=True):
        if varied and len(y) > 1 and (column == column[0]).all():
            one = f"the same value, {cells.columns[name][0]}, in all rows"
            raise InputError(f"column {shown(name)} of {cells.path} has {one}; there is nothing to predict")
    return y, (), remark


def check_kept(cells: Cells, targets: Sequence[str], task: str | None, keep_na: Sequence[str]) -> None:
    """Raise InputError if a column in `keep_na` is not a class target."""
    if wrong := [name for name in keep_na if task != "classification" or name not in targets]:
        problem = f"names {shown(wrong[0])}, which is not a class target of {cells.path}"
        raise InputError(f"keep_na (--keep-na) {problem}. It applies to targets of a classification only")


def cells_of(source: Source, decimal: str = ".", sheet: str | None = None, strict: bool = True) -> Cells:
    """Return the cells of a table, see `load_table`. Unless `strict`, read the first sheet if `sheet` is unknown."""
    check_known("decimal mark", [decimal], (".", ","))
    if isinstance(source, pd.DataFrame):
        if sheet is not None:
            raise InputError("sheet applies to Excel files only. Leave it out for a data frame")
        cells = reading.of_frame(source)
    else:
        path = Path(source)
        if path.is_dir():
            if decimal != "." or (sheet is not None and strict):
                advice = "Leave out decimal (--decimal) and sheet (--sheet)"
                raise InputError(f"{path} is a folder, which is read as Parquet files. {advice}")
            return parts.cells_of(path)
        content = packed.read(path)
        if (typed := reading.of_file(path, content, sheet, strict)) is None:
            return reading.restored(reading.parsed(path, content, decimal))
        cells = typed
    if decimal == ".":
        return cells
    columns = {name: [texts.pointed(cell, decimal) for cell in column] for name, column in cells.columns.items()}
    return cells._replace(columns=columns)  # also in strings that are numbers


def roles(
    table: Cells, target: str | Sequence[str], drop: Sequence[str], task: str | None, id_column: str | None
) -> tuple[list[str], tuple[str, ...]]:
    """Return the target columns, and the columns that may be features. For the arguments, see `load_table`."""
    check_known("task", [] if task is None else [task], ("regression", "classification"))
    targets, drop, ids = _names(target), _names(drop), [] if id_column is None else [id_column]
    for role, names in (("target", targets), ("column to drop", drop), ("column of identifiers", ids)):
        table.require(names, role)
    if not targets or len(set(targets)) < len(targets) or set(targets) & {*drop, *ids}:
        allowed = "one or more different columns, neither dropped nor identifiers"
        raise InputError(f"targets {shown(targets)} must be {allowed}")
    features = tuple(name for name in table.columns if name not in (*targets, *drop, *ids))
    if not features:
        raise InputError(f"{table.path} has no feature besides targets and dropped columns. Keep at least one")
    return targets, features


def _names(names: str | Sequence[str]) -> list[str]:
    """Normalise one or several column names; return them as a list."""
    return list(map(called, [names] if isinstance(names, str) else names))


class MappedTable(NamedTuple):
    """The features of a Parquet file, memory-mapped from an .npy file."""

    x: np.memmap  # float64 [N, D], read-only
    notes: tuple[str, ...]  # sentences on imputed and unknown cells, by range of rows (from 1)


def map_parquet(source: str | os.PathLike[str], schema: Schema, target: str | os.PathLike[str]) -> MappedTable:
    """Write the features of a Parquet file, in row order, to an .npy file, and memory-map that file.

    Args:
        source: the Parquet file, which may be larger than memory; columns that are not in the schema are ignored.
        schema: the schema of the measured rows, `load_table(measured, ...).schema`.
        target: the .npy file to write; keep it as long as the result is in use.

    Raises:
        InputError: if the file cannot be read, has no rows, lacks a column, or has a cell of another type.
    """
    import pyarrow

    path = Path(source)
    try:
        check_regular(path)
        file: Any = reading.parquet_file(path)
    except (OSError, pyarrow.ArrowInvalid) as error:
        raise InputError(f"cannot read {path} as a Parquet file ({error})") from None
    if not file.metadata.num_rows:
        raise InputError(f"{path} has no row")
    x = np.lib.format.open_memmap(target, "w+", np.float64, (file.metadata.num_rows, len(schema.features)))
    start, notes = 0, []
    for batch in file.iter_batches(ROWS):
        matrix, stop = schema.apply(reading.of_arrow(batch, path)), start + len(batch)
        x[start:stop] = matrix.x
        notes += [f"Rows {start + 1} to {stop}: {note}" for note in matrix.notes]
        start = stop
    x.flush()
    return MappedTable(np.load(Path(target), mmap_mode="r"), tuple(notes))
