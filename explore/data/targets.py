"""Targets and identifiers of a table."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from explore.core.errors import InputError, counted, listed, shown
from explore.data import texts
from explore.data.reading import Cells

CLASSES = " (classes need the task classification)"
UNMEASURED = "; give a table with rows that are still to be measured to explore suggest"
FEW_CLASSES = 10  # so many may be learnt from any number of examples


def quantities(table: Cells, names: Sequence[str], gaps: bool = False, targets: bool = False) -> np.ndarray:
    """Columns as float64 [N, columns], finite, or NaN where there is no value and `gaps` allows it.

    With `gaps`, `targets` may also say that an experiment failed. Errors name the first other cell, of `targets` all.
    """
    columns = [texts.numbers(table.columns[name], table.decimal) for name in names]
    values = np.stack([column for column, _ in columns], 1)
    allowed = texts.FAILED if gaps and targets else ()
    odd = {
        name: [row for row in rows.tolist() if table.columns[name][row].casefold() not in allowed]
        for name, (_, rows) in zip(names, columns, strict=True)
    }
    if targets and any(odd.values()):
        raise no_numbers(table, {name: rows for name, rows in odd.items() if rows}, gaps)
    bad = np.zeros(values.shape, bool) if gaps else np.isnan(values)
    for i, rows in enumerate(odd.values()):
        bad[rows, i] = True
    if not bad.any():
        return values
    row, column = np.argwhere(bad)[0].tolist()
    cell = table.columns[names[column]][row]
    problem = f"{shown(cell)} is not" if cell else "an empty cell instead of"
    raise InputError(f"{table.where(row, names[column])}: {problem} a finite number{UNMEASURED if targets else ''}")


def no_numbers(table: Cells, wrong: Mapping[str, Sequence[int]], gaps: bool = True) -> InputError:
    """The error for non-numeric target cells (rows by column); it names the first few."""
    cells = {name: [(row, str(table.columns[name][row])) for row in rows] for name, rows in wrong.items()}
    every = [cell for column in cells.values() for _, cell in column]
    if len(every) == 1:
        ((name, ((row, cell),)),) = cells.items()
        problem = f"{table.where(row, name)}: {shown(cell)} is not a finite number"
    else:
        parts = (
            f"column {shown(name)}: "
            + listed(
                (f"{shown(cell, 40)} ({table.unit} {table.lines[row]})" for row, cell in column),
                60 if 2 * len(column) < len(table.lines) else 5,  # another column may be meant
            )
            for name, column in cells.items()
        )
        problem = f"{table.path}: {len(every)} cells of targets are not finite numbers: {'; '.join(parts)}"
    return InputError(problem + _advice(every, table.decimal, gaps))


def _advice(cells: Collection[str], decimal: str, gaps: bool) -> str:
    """Say what to do about text in numeric columns."""
    if all(texts.number(cell, decimal) is None and texts.number(cell, ",") is not None for cell in cells):
        return f"; {texts.POINT}"
    if all(cell.casefold() in texts.FAILED for cell in cells):
        return "; leave out the rows of experiments that failed"
    wordy = [cell for cell in cells if texts.number(cell, decimal) is None and not any(map(str.isdigit, cell))]
    words = any(any(map(str.isalpha, cell)) for cell in wordy)
    advice = "" if words else "; write the number alone"
    if gaps:
        advice = "; write the number alone, 'failed' for a failed experiment, and nothing until it is measured"
    return advice + CLASSES if words else advice


def repeated(table: Cells, name: str | None) -> str:
    """Describe identifiers, of this column if any, that several examples share; refuse an example without one."""
    if name is None:
        return ""
    cells = table.columns[name]
    if "" in cells:
        raise InputError(f"{table.where(cells.index(''), name)}: an empty cell instead of an identifier")
    twice = [cell for cell, count in Counter(cells).items() if count > 1]
    if not twice:
        return ""
    return f"{len(twice)} identifiers of {shown(name)} stand on several lines, such as {shown(twice[0])}."


def marks(table: Cells, target: str, keep: bool = False, failed: Collection[str] = ()) -> str:
    """Say how a class target's usual marks of a missing value are read; "" where it has none.

    With `keep` (`keep_na`) they are classes; `failed` are other texts for a failed experiment, in lower case.
    """
    cells = map(str, table.columns[target])
    counts = Counter(cell for cell in cells if cell and cell.casefold() not in failed)
    usual = {cell: n for cell, n in counts.items() if texts.absent(cell)}
    skipped = {cell: n for cell, n in usual.items() if texts.unmeasured(cell, classes=True) and not keep}
    broken = {cell: n for cell, n in counts.items() if cell.casefold() in texts.FAILED}
    named = {cell: n for cell, n in usual.items() if cell not in skipped} | broken
    parts = []
    if skipped:
        parts.append(f"{_each(skipped)} as not measured (--keep-na {target}, or keep_na in Python, makes them classes)")
    if named:
        parts.append(f"{_each(named)} as classes" + (" (--failed TEXT declares a failure)" if broken else ""))
    return f"Column {shown(target)} reads {', and '.join(parts)}." if parts else ""


def _each(cells: Mapping[str, int]) -> str:
    return listed(f"{shown(cell)} ({counted(n, 'cell')})" for cell, n in sorted(cells.items()))


def classes(
    table: Cells,
    targets: Sequence[str],
    gaps: bool = False,
    keep_na: Collection[str] = (),
    failed: Collection[str] = (),
) -> tuple[np.ndarray, tuple[str, ...], str]:
    """Class indices [N], the names of the classes, and notes on them; for `keep_na` and `failed` see `marks`.

    With `gaps`, rows may have no class (index -1), and there may be fewer than two classes.
    """
    if len(targets) != 1:
        raise InputError(f"classification takes one target column, not {len(targets)}")
    (target,) = targets
    cells, column, keep = table.columns[target], f"column {shown(target)} of {table.path}", target in keep_na
    present = (cell for cell in cells if cell and cell.casefold() not in failed)
    counts = Counter(cell for cell in present if keep or not texts.unmeasured(cell, classes=True))
    examples = sum(counts.values())
    if examples < len(cells) and not gaps:
        row = next(i for i, cell in enumerate(cells) if cell not in counts)
        cell = f"{shown(cells[row])}, which stands for none," if cells[row] else "an empty cell"
        name = f", or keep it as a class by --keep-na {target} (keep_na in Python)" if cells[row] else ""
        raise InputError(f"{table.where(row, target)}: {cell} instead of a class{UNMEASURED}{name}")
    if len(counts) < 2 and not gaps:
        raise InputError(f"{column} has the one class {shown(cells[0])}; two or more are needed")
    numbers = {n: value for n in counts if (value := texts.exact(n)) is not None and not texts.absent(n)}  # "nan"
    if len(numbers) == len(counts):
        _check_whole(table, target, numbers)
    if len(counts) > max(FEW_CLASSES, examples / 2):
        raise InputError(
            f"{column} has {len(counts)} classes for {examples} examples; a class needs two or more, "
            "and numbers to predict need the task regression"
        )
    names = sorted(counts, key=numbers.__getitem__ if len(numbers) == len(counts) else str)
    index = {name: i for i, name in enumerate(names)}
    notes = [note] if (note := marks(table, target, keep, failed)) else []
    if len(names) > FEW_CLASSES and examples < 10 * len(names):
        notes.append(f"{column} has {len(names)} classes for {examples} examples; few will be seen in training.")
    if alike := texts.alike(names):
        notes.append(f"{column} has {shown(alike[0])} and {shown(alike[1])}, which are two classes.")
    return np.array([index.get(cell, -1) for cell in cells], np.int64), tuple(names), " ".join(notes)


def _check_whole(table: Cells, target: str, numbers: dict[str, int | float]) -> None:
    """Refuse numbers of classes that are not whole, or written in several ways."""
    for name, value in numbers.items():
        if not float(value).is_integer():
            where = table.where(table.columns[target].index(name), target)
            raise InputError(
                f"{where}: {shown(name)} is not a whole number, as classes in numbers must be; "
                "numbers to predict need the task regression"
            )
    if same := texts.alike(numbers, numbers.__getitem__):
        raise InputError(
            f"column {shown(target)} of {table.path} writes one class as {shown(same[0])} and as {shown(same[1])}; "
            "write it in one way"
        )
