"""A folder of Parquet files as one table, of which one column at a time is in memory."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from explore.core.errors import InputError, listed, shown
from explore.data import reading
from explore.data.reading import Cells

SUFFIX = ".parquet"


@dataclass(frozen=True)
class Places(Sequence[str]):
    """The rows of all parts, in the order of file names: each is called "NUMBER of PART", with numbers from 1."""

    parts: tuple[str, ...]
    ends: tuple[int, ...]  # number of rows up to the end of each part

    def __len__(self) -> int:
        return self.ends[-1]

    def __getitem__(self, row: Any) -> Any:
        part = int(np.searchsorted(self.ends, row, "right"))
        return f"{row - (self.ends[part - 1] if part else 0) + 1} of {self.parts[part]}"

    def row(self, place: str) -> int | None:
        """Return the index of a row by its name, or None if there is no such row."""
        number, _, part = place.partition(" of ")
        if part not in self.parts or not number.isdecimal():
            return None
        at = self.parts.index(part)
        row = (self.ends[at - 1] if at else 0) + int(number) - 1
        return row if int(number) and row < self.ends[at] else None


class Columns(Mapping[str, Sequence[str]]):
    """The columns of all parts, read when they are asked for. The last one is kept."""

    def __init__(self, files: Sequence[Path], places: Places, names: Mapping[str, str]):
        """Remember where the columns are: `names` maps the names of columns to those in the files."""
        self._files, self._places, self._names = files, places, names
        self._column = lru_cache(1)(self._read)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names  # without reading it

    def __getitem__(self, name: str) -> Sequence[str]:
        return self._column(name)

    def _read(self, name: str) -> list[str]:
        parts = (read(file, [self._names[name]]).columns[name] for file in self._files)
        return [cell for part in parts for cell in part]

    def of(self, rows: Sequence[int]) -> dict[str, list[str]]:
        """Return the cells of a few rows, by column."""
        cells: dict[str, list[str]] = {name: [""] * len(rows) for name in self}
        homes = np.searchsorted(self._places.ends, rows, "right")
        for part in np.unique(homes).tolist():
            places = np.flatnonzero(homes == part).tolist()
            start = self._places.ends[part - 1] if part else 0
            found = read(self._files[part], list(self._names.values()), [rows[i] - start for i in places])
            for name, column in found.columns.items():
                for i, cell in zip(places, column, strict=True):
                    cells[name][i] = cell
        return cells


def files_of(folder: Path) -> list[Path]:
    """Return the Parquet files in a folder by name. Raise InputError if there is none, or another file."""
    every = sorted(path for path in folder.iterdir() if path.name[0] not in "._")  # without _SUCCESS and the like
    files = [path for path in every if path.suffix.lower() == SUFFIX]
    if not files:
        raise InputError(f"{folder} has no Parquet files (*{SUFFIX}). Pass a file, or a folder of such files")
    if len(files) < len(every):
        other = listed([path.name for path in every if path not in files], 5)
        raise InputError(f"{folder} also has files that are not Parquet: {other}. Move them elsewhere")
    return files


def cells_of(folder: Path) -> Cells:
    """Return the cells of all Parquet files in a folder, in the order of their names.

    Raise InputError if there is none, or if columns or types of two files differ.
    """
    files = files_of(folder)
    schemas, rows = zip(*map(_header, files), strict=True)
    for file, schema in zip(files, schemas, strict=True):
        if different := set(schema.items()) ^ set(schemas[0].items()):
            name = min(different)[0]
            first, here = (each.get(name, "missing") for each in (schemas[0], schema))
            problem = f"column {shown(name)} is {first} in {files[0].name}, but {here} in {file.name}"
            raise InputError(f"{folder}: {problem}. All parts need the same columns and types")
    names, notes = reading.named(files[0], schemas[0])
    if not (filled := [file for file, count in zip(files, rows, strict=True) if count]):
        raise reading.NoRows(f"{folder} has no row")
    places = Places(tuple(file.name for file in filled), tuple(accumulate(filter(None, rows))))
    columns = Columns(filled, places, dict(zip(names, schemas[0], strict=True)))
    return Cells(folder, columns, places, notes=notes, unit="row")


def _header(file: Path) -> tuple[dict[str, str], int]:
    """Return the types of the columns of a file by name, and its number of rows."""
    with reading.opened(file) as parquet:
        return {field.name: str(field.type) for field in parquet.schema_arrow}, parquet.metadata.num_rows


def read(file: Path, names: Sequence[str], rows: Sequence[int] | None = None) -> Cells:
    """Return the cells of some columns and rows (None: all) of a Parquet file."""
    with reading.opened(file) as parquet:
        table = parquet.read(columns=names)
        return reading.of_arrow(table if rows is None else table.take(rows), file)
