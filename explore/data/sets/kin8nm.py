"""Kin8nm: distance of an eight-link robot arm from a target (8192 x 8, regression)."""

from pathlib import Path

from explore.data.base import Dataset
from explore.data.source import Rows, openml, regression, rows


def kin8nm(folder: Path | None = None) -> Dataset:
    """OpenML set 189; the features are joint angles in radians."""
    return regression(
        "kin8nm",
        folder,
        sha256="f30ec958948c39e095fafe351bf237e59a5c473c7ff8ad9a633598336fecce42",
        shape=(8192, 8),
        features=[f"theta{i}" for i in range(1, 9)],
        fetch=_fetch,
    )


def _fetch() -> Rows:
    raw = openml("3626/dataset_2175_kin8nm.arff", "kin8nm.csv")
    return [[f"{float(cell):.7e}" for cell in row] for row in rows(raw, ",", header=True)]
