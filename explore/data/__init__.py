"""Benchmark data sets, user tables and splits. To add a data set, add a file to `explore/data/sets`."""

from pathlib import Path

from explore.data.base import Dataset, PoolSplit, drop_columns, pool_splits, uci_splits
from explore.data.columns import Schema
from explore.data.source import fetched
from explore.data.table import Loaded, load_table, map_parquet

__all__ = ["Dataset", "Loaded", "PoolSplit", "Schema", "drop_columns", "load", "load_table", "map_parquet"]
__all__ += ["pool_splits", "uci_splits"]


def load(name: str, folder: Path | None = None) -> Dataset:
    """Load a benchmark data set by its name in `explore list datasets`.

    The set is read from a file in `folder` (default: the environment variable EXPLORE_DATA_DIR), such as
    `uci/yacht.txt.gz` or `libsvm/australian_scale.txt.gz`. A missing file is downloaded once into the user's cache.
    Raise InputError for an unknown name, a missing folder, a modified file, or a failed download.
    """
    return fetched("data", name, folder, Dataset)
