"""Protein: deviation of predicted protein structures in angstrom (45730 x 9, regression)."""

from pathlib import Path

from explore.data.base import Dataset
from explore.data.source import regression, rows, uci


def protein(folder: Path | None = None) -> Dataset:
    """UCI set 265, whose file has the target first."""
    return regression(
        "protein",
        folder,
        sha256="d35f332707e8a73f21e021039250a1e7b26e14f7dd826a0337ffa8e8e48b9727",
        shape=(45730, 9),
        features=[f"F{i}" for i in range(1, 10)],
        fetch=lambda: [
            row[1:] + row[:1]
            for row in rows(
                uci(265, "physicochemical+properties+of+protein+tertiary+structure", "CASP.csv"),
                ",",
                header=True,
            )
        ],
    )
