"""Data sets, CSV files and splits; a new set is one new file here."""

from pathlib import Path

from explore.data.base import Dataset, PoolSplit, drop_columns, pool_splits, uci_splits
from explore.data.columns import Schema
from explore.data.source import fetched
from explore.data.table import Loaded, load_csv, load_table, map_parquet

__all__ = [
    "Dataset",
    "Loaded",
    "PoolSplit",
    "Schema",
    "drop_columns",
    "load",
    "load_csv",
    "load_table",
    "map_parquet",
    "pool_splits",
    "uci_splits",
]


def load(name: str, folder: Path | None = None) -> Dataset:
    """Load a benchmark set by its name in `explore list datasets`.

    It is read from `folder` (by default the one in EXPLORE_DATA_DIR) as `uci/yacht.txt.gz` or
    `libsvm/australian_scale.txt.gz`; if it is missing there, it is downloaded once into the user's cache.

    Raises:
        InputError: for an unknown name, a missing folder, a modified file, or a failed download.
    """
    dataset: Dataset = fetched("data", name, folder, Dataset)
    return dataset
