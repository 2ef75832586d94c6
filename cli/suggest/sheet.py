"""next.csv, or next.xlsx: the rows that are handed out and not measured yet, to be filled in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from explore.campaign import Campaign, Row
from explore.campaign.cells import canonical, same
from explore.campaign.matching import logged
from explore.campaign.sheet import told
from explore.cli import tables
from explore.cli.suggest.settings import Settings
from explore.cli.suggest.table import OWN, Table, labels
from explore.core.errors import InputError, listed, shown
from explore.data.reading import Cells

ID = f"{OWN}id"
KINDS = (".csv", ".xlsx")


def beside(table: Path) -> Path:
    """Where the rows are written unless --out says otherwise: next.csv, next.xlsx for an Excel table."""
    return table.with_name("next.xlsx" if table.suffix.lower() in (".xlsx", ".xlsm") else "next.csv")


def read(path: Path, table: Table, settings: Settings) -> Cells | None:
    """The cells of the file, see `labels`; None: there is none yet, or no row in it.

    Raises:
        InputError: when it cannot be read.
    """
    if not path.exists():
        return None
    try:
        return labels(path, table, settings)
    except InputError as error:
        if "no line of data" in str(error):
            return None
        raise


def check_told(path: Path, table: Table, campaign: Campaign, settings: Settings, before: Sequence[str]) -> None:
    """Whether nothing is lost when the file is written anew: all its measurements are known, of targets `before`, too.

    Raises:
        InputError: otherwise.
    """
    file = read(path, table, settings)
    if file is None:
        return
    targets = [name for name in dict.fromkeys([*table.roles.targets, *before]) if name in file.columns]
    at = {name: i for i, name in enumerate(campaign.ids)}
    names = list(_rows(file, campaign, at))
    rows = [campaign.memory.find(name) for name in names]
    places = [f"{file.unit} {line}" for line in file.lines]
    values = told(file, targets, table.roles)
    lines = list(zip(places, names, rows, values, strict=True))
    if lost := [place for place, _, row, now in lines if now and not (row and logged(row, now))]:
        raise InputError(
            f"{path} has measurements ({listed(lost, 5)}) that were not told and would be overwritten; tell them by "
            f"--labels {path}, or choose another --out"
        )
    if strange := [place for place, name, *_ in lines if not name]:
        raise InputError(
            f"{path} has rows ({listed(strange, 5)}) that are not among those of {table.path} and would be "
            "overwritten; choose another --out"
        )

    def is_added(column: str, i: int) -> bool:
        """Whether a cell stands neither in the table nor in a column that was renamed or taken out."""
        row, cell, column_now = rows[i], canonical(file.columns[column][i]), table.cells.columns.get(column)
        new = names[i] in at and cell and not same(cell, row.had.get(column, "") if row else "")
        return bool(new) and not (column_now and canonical(column_now[at[names[i]]]))

    beside = [name for name in file.columns if name not in targets and not name.startswith(OWN)]
    if added := [shown(name) for name in beside if any(is_added(name, i) for i in range(len(names)))]:
        raise InputError(
            f"{path} has cells in {listed(added)} that {table.path} does not have and that would be overwritten; copy "
            "them there, or choose another --out"
        )


def _rows(file: Cells, campaign: Campaign, at: Mapping[str, int]) -> Iterator[str]:
    """The rows that the lines of the file are of; "" for one that is not known."""
    spelled: dict[str, str] = {}  # of so many rows made only where a spreadsheet has written 7 for 007
    for name in file.columns.get(ID, [""] * len(file.lines)):
        row = campaign.memory.find(name)
        if not row and name not in at:
            spelled = spelled or {canonical(other): other for other in (*campaign.memory.rows, *at)}
        yield row.id if row else name if name in at else spelled.get(canonical(name), "")


def write(path: Path, table: Table, campaign: Campaign, settings: Settings) -> list[str]:
    """Write all rows that are pending, the latest first; gives what there is to say of it."""
    pending = sorted(campaign.pending, key=lambda row: (-(row.pending or 0), row.said.get("rank", 0)))
    at = {name: i for i, name in enumerate(campaign.ids)}
    decimal = settings.decimal if path.suffix.lower() == ".csv" else table.written.decimal
    cells = [list(_cells(row, table, at, decimal)) for row in pending]
    columns = {name: [row[i] for row in cells] for i, name in enumerate(table.written.columns)}
    said = list(dict.fromkeys(key for row in pending for key in row.said if key not in ("rank", "score", "reason")))
    own = {OWN + key: [_short(row.said.get(key)) for row in pending] for key in ("rank", *said, "score", "reason")}
    rows = Cells(path, columns, (), decimal)
    return tables.write(path, rows, pd.DataFrame({ID: [row.id for row in pending]} | own))


def _cells(row: Row, table: Table, at: dict[str, int], decimal: str) -> Iterator[str]:
    """The row as the table has it, or as it had it when it was last there; of its targets what is measured."""
    i, mean = at.get(row.id), row.mean
    for name, column in table.written.columns.items():
        if name in table.roles.targets:
            value = mean.get(name) or ""
            yield value if isinstance(value, str) else repr(value).replace(".", decimal)
        elif i is not None:
            yield column[i]
        else:
            yield row.id if name == table.roles.id_column else row.cells.get(name, "")


def _short(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value
