"""Tables as a spreadsheet may save them."""

from pathlib import Path

from explore.campaign import Campaign, Schema
from explore.data.reading import Cells

SCHEMA = Schema(("y",), ("temp", "solvent", "code"))


def table(columns, name="pool.csv"):
    """Cells out of columns by name."""
    columns = {name: tuple(cells) for name, cells in columns.items()}
    return Cells(Path(name), columns, tuple(range(2, 2 + len(next(iter(columns.values()))))))


def text(content, name="pool.csv"):
    """Cells out of lines with commas."""
    head, *rows = [[cell.strip() for cell in line.split(",")] for line in content.strip().splitlines()]
    return table({column: [row[i] for row in rows] for i, column in enumerate(head)}, name)


def rewritten(value, rng):
    """A cell in one of the ways in which it may be written."""
    if value is None:
        return str(rng.choice(["", "NA", "  ", "NaN"]))
    if isinstance(value, bool):
        return str(rng.choice([str(value), str(value).upper()]))
    if isinstance(value, str):
        return str(rng.choice([value, f" {value} "]))
    ways = [repr(value), f"{value:.17e}", f"{value:.16E}", f" {value!r}"]
    if float(value).is_integer():
        ways += [str(int(value)), f"{int(value)}.00", f"+{int(value)}" if value >= 0 else str(int(value))]
    return str(rng.choice(ways))


def known(campaign):
    """What is known of every row, by id."""
    return {row.id: (row.values, row.pending, row.skipped, row.gone, row.table) for row in campaign.state.rows.values()}


def read(folder, *tables, schema=SCHEMA, dry=False):
    """A campaign after one reading, saved and closed."""
    with Campaign(folder, dry) as campaign:
        campaign.read(tables[0], schema, *tables[1:])
        campaign.save()
    return campaign
