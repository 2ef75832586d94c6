"""CSV files, read without guessing."""

import csv
import io
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from explore.data import packed
from explore.data.base import Dataset, Task
from explore.errors import InputError, listed, one_of, shown

AS_CSV = f"save the table as CSV in UTF-8, plain or packed ({listed(packed.PACKED[:5])})"
FEW_CLASSES = 10  # so many may be learnt from any number of examples


class Cells(NamedTuple):
    """The cells of a file as text, without the lines that are blank."""

    path: Path
    columns: dict[str, tuple[str, ...]]  # by name; "" where a line is too short
    lines: tuple[int, ...]  # where each row begins in the file, whose first line is 1

    def where(self, row: int, column: str) -> str:
        """A cell, as messages call it."""
        return f"{self.path}, line {self.lines[row]}, column {shown(column)}"


def load_csv(
    path: str | os.PathLike[str],
    target: str | Sequence[str],
    drop: Sequence[str] = (),
    task: Task | None = None,
    id_column: str | None = None,
) -> Dataset:
    """A comma-separated file in UTF-8 whose first line names the columns.

    Args:
        path: the file, possibly packed (.gz, .bz2, .xz, .zip, .tar) if it unpacks to at most 1 GiB; its stem becomes
            the name of the set.
        target: the column to predict, or several for regression with O outputs.
        drop: columns to leave out.
        task: "regression" (the default), or "classification" with one target column of whole numbers or of any text,
            whose distinct values are the classes: in the order of their numbers, or of their letters.
        id_column: a column of any text that tells the examples apart, and is no feature.

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
    own = [] if id_column is None else [id_column]
    table = _read(path)
    for what, names in (("target", targets), ("column to drop", drop), ("column of identifiers", own)):
        for name in names:
            if name not in table.columns:
                raise InputError(f"{path} has no {what} {shown(name)}; its columns: {listed(table.columns)}")
    if not targets or len(set(targets)) < len(targets) or set(targets) & {*drop, *own}:
        raise InputError(
            f"targets {shown(targets)} must be one or more different columns that are not dropped and no identifiers"
        )
    features = tuple(name for name in table.columns if name not in (*targets, *drop, *own))
    if not features:
        raise InputError(f"{path} has no feature left beside the targets and the dropped columns; keep at least one")

    x, ids = _numbers(table, features), table.columns[id_column] if id_column else ()
    notes = [_repeated(table, id_column)] if id_column else []
    if task == "classification":
        y, classes, note = _classes(table, targets)
        notes.append(note)
    else:
        y, classes = _numbers(table, targets, hint=" (classes need the task classification)"), ()
    note = " ".join(filter(None, notes))
    return Dataset(_stem(path), x, y, features, task or "regression", classes, note, table.lines, ids)


def _stem(path: Path) -> str:
    return path.name.partition(".")[0] or path.name


def _read(path: Path) -> Cells:
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    (_, names), *rows = _rows(path, _text(path))
    if len(names) == 1 and (found := [mark for mark in ";\t|" if mark in names[0]]):
        raise InputError(f"the columns of {path} are separated by {found[0]!r}; save it with commas between them")
    names = [name.strip() for name in names]
    if not any(names):
        raise InputError(f"the first line of {path} is blank; it must name the columns")
    if "" in names:
        raise InputError(f"column {names.index('') + 1} of {path} has no name; name it in the first line")
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise InputError(f"{path} has several columns named {listed(twice)}; give each its own name")
    kept = []
    for line, row in rows:
        cells = [cell.strip() for cell in row]
        if not any(cells):
            continue  # a blank line carries no example
        if len(cells) > len(names):
            raise InputError(f"{path}, line {line}: {len(cells)} cells, but the first line names {len(names)} columns")
        kept.append((line, cells + [""] * (len(names) - len(cells))))
    if not kept:
        raise InputError(f"{path} has no line of data after its first line, which names the columns")
    columns = zip(*(cells for _, cells in kept), strict=True)
    return Cells(path, dict(zip(names, columns, strict=True)), tuple(line for line, _ in kept))


def _text(path: Path) -> str:
    content = packed.read(path)
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InputError(f"{path} is encoded in UTF-16, not in UTF-8; {AS_CSV}")
    if b"\0" in content:
        line = content.count(b"\n", 0, content.index(b"\0")) + 1
        raise InputError(f"{path}, line {line}, has a NUL byte, which no text has; {AS_CSV}")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError(f"{path}, line {line}, is not encoded in UTF-8; {AS_CSV}") from None
    if not text.strip():
        raise InputError(f"{path} is empty; its first line must name the columns")
    return text


def _rows(path: Path, text: str) -> Iterator[tuple[int, list[str]]]:
    """Every row with the line where it begins: a quoted cell may go over several."""
    reader, line = csv.reader(io.StringIO(text, newline=""), strict=True), 1
    try:
        for cells in reader:
            yield line, cells
            line = reader.line_num + 1
    except csv.Error as error:
        what = "a quote is not closed" if str(error) == "unexpected end of data" else str(error)
        raise InputError(f"{path} is not a comma-separated text file: line {line}: {what}") from None


def _number(cell: str) -> float | None:
    """The value of a number as CSV files have it, which may be infinite or NaN; None: the cell is no number."""
    if "_" in cell or not cell.isascii():  # Python would take 1_000 and digits of other scripts
        return None
    try:
        return float(cell)
    except ValueError:
        return None


def _numbers(table: Cells, names: Sequence[str], hint: str = "") -> np.ndarray:
    """Columns as float64, all finite; `hint` says more of a cell that is no number."""
    values = np.array([[_number(cell) for cell in table.columns[name]] for name in names], float).T
    bad = np.argwhere(~np.isfinite(values))
    if not len(bad):
        return np.ascontiguousarray(values)
    row, column = bad[0].tolist()
    cell = table.columns[names[column]][row]
    what = f"{shown(cell)} is not" if cell else "an empty cell instead of"
    more = hint if cell and _number(cell) is None else ""
    raise InputError(f"{table.where(row, names[column])}: {what} a finite number{more}")


def _repeated(table: Cells, name: str) -> str:
    """A sentence on identifiers that several examples have; one without any is refused."""
    cells = table.columns[name]
    if "" in cells:
        raise InputError(f"{table.where(cells.index(''), name)}: an empty cell instead of an identifier")
    twice = [cell for cell, count in Counter(cells).items() if count > 1]
    if not twice:
        return ""
    return f"{len(twice)} identifiers of {shown(name)} stand on several lines, such as {shown(twice[0])}."


def _classes(table: Cells, targets: Sequence[str]) -> tuple[np.ndarray, tuple[str, ...], str]:
    """Class indices, [N], the names of the classes, and a sentence where they are many."""
    if len(targets) != 1:
        raise InputError(f"classification takes one target column, not {len(targets)}")
    (target,) = targets
    cells, column = table.columns[target], f"column {shown(target)} of {table.path}"
    if "" in cells:
        raise InputError(f"{table.where(cells.index(''), target)}: an empty cell instead of a class")
    counts = Counter(cells)
    if len(counts) < 2:
        raise InputError(f"{column} has the one class {shown(cells[0])}; two or more are needed")
    numbers = {name: value for name in counts if (value := _number(name)) is not None}
    if len(numbers) == len(counts):
        _check_whole(table, target, numbers)
    if len(counts) > max(FEW_CLASSES, len(cells) / 2):
        raise InputError(
            f"{column} has {len(counts)} classes for {len(cells)} examples; a class needs two or more, "
            "and numbers to predict need the task regression"
        )
    names = sorted(counts, key=numbers.__getitem__ if len(numbers) == len(counts) else str)
    index = {name: i for i, name in enumerate(names)}
    many = len(names) > FEW_CLASSES and len(cells) < 10 * len(names)
    note = f"{column} has {len(names)} classes for {len(cells)} examples; few will be seen in training." if many else ""
    return np.array([index[cell] for cell in cells], np.int64), tuple(names), note


def _check_whole(table: Cells, target: str, numbers: dict[str, float]) -> None:
    """Numbers that name classes must be whole, and each written in one way."""
    written: dict[float, str] = {}
    for name, value in numbers.items():
        if not value.is_integer():
            where = table.where(table.columns[target].index(name), target)
            raise InputError(
                f"{where}: {shown(name)} is not a whole number, as classes in numbers must be; "
                "numbers to predict need the task regression"
            )
        if (other := written.setdefault(value, name)) != name:
            raise InputError(
                f"column {shown(target)} of {table.path} writes one class as {shown(other)} and as {shown(name)}; "
                "write it in one way"
            )
