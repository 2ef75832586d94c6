"""next.csv, or next.xlsx: the pending rows, to be filled in."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from explore.campaign import Campaign, Row
from explore.campaign.answers import PREFIX
from explore.campaign.cells import canonical, same
from explore.campaign.sheet import measurements
from explore.cli import tables
from explore.cli.suggest.settings import Settings
from explore.cli.suggest.table import Table, labels
from explore.core.errors import InputError, listed, shown
from explore.data.reading import Cells

ID = f"{PREFIX}id"
KINDS = (".csv", ".xlsx")


def beside(table: Path) -> Path:
    """Return the default of --out: next.csv, or next.xlsx for an Excel table."""
    return table.with_name("next.xlsx" if table.suffix.lower() in (".xlsx", ".xlsm") else "next.csv")


def read(path: Path, table: Table, settings: Settings) -> Cells | None:
    """Return the cells of the file, see `labels`; None where there is no file, or no row in it."""
    if not path.exists():
        return None
    try:
        return labels(path, table, settings)
    except InputError as error:
        if "no line of data" in str(error):
            return None
        raise


def check_told(path: Path, table: Table, campaign: Campaign, settings: Settings, before: Sequence[str]) -> None:
    """Refuse to lose anything when the file is written anew: measurements, also of targets `before`, rows or cells."""
    file = read(path, table, settings)
    if file is None:
        return
    targets = [name for name in dict.fromkeys([*table.roles.targets, *before]) if name in file.columns]
    lines = {name: i for i, name in enumerate(campaign.ids)}
    names = [_identify(text, campaign) for text in file.columns.get(ID, [""] * len(file.lines))]
    rows = [campaign.memory.find(name) or Row(name) for name in names]
    places = [f"{file.unit} {line}" for line in file.lines]
    values = measurements(file, targets, table.roles)
    if lost := [p for p, row, cells in zip(places, rows, values, strict=True) if cells and not row.was_logged(cells)]:
        raise InputError(
            f"{path} has measurements ({listed(lost, 5)}) that were not told and would be overwritten; tell them by "
            f"--labels {path}, or choose another --out"
        )
    if strange := [place for place, name in zip(places, names, strict=True) if not name]:
        raise InputError(
            f"{path} has rows ({listed(strange, 5)}) that are not among those of {table.path} and would be "
            "overwritten; choose another --out"
        )

    def is_added(cell: str, row: Row, column: str) -> bool:
        """Return whether a cell is neither in the table nor in a column that was renamed or removed."""
        if row.id not in lines or not cell or same(cell, row.former.get(column, "")):
            return False
        return column not in table.cells.columns or not canonical(table.cells.columns[column][lines[row.id]])

    others = [name for name in file.columns if name not in targets and not name.startswith(PREFIX)]
    added = [n for n in others if any(is_added(canonical(c), r, n) for c, r in zip(file.columns[n], rows, strict=True))]
    if added:
        raise InputError(
            f"{path} has cells in {listed(map(shown, added))} that {table.path} does not have and that would be "
            "overwritten; copy them there, or choose another --out"
        )


def _identify(text: str, campaign: Campaign) -> str:
    """Return the id of a row, which a spreadsheet may have written as 7 for 007; "" where there is none."""
    if row := campaign.memory.find(text):
        return row.id
    every = (*campaign.ids, *campaign.memory.rows)
    return text if text in campaign.ids else next((name for name in every if canonical(name) == canonical(text)), "")


def write(path: Path, table: Table, campaign: Campaign, settings: Settings) -> list[str]:
    """Write all pending rows, the latest first, and return notes."""
    pending = sorted(campaign.pending, key=lambda row: (-(row.pending or 0), row.suggestion.get("rank", 0)))
    lines = {name: i for i, name in enumerate(campaign.ids)}
    decimal = settings.decimal if path.suffix.lower() == ".csv" else table.written.decimal

    def cell(row: Row, name: str) -> str:
        """Return a cell as the table has it, or had it when the row was last there; of targets, the measurement."""
        if name in table.roles.targets:
            value = row.mean.get(name) or ""
            return value if isinstance(value, str) else repr(value).replace(".", decimal)
        if row.id in lines:
            return table.written.columns[name][lines[row.id]]
        return row.id if name == table.roles.id_column else row.cells.get(name, "")

    columns = {name: [cell(row, name) for row in pending] for name in table.written.columns}
    added = pd.DataFrame([{"id": row.id} | row.suggestion for row in pending], columns=_columns(pending), dtype=object)
    added = added.map(lambda value: float(f"{value:.6g}") if isinstance(value, float) else value)
    return tables.write(path, Cells(path, columns, (), decimal), added.infer_objects().add_prefix(PREFIX))


def _columns(pending: Sequence[Row]) -> list[str]:
    names = list(dict.fromkeys(key for row in pending for key in row.suggestion))
    return ["id", "rank", *(name for name in names if name not in ("rank", "score", "reason")), "score", "reason"]
