"""Boston housing: median house price in 1000 dollars by census tract (506 x 13, regression)."""

from pathlib import Path

from explore.data.base import Dataset
from explore.data.table import load_table

PAGE = "https://scikit-learn.org/1.0/modules/generated/sklearn.datasets.load_boston.html"
NOTE = f"boston: column B is racially coded; --drop-columns B leaves it out; see {PAGE}"


def boston(folder: Path | None = None) -> Dataset:
    """Load the data of Harrison and Rubinfeld (1978) from a file in this package; `folder` is ignored."""
    return load_table(Path(__file__).with_name("boston.csv.gz"), "MEDV").dataset._replace(note=NOTE, lines=())
