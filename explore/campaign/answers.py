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
    """A file of labels, read for a table.

    Lines whose targets are empty are not read further.
    """

    def __init__(self, file: Cells, reading: Reading):
        """Check the columns.

        Raises:
            InputError: when the file has no target, when nothing in it tells rows apart, or a target is no number.
        """
        schema = reading.sheet.schema
        self._file, self._reading, self._schema = file, reading, schema
        self._features = {n: canonicals(file.columns[n]) for n in schema.features if n in file.columns}
        own = ["_id", schema.id_column] if schema.id_column else ["_id"]
        self._ids = [identifiers(file.columns[name]) for name in own if name in file.columns]
        targets = [name for name in schema.targets if name in file.columns]
        if not targets:
            raise InputError(f"{file.path} has no column {listed(schema.targets)}, which measurements are told in")
        if not self._ids and len(self._features) < len(schema.features):
            raise InputError(
                f"{file.path} does not say which rows it is of; it needs {listed(map(shown, own))}, or all features"
            )
        self._told = told(file, targets, schema)

    def tell(self) -> None:
        """Add to the reading what the file tells.

        Raises:
            InputError: when it is not certain which row a line is of, naming the line; then nothing of it counts.
        """
        theirs = self._reading.sheet.columns
        if more := [name for name in self._file.columns if name not in theirs and not name.startswith(OWN)]:
            self._reading.notes.append(f"Columns of {self._file.path} that are not used: {listed(more)}.")
        self._reading.notes += marked(self._file, self._schema)
        at = {name: i for i, name in enumerate(self._reading.ids)}
        rows: dict[str, list[int]] = defaultdict(list)
        alike: dict[str, list[int]] = defaultdict(list)
        for line, values in enumerate(self._told):
            if not values:
                continue
            name = self._named(line, at)
            (rows if name else alike)[name or fingerprint(self._cells(line))].append(line)
        self._alike(alike, rows)
        for name, lines in rows.items():
            self._row(name, lines, at.get(name))

    def _named(self, line: int, at: Mapping[str, int]) -> str | None:
        """The id that a line says; None: it names none."""
        said = [column[line] for column in self._ids if column[line]]
        if not said:
            if len(self._features) < len(self._schema.features):
                raise InputError(f"{self._where(line)} does not say which row it is of")
            return None
        given, other = said[0], said[-1]
        if self._spelled(given) != self._spelled(other):
            raise InputError(
                f"{self._where(line)} is of the row {shown(given)} by {shown('_id')}, and of {shown(other)} by "
                f"{shown(self._schema.id_column)}; empty the cell that is wrong"
            )
        given = self._rewritten(line, given, at)
        row = self._reading.memory.find(given)
        name = row.id if row else given
        if row is None and name not in at:
            if not self._schema.id_column or len(self._features) < len(self._schema.features):
                raise InputError(f"{self._where(line)}: there is no row {shown(given)}")
            return name  # a row that the table does not have
        cells = row.cells if row else self._reading.sheet.cells(at[name])
        theirs, another = self._cells(line), "give it an identifier of its own"
        if not self._schema.id_column:
            another = "empty its identifier"
        for column in theirs.keys() & cells.keys():
            if theirs[column] and not same(theirs[column], cells[column]):
                raise InputError(
                    f"{self._where(line)}, column {shown(column)}: {shown(theirs[column])}, but the row {shown(given)} "
                    f"has {shown(cells[column])}; if it was measured like that, it is another row: {another}"
                )
        return name

    def _spelled(self, name: str) -> str:
        """An identifier, however a spreadsheet writes it."""
        row = self._reading.memory.find(name)
        return canonical(row.id if row else name)

    def _rewritten(self, line: int, given: str, at: Mapping[str, int]) -> str:
        """The identifier that a line says, as the table has it: a spreadsheet makes 7 of 007.

        Only a row with the same features is certain to be meant.
        """
        reading, theirs = self._reading, self._cells(line)
        if not self._schema.id_column or given in at or reading.memory.find(given):
            return given
        gone, spelled = [row.id for row in reading.memory.rows.values() if row.gone], canonical(given)
        meant = [name for name in (*at, *gone) if canonical(name) == spelled]
        cells = {n: reading.sheet.cells(at[n]) if n in at else reading.memory.rows[n].cells for n in meant}
        certain = [n for n in meant if all(same(theirs.get(c, ""), cell) for c, cell in cells[n].items())]
        if len(certain) == 1:
            return certain[0]
        if meant:
            raise InputError(
                f"{self._where(line)}: there is no row {shown(given)}; if it is {listed(map(shown, meant), 3)}, write "
                "the identifier like that"
            )
        return given

    def _alike(self, alike: Mapping[str, list[int]], rows: dict[str, list[int]]) -> None:
        """Give lines that name their row by its features to rows with these features."""
        by_features: dict[str, list[str]] = defaultdict(list)
        for i, name in enumerate(self._reading.ids if alike else ()):
            features = self._reading.sheet.keys[i]
            by_features[fingerprint(self._reading.sheet.cells(i)) if self._schema.id_column else features].append(name)
        for row in self._reading.memory.rows.values() if alike else ():
            if row.gone:
                by_features[fingerprint(row.cells)].append(row.id)
        for features, lines in alike.items():
            names = by_features.get(features, [])
            if self._schema.id_column and len(names) != 1:
                which = f"rows {listed(map(shown, names), 4)} have" if names else "no row of the table has"
                new = "" if names else f", or give it an identifier of its own in {shown(self._schema.id_column)}"
                raise InputError(
                    f"{self._where(lines[0])}: {which} these features; name the row in {shown('_id')}{new}"
                )
            for line, name in zip(lines, self._distributed(lines, names or [features]), strict=True):
                rows[name].append(line)

    def _distributed(self, lines: Sequence[int], names: Sequence[str]) -> list[str]:
        """Of identical rows the one that each line is of: that which has this number, a pending, one without any."""
        rows = [self._reading.memory.rows.get(name) or Row(name) for name in names]
        rows.sort(key=lambda row: (bool(row.values), row.pending is None, row.gone))
        found: dict[int, Row] = {}
        for says in (lambda row, now: bool(row.values) and agrees(row, now), lambda row, now: True):
            for line in lines:
                left = (row for row in rows if row not in found.values() and says(row, self._told[line]))
                if line not in found and (row := next(left, None)) is not None:
                    found[line] = row
        return [found.get(line, rows[0]).id for line in lines]

    def _row(self, name: str, lines: Sequence[int], i: int | None) -> None:
        reading, rows = self._reading, self._reading.memory.rows
        if i is not None:
            reading.show(name, i)
        elif name not in rows:
            reading.outside(name, self._cells(lines[0]), self._where(lines[0]))
        row = rows.get(name) or Row(name)
        given: dict[str, list[Value]] = defaultdict(list)
        for line in lines:
            for target, value in self._told[line].items():
                given[target].append(value)
        added: dict[str, list[Value]] = {}
        corrected: dict[str, list[Value]] = {}
        for target, values in given.items():
            known = row.values.get(target, [])
            if known and len(values) == 1 and self._echoed(row, target, values[0]):
                continue
            new = _without(values, known)
            if len(new) == len(values) - len(known):
                added |= {target: [*known, *new]} if new else {}
            else:
                corrected[target] = values
        for changes, replaced in ((added, False), (corrected, True)):
            if changes:
                reading.measured(name, changes, replaced, self._file.path.name)

    def _echoed(self, row: Row, target: str, value: Value) -> bool:
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
    left = list(values)
    for value in known:
        match = next((v for v in left if same_value(v, value)), None)
        if match is not None:
            left.remove(match)
    return left
