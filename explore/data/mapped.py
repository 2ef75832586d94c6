"""Parquet files that are larger than memory, as pools: features in a memory map of NumPy."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from explore.core.errors import InputError, shown
from explore.core.files import check_regular
from explore.data.columns import Schema
from explore.data.table import cells_of
from explore.data.typed import ROWS, parquet_file

__all__ = ["MappedTable", "map_parquet"]


class MappedTable(NamedTuple):
    """The features of a file."""

    x: np.memmap  # float64 [N, D], read-only
    notes: tuple[str, ...]  # sentences on what was imputed or not known, with the rows, which count from 1


def map_parquet(source: str | os.PathLike[str], schema: Schema, target: str | os.PathLike[str]) -> MappedTable:
    """Write the features of a Parquet file's rows, in their order, to a file of NumPy (.npy), and map it.

    Args:
        source: the Parquet file; columns that the schema does not have are passed over.
        schema: what the columns become, `load_table(measured, ...).schema` of the rows that are measured.
        target: the file to write, from which the map reads for as long as it is used.

    Raises:
        InputError: when the file cannot be read, has no row, lacks a column, or has a cell that is not of its
            column's kind.
    """
    import pyarrow

    try:
        check_regular(Path(source))
        file = parquet_file(source)
    except (OSError, pyarrow.ArrowInvalid) as error:
        raise InputError(f"{shown(os.fspath(source))} is no Parquet file that can be read ({error})") from None
    shape = (file.metadata.num_rows, len(schema.features))
    if not shape[0]:
        raise InputError(f"{shown(os.fspath(source))} has no row")
    written = np.lib.format.open_memmap(target, "w+", np.float64, shape)
    notes = tuple(_write(file.iter_batches(ROWS), schema, written))
    written.flush()
    return MappedTable(np.load(Path(target), mmap_mode="r"), notes)


def _write(batches: Iterator, schema: Schema, x: np.memmap) -> Iterator[str]:
    """Fill in the rows; what there is to say of each batch."""
    start = 0
    for batch in batches:
        cells = cells_of(batch.to_pandas())
        stop = start + len(batch)
        matrix = schema.apply(cells)
        x[start:stop] = matrix.x
        yield from (f"Rows {start + 1} to {stop}: {note}" for note in matrix.notes)
        start = stop
