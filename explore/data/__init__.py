"""Benchmark data sets, user tables and splits. To add a data set, add a file to `explore/data/sets`."""

from pathlib import Path

from explore.data.base import Dataset as Dataset
from explore.data.base import PoolSplit as PoolSplit
from explore.data.base import drop_columns as drop_columns
from explore.data.base import pool_splits as pool_splits
from explore.data.base import uci_splits as uci_splits
from explore.data.columns import Schema as Schema
from explore.data.source import fetched
from explore.data.table import Loaded as Loaded
from explore.data.table import load_csv as load_csv
from explore.data.table import load_table as load_table
from explore.data.table import map_parquet as map_parquet


def load(name: str, folder: Path | None = None) -> Dataset:
    """Load a benchmark data set by its name in `explore list datasets`.

    The set is read from a file in `folder` (default: the environment variable EXPLORE_DATA_DIR), such as
    `uci/yacht.txt.gz` or `libsvm/australian_scale.txt.gz`. A missing file is downloaded once into the user's cache.

    Raises:
        InputError: for an unknown name, a missing folder, a modified file, or a failed download.
    """
    return fetched("data", name, folder, Dataset)
