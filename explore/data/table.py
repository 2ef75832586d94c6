"""CSV files, read without guessing."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from explore.data.base import Dataset, Task
from explore.errors import InputError, one_of


def load_csv(
    path: str | os.PathLike[str],
    target: str | Sequence[str],
    drop: Sequence[str] = (),
    task: Task | None = None,
) -> Dataset:
    """A comma-separated file (possibly .gz) whose first line names the columns.

    Args:
        path: the file; its stem becomes the name of the set.
        target: the column to predict, or several for regression with O outputs.
        drop: columns to leave out.
        task: "regression" (the default), or "classification" with one target column of any text, whose
            distinct values are the classes: in the order of their numbers, or of their letters.

    Returns:
        x: [N, D] with the features in the file's order; y: [N, O], or [N] class indices.

    Raises:
        FileNotFoundError: when there is no such file.
        InputError: when the file cannot be used as asked; the message names the column and the line.
    """
    path = Path(path)
    if task not in (None, "regression", "classification"):
        raise one_of("task", str(task), ("regression", "classification"))
    targets = [target] if isinstance(target, str) else list(target)
    frame = _read(path)
    for what, names in (("target", targets), ("column to drop", drop)):
        for name in names:
            if name not in frame.columns:
                raise InputError(f"{path} has no {what} {name!r}; its columns: {', '.join(frame.columns)}")
    if not targets or len(set(targets)) < len(targets) or set(targets) & set(drop):
        raise InputError(f"targets {targets} must be one or more different columns that are not dropped")
    features = [name for name in frame.columns if name not in (*targets, *drop)]
    if not features:
        raise InputError(f"{path} has no feature left beside the targets and the dropped columns; keep at least one")

    x = _numbers(path, frame[features])
    if task == "classification":
        y, classes = _classes(path, frame[targets])
        return Dataset(_stem(path), x, y, tuple(features), "classification", classes)
    return Dataset(_stem(path), x, _numbers(path, frame[targets], is_target=True), tuple(features), "regression")


def _stem(path: Path) -> str:
    return path.name.partition(".")[0] or path.name


def _read(path: Path) -> pd.DataFrame:
    """The cells as text, indexed by their line in the file; "" where a line is too short."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    # header=None: pandas would rename duplicate columns. Skipping blank lines would shift line numbers.
    as_text: dict[str, Any] = {
        "header": None, "dtype": str, "keep_default_na": False, "skip_blank_lines": False, "encoding": "utf-8-sig",
    }  # fmt: skip
    try:
        (first, *others) = pd.read_csv(path, nrows=1, **as_text).iloc[0]
        if not others and (found := [mark for mark in ";\t|" if mark in str(first)]):
            raise InputError(f"the columns of {path} are separated by {found[0]!r}; save it with commas between them")
        frame = pd.read_csv(path, **as_text).fillna("")
    except pd.errors.EmptyDataError:
        raise InputError(f"{path} is empty; its first line must name the columns") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not encoded in UTF-8; save it so") from error
    except pd.errors.ParserError as error:
        raise InputError(f"{path} is not a comma-separated text file: {str(error).strip()}") from error
    frame.index = pd.RangeIndex(1, len(frame) + 1)
    frame = frame.apply(lambda column: column.str.strip())
    names = frame.iloc[0].tolist()
    if "" in names:
        raise InputError(f"column {names.index('') + 1} of {path} has no name; name it in the first line")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(f"{path} has several columns named {', '.join(twice)}; give each its own name")
    frame.columns = pd.Index(names)
    frame = frame.iloc[1:]
    frame = frame[(frame != "").any(axis=1)]  # blank lines carry no example
    if frame.empty:
        raise InputError(f"{path} has no line of data after its first line, which names the columns")
    return frame


def _numbers(path: Path, cells: pd.DataFrame, is_target: bool = False) -> np.ndarray:
    """The cells as float64, all finite."""
    values = cells.apply(pd.to_numeric, errors="coerce").to_numpy(float)
    bad = np.argwhere(~np.isfinite(values))
    if not len(bad):
        return cells.to_numpy(str).astype(float)  # rounded correctly, which pd.to_numeric does not promise
    row, column = bad[0]
    cell = cells.iat[row, column]
    hint = " (classes need the task classification)" if is_target else ""
    raise InputError(
        f"{path}, line {cells.index[row]}, column {cells.columns[column]!r}: "
        f"{f'{cell!r} is not' if cell else 'an empty cell instead of'} a finite number{hint}"
    )


def _classes(path: Path, cells: pd.DataFrame) -> tuple[np.ndarray, tuple[str, ...]]:
    """Class indices, [N], and the names of the classes."""
    if cells.shape[1] != 1:
        raise InputError(f"classification takes one target column, not {cells.shape[1]}")
    labels = cells.iloc[:, 0]
    if (empty := labels.index[labels == ""]).size:
        raise InputError(f"{path}, line {empty[0]}, column {labels.name!r}: an empty cell instead of a class")
    names = labels.unique().tolist()
    if len(names) < 2:
        raise InputError(f"column {labels.name!r} of {path} has the one class {names[0]!r}; two or more are needed")
    numbers = pd.to_numeric(pd.Series(names), errors="coerce")
    names.sort(key=str if numbers.isna().any() else float)
    return labels.map({name: i for i, name in enumerate(names)}).to_numpy(np.int64), tuple(names)
