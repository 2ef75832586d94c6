"""Wine: tasters' quality score of red wines (1599 x 11, regression)."""

from pathlib import Path

from explore.data.base import Dataset
from explore.data.source import regression, rows, uci


def wine(folder: Path | None = None) -> Dataset:
    """UCI set 186, the red wines."""
    return regression(
        "wine",
        folder,
        sha256="3ba41eaf4ab562088cf47b5c9dca2b4de2a330c3ee38a7920b4527a09574d5c1",
        shape=(1599, 11),
        features=(
            "fixed_acidity volatile_acidity citric_acid residual_sugar chlorides free_sulfur_dioxide "
            "total_sulfur_dioxide density pH sulphates alcohol"
        ).split(),
        fetch=lambda: rows(uci(186, "wine+quality", "winequality-red.csv"), ";", header=True),
    )
