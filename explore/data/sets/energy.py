"""Energy: heating load of buildings from their shape (768 x 8, regression)."""

from pathlib import Path

from explore.data.base import Dataset
from explore.data.source import regression, sheet, uci


def energy(folder: Path | None = None) -> Dataset:
    """UCI set 242; its second target, the cooling load, is left out as in the literature."""
    return regression(
        "energy",
        folder,
        sha256="66164218089e5496e49807783517331405f7355092f9d13e898c3d0df6f95b05",
        shape=(768, 8),
        features=(
            "relative_compactness surface_area wall_area roof_area overall_height orientation glazing_area "
            "glazing_area_distribution"
        ).split(),
        fetch=lambda: sheet(
            uci(242, "energy+efficiency", "ENB2012_data.xlsx"), ["%.2f"] * 5 + ["%d", "%.2f", "%d", "%.2f"]
        ),
    )
