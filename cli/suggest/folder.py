"""Folders of Parquet files as pools: only rows that the campaign knows become cells; the others stay in their files."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from explore.campaign import Campaign
from explore.campaign.sheet import ID
from explore.cli.suggest.table import Table, comparable
from explore.data.parts import Columns, Places
from explore.data.reading import Cells


def named(campaign: Campaign, labels: Cells | None, options: Mapping[str, Any]) -> list[str]:
    """Return the names of all rows that the campaign, a labels file or an option names."""
    asked = (name for kind in ("skip", "release", "retract") for name in options[kind])
    return [*campaign.state.rows, *(labels.columns.get(ID, ()) if labels else ()), *asked]


def read(campaign: Campaign, table: Table, names: Iterable[str], labels: Cells | None = None) -> Table:
    """Let the campaign read the table and labels; return the table. Of a folder, read measured rows and `names`."""
    places, columns = table.whole.lines, table.whole.columns
    if isinstance(places, Places) and isinstance(columns, Columns):
        rows = sorted({*table.measured, *(row for row in map(places.row, names) if row is not None)})
        lines = [places[row] for row in rows]
        written = table.whole._replace(columns=columns.of(rows), lines=lines)
        cells = comparable(written, table.schema, () if table.roles.classes else table.roles.targets)
        cells = cells._replace(columns={ID: lines, **cells.columns})
        table = replace(table, written=written, cells=cells, at=rows)
    campaign.read(table.cells, table.roles, labels, len(table.whole.lines) - len(table.at))
    return table


def suggest(campaign: Campaign, table: Table, rows: list[int], values: list[dict[Any, Any]]) -> Table:
    """Mark rows of the table as pending, with these values; return the table, with these rows as cells."""
    if isinstance(table.whole.lines, Places):
        notes, names = list(campaign.notes), [*campaign.state.rows, *(table.whole.lines[row] for row in rows)]
        table = read(campaign, table, names)
        campaign.notes = notes  # without those that this reading repeats
    at = {row: i for i, row in enumerate(table.at)}
    campaign.suggest([at[row] for row in rows], values)
    return table
