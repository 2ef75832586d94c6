"""A file of labels: measurements told beside the table, as `--labels new.csv`, or next.csv filled in.

What it says of a row counts: more measurements of it than are known are added as replicates, others than are known
replace them. A line names its row in the column `_id`, in the table's column of identifiers, or by all features; where
it has features too, they must be those of the row.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from explore.campaign.cells import Value, canonical, canonicals, fingerprint, same
from explore.campaign.matching import agrees, same_value
from explore.campaign.memory import Row
from explore.campaign.reconcile import Reading
from explore.campaign.sheet import identifiers, marked, told
from explore.core.errors import InputError, listed, shown
from explore.data.reading import Cells

OWN = "_"  # begins the names of the columns that next.csv has beside the table's


class Answers:
    """A file of labels, read for a table; lines whose targets are empty are not read further."""

    def __init__(self, file: Cells, reading: Reading):
        """Check the columns.

        Raises:
            InputError: when the file has no target, when nothing in it tells rows apart, or a target is no number.
        """
        self._file, self._reading, schema = file, reading, reading.sheet.schema
        self._id_column, self._rows = schema.id_column, reading.memory.rows
        self._at = {name: i for i, name in enumerate(reading.ids)}
        self._features = {n: canonicals(file.columns[n]) for n in schema.features if n in file.columns}
        self._partial = len(self._features) < len(schema.features)
        columns = ["_id", *([schema.id_column] if schema.id_column else [])]
        self._ids = [identifiers(file.columns[name]) for name in columns if name in file.columns]
        targets = [name for name in schema.targets if name in file.columns]
        if not targets:
            raise InputError(f"{file.path} has no column {listed(schema.targets)}, which measurements are told in")
        if not self._ids and self._partial:
            which = listed(map(shown, columns))
            raise InputError(f"{file.path} does not say which rows it is of; it needs {which}, or all features")
        self._values = told(file, targets, schema)

    def tell(self) -> None:
        """Add to the reading what the file tells.

        Raises:
            InputError: when it is not certain which row a line is of, naming the line; then nothing of it counts.
        """
        columns = self._reading.sheet.columns
        if more := [name for name in self._file.columns if name not in columns and not name.startswith(OWN)]:
            self._reading.notes.append(f"Columns of {self._file.path} that are not used: {listed(more)}.")
        self._reading.notes += marked(self._file, self._reading.sheet.schema)
        rows: dict[str, list[int]] = defaultdict(list)
        unnamed: dict[str, list[int]] = defaultdict(list)
        for line, values in enumerate(self._values):
            if values:
                name = self._named(line)
                (rows[name] if name else unnamed[fingerprint(self._cells(line))]).append(line)
        if unnamed:
            self._by_features(unnamed, rows)
        for name, lines in rows.items():
            self._measured(name, lines)

    def _named(self, line: int) -> str | None:
        """The id that a line says; None: it names none."""
        written = [column[line] for column in self._ids if column[line]]
        if not written:
            if self._partial:
                raise InputError(f"{self._where(line)} does not say which row it is of")
            return None
        names = [self._resolved(line, text) for text in written]
        if canonical(names[0]) != canonical(names[-1]):
            raise InputError(
                f"{self._where(line)} is of the row {shown(written[0])} by {shown('_id')}, and of {shown(written[-1])} "
                f"by {shown(self._id_column)}; empty the cell that is wrong"
            )
        name = names[0]
        cells = self._known_cells(name)
        if cells is None:
            if not self._id_column or self._partial:
                raise InputError(f"{self._where(line)}: there is no row {shown(name)}")
            return name  # a row that the table does not have
        for column, cell in self._cells(line).items():
            if cell and column in cells and not same(cell, cells[column]):
                remedy = "give it an identifier of its own" if self._id_column else "empty its identifier"
                raise InputError(
                    f"{self._where(line)}, column {shown(column)}: {shown(cell)}, but the row {shown(written[0])} has "
                    f"{shown(cells[column])}; if it was measured like that, it is another row: {remedy}"
                )
        return name

    def _known_cells(self, name: str) -> Mapping[str, str] | None:
        """The features of a row that is known, or in the table."""
        if name in self._rows:
            return self._rows[name].cells
        return self._reading.sheet.cells(self._at[name]) if name in self._at else None

    def _resolved(self, line: int, text: str) -> str:
        """The id that is meant by a text: one that the row has, had, or that a spreadsheet wrote as 7 for 007.

        Of the last only a row with the same features is certain to be meant.
        """
        if row := self._reading.memory.find(text):
            return row.id
        if not self._id_column or text in self._at:
            return text
        names = [*self._at, *(row.id for row in self._rows.values() if row.gone)]
        meant = [name for name in names if canonical(name) == canonical(text)]
        cells = self._cells(line)
        certain = [n for n in meant if all(same(cells.get(c, ""), v) for c, v in (self._known_cells(n) or {}).items())]
        if meant and len(certain) != 1:
            raise InputError(
                f"{self._where(line)}: there is no row {shown(text)}; if it is {listed(map(shown, meant), 3)}, write "
                "the identifier like that"
            )
        return certain[0] if certain else text

    def _by_features(self, unnamed: Mapping[str, list[int]], rows: dict[str, list[int]]) -> None:
        """Give lines that name their row by its features to rows with these features."""
        names: dict[str, list[str]] = defaultdict(list)
        sheet = self._reading.sheet
        for i, name in enumerate(self._reading.ids):
            names[fingerprint(sheet.cells(i)) if self._id_column else sheet.keys[i]].append(name)
        for row in self._rows.values():
            if row.gone:
                names[fingerprint(row.cells)].append(row.id)
        for features, lines in unnamed.items():
            alike = names.get(features, [])
            if self._id_column and len(alike) != 1:
                which = f"rows {listed(map(shown, alike), 4)} have" if alike else "no row of the table has"
                new = "" if alike else f", or give it an identifier of its own in {shown(self._id_column)}"
                raise InputError(
                    f"{self._where(lines[0])}: {which} these features; name the row in {shown('_id')}{new}"
                )
            for line, name in zip(lines, self._distributed(lines, alike or [features]), strict=True):
                rows[name].append(line)

    def _distributed(self, lines: Sequence[int], names: Sequence[str]) -> list[str]:
        """Of identical rows the one that each line is of: that which has this number, a pending, one without any."""
        free = [self._rows.get(name) or Row(name) for name in names]
        free.sort(key=lambda row: (bool(row.values), row.pending is None, row.gone))
        first, chosen = free[0].id, {}
        for exact in (True, False):
            for line in (line for line in lines if line not in chosen):
                fitting = (row for row in free if not exact or (row.values and agrees(row, self._values[line])))
                if (row := next(fitting, None)) is not None:
                    chosen[line] = row.id
                    free.remove(row)
        return [chosen.get(line, first) for line in lines]

    def _measured(self, name: str, lines: Sequence[int]) -> None:
        """Tell what some lines say of one row."""
        if name in self._at:
            self._reading.show(name, self._at[name])
        elif name not in self._rows:
            self._reading.outside(name, self._cells(lines[0]), self._where(lines[0]))
        row = self._rows.get(name) or Row(name)
        answers: dict[str, list[Value]] = defaultdict(list)
        for line in lines:
            for target, value in self._values[line].items():
                answers[target].append(value)
        added: dict[str, list[Value]] = {}
        corrected: dict[str, list[Value]] = {}
        for target, values in answers.items():
            before = row.values.get(target, [])
            if before and len(values) == 1 and self._is_echo(row, target, values[0]):
                continue
            new = _without(values, before)
            if len(new) > len(values) - len(before):
                corrected[target] = values
            elif new:
                added[target] = [*before, *new]
        self._reading.measured(name, added, corrected, self._file.path.name)

    def _is_echo(self, row: Row, target: str, value: Value) -> bool:
        """Whether a value is the mean of what is known, or what next.csv was written with before the table changed."""
        before = self._reading.before.find(row.id)
        written = before is not None and before.pending is not None and agrees(before, {target: value})
        return written or same_value(value, row.mean[target])

    def _cells(self, line: int) -> dict[str, str]:
        return {name: column[line] for name, column in self._features.items()}

    def _where(self, line: int) -> str:
        return f"{self._file.path}, {self._file.unit} {self._file.lines[line]}"


def _without(values: Sequence[Value], known: Sequence[Value]) -> list[Value]:
    """The values that are not among the known ones, each of which stands for one."""
    new = list(values)
    for value in known:
        match = next((i for i, other in enumerate(new) if same_value(other, value)), None)
        if match is not None:
            del new[match]
    return new
