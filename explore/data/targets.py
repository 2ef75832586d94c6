"""Targets and identifiers of a table."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from explore.data import texts
from explore.data.reading import Cells
from explore.errors import InputError, shown

__all__ = ["classes", "quantities", "repeated"]

CLASSES = " (classes need the task classification)"
UNMEASURED = "; give a table with rows that are still to be measured to explore suggest"
FEW_CLASSES = 10  # so many may be learnt from any number of examples


def quantities(table: Cells, names: Sequence[str], gaps: bool = False, targets: bool = False) -> np.ndarray:
    """Columns as float64, [N, columns], all finite but for NaN where there is no value, if `gaps` allows it.

    Raises:
        InputError: naming the first other cell, with what may be meant where the columns are `targets`.
    """
    columns = [texts.numbers(table.columns[name], table.decimal) for name in names]
    values = np.stack([column for column, _ in columns], 1)
    bad = np.zeros(values.shape, bool) if gaps else np.isnan(values)
    for i, (_, odd) in enumerate(columns):
        bad[odd, i] = True
    if not bad.any():
        return values
    row, column = np.argwhere(bad)[0].tolist()
    cell = table.columns[names[column]][row]
    what = f"{shown(cell)} is not" if cell else "an empty cell instead of"
    more = _hint(cell, table.decimal) if targets else ""
    raise InputError(f"{table.where(row, names[column])}: {what} a finite number{more}")


def _hint(cell: str, decimal: str) -> str:
    """What the cell of a target that is no finite number may mean."""
    if texts.absent(cell):
        return UNMEASURED
    if texts.number(cell, decimal) is not None:
        return ""
    return CLASSES if texts.number(cell, ",") is None else f"; {texts.POINT}"


def repeated(table: Cells, name: str | None) -> str:
    """A sentence on identifiers in a column, if there is one, that several examples have; one without is refused."""
    if name is None:
        return ""
    cells = table.columns[name]
    if "" in cells:
        raise InputError(f"{table.where(cells.index(''), name)}: an empty cell instead of an identifier")
    twice = [cell for cell, count in Counter(cells).items() if count > 1]
    if not twice:
        return ""
    return f"{len(twice)} identifiers of {shown(name)} stand on several lines, such as {shown(twice[0])}."


def classes(table: Cells, targets: Sequence[str], gaps: bool = False) -> tuple[np.ndarray, tuple[str, ...], str]:
    """Class indices, [N], the names of the classes, and a sentence where they are many.

    With `gaps` there may be rows without a class, whose index is -1, and fewer than two classes.

    Raises:
        InputError: for targets that are no classes, or too many.
    """
    if len(targets) != 1:
        raise InputError(f"classification takes one target column, not {len(targets)}")
    (target,) = targets
    cells, column = table.columns[target], f"column {shown(target)} of {table.path}"
    counts = Counter(cell for cell in cells if not texts.absent(cell, among_words=True))
    examples = sum(counts.values())
    if examples < len(cells) and not gaps:
        row = next(i for i, cell in enumerate(cells) if cell not in counts)
        what = f"{shown(cells[row])}, which stands for none," if cells[row] else "an empty cell"
        raise InputError(f"{table.where(row, target)}: {what} instead of a class{UNMEASURED}")
    if len(counts) < 2 and not gaps:
        raise InputError(f"{column} has the one class {shown(cells[0])}; two or more are needed")
    numbers = {name: value for name in counts if (value := texts.exact(name)) is not None}
    if len(numbers) == len(counts):
        _check_whole(table, target, numbers)
    if len(counts) > max(FEW_CLASSES, examples / 2):
        raise InputError(
            f"{column} has {len(counts)} classes for {examples} examples; a class needs two or more, "
            "and numbers to predict need the task regression"
        )
    names = sorted(counts, key=numbers.__getitem__ if len(numbers) == len(counts) else str)
    index = {name: i for i, name in enumerate(names)}
    notes = []
    if len(names) > FEW_CLASSES and examples < 10 * len(names):
        notes.append(f"{column} has {len(names)} classes for {examples} examples; few will be seen in training.")
    if alike := texts.alike(names):
        notes.append(f"{column} has {shown(alike[0])} and {shown(alike[1])}, which are two classes.")
    return np.array([index.get(cell, -1) for cell in cells], np.int64), tuple(names), " ".join(notes)


def _check_whole(table: Cells, target: str, numbers: dict[str, int | float]) -> None:
    """Numbers that name classes must be whole, and each written in one way."""
    written: dict[int | float, str] = {}
    for name, value in numbers.items():
        if not float(value).is_integer():
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
