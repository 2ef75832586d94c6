"""next.csv: the rows that are handed out and not measured yet, to be filled in."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from explore import files
from explore.campaign import Campaign, Row
from explore.campaign.matching import agrees
from explore.campaign.sheet import told
from explore.cli.suggest.settings import Settings
from explore.cli.suggest.table import OWN, Table, labels
from explore.errors import InputError, listed, shown

ID = f"{OWN}id"


def check(path: Path, table: Table) -> None:
    """Whether a file of this name may be written at all.

    Raises:
        InputError: otherwise.
    """
    if path.suffix.lower() != ".csv":
        raise InputError(f"--out is {shown(str(path))}; its name must end with .csv")
    if path.exists() and path.samefile(table.path):
        raise InputError("--out is the table itself, which is never written; choose another file")
    if path.exists() and not (path.is_file() and _own(path)):
        raise InputError(f"{path} exists, and was not written by explore suggest; choose another --out")


def _own(path: Path) -> bool:
    """Whether its columns are those of next.csv, saved by whatever spreadsheet."""
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    try:
        return any(ID in next(csv.reader(io.StringIO(text), delimiter=mark), []) for mark in ",;\t")
    except csv.Error:
        return False


def check_told(path: Path, table: Table, known: Campaign, settings: Settings, before: Sequence[str]) -> None:
    """Whether all measurements in the file are known, as it is to be written anew: of targets `before`, too.

    Raises:
        InputError: otherwise.
    """
    if not path.exists():
        return
    try:
        there = labels(path, table, settings)
    except InputError as error:
        if "no line of data" in str(error):
            return
        raise
    names = [name for name in dict.fromkeys([*table.roles.targets, *before]) if name in there.columns]
    lost = []
    for i, values in enumerate(told(there, names, table.roles.classes)):
        row = known.memory.find(there.columns[ID][i]) if ID in there.columns else None
        if values and not (row and agrees(row, values)):
            lost.append(f"line {there.lines[i]}")
    if lost:
        raise InputError(
            f"{path} has measurements ({listed(lost, 5)}) that were not told and would be overwritten; tell them by "
            f"--labels {path}, or choose another --out"
        )


def write(path: Path, table: Table, known: Campaign, settings: Settings) -> None:
    """Write all rows that are pending, the latest first."""
    pending = sorted(known.pending, key=lambda row: (-(row.pending or 0), row.said.get("rank", 0)))
    at = {name: i for i, name in enumerate(known.ids)}
    said = list(dict.fromkeys(key for row in pending for key in row.said if key not in ("rank", "score", "reason")))
    text = io.StringIO()
    mark = ";" if settings.decimal == "," else ","
    writer = csv.writer(text, delimiter=mark, lineterminator="\n")
    own = ["rank", *said, "score", "reason"]
    writer.writerow([*table.written.columns, ID, *(OWN + key for key in own)])
    for row in pending:
        more = [_text(row.said.get(key), settings.decimal) for key in own]
        writer.writerow([*_cells(row, table, at), row.id, *more])
    try:
        with files.replacing(path) as draft:
            written = text.getvalue()
            # By the mark at its beginning Excel knows UTF-8.
            draft.write_text(written, encoding="utf-8" if written.isascii() else "utf-8-sig")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}; choose another --out") from error


def _cells(row: Row, table: Table, at: dict[str, int]) -> Iterator[str]:
    """The row as the table has it, or as it had it when it was last there; its targets empty if not measured."""
    i = at.get(row.id)
    for name, column in table.written.columns.items():
        if name in table.roles.targets:
            yield ""
        elif i is not None:
            yield column[i]
        else:
            yield row.id if name == table.roles.id_column else row.cells.get(name, "")


def _text(value: Any, decimal: str) -> str:
    if value is None:
        return ""
    return f"{value:.6g}".replace(".", decimal) if isinstance(value, float) else str(value)
