"""Concrete: compressive strength in MPa from mixture and age (1030 x 8, regression)."""

from pathlib import Path

from explore.data.base import Dataset
from explore.data.source import regression, sheet, uci


def concrete(folder: Path | None = None) -> Dataset:
    """UCI set 165; amounts in kg/m3, age in days."""
    return regression(
        "concrete",
        folder,
        sha256="da6db9753a6e371dbbd0ac31ead1d050a4cc638a077ec3c6f65b142c216404ee",
        shape=(1030, 8),
        features="cement slag fly_ash water superplasticizer coarse_aggregate fine_aggregate age".split(),
        fetch=lambda: sheet(
            uci(165, "concrete+compressive+strength", "Concrete_Data.xls"), ["%.1f"] * 7 + ["%d", "%.2f"]
        ),
    )
