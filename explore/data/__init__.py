"""Data sets, CSV files and splits; a new set is one new file here."""

from pathlib import Path

from explore.data.base import Dataset, drop_columns
from explore.data.columns import Schema
from explore.data.source import fetched
from explore.data.splits import PoolSplit, pool_splits, uci_splits
from explore.data.table import Loaded, load_csv, load_table
from explore.data.typed import map_parquet

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
    """A benchmark set by its name in `explore list datasets`.

    It is looked for in `folder`, by default the one that EXPLORE_DATA_DIR names, as `uci/yacht.txt.gz` or
    `libsvm/australian_scale.txt.gz`; what is not there is downloaded once into the user's cache.

    Raises:
        InputError: for an unknown name, a missing folder, a file that is not the known one, or a failed download.
    """
    dataset: Dataset = fetched("data", name, folder, Dataset)
    return dataset
