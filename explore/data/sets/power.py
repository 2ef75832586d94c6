"""Power: hourly output in MW of a combined-cycle power plant (9568 x 4, regression)."""

from pathlib import Path

from explore.data.base import Dataset
from explore.data.source import regression, sheet, uci


def power(folder: Path | None = None) -> Dataset:
    """UCI set 294; of the five shuffled sheets the first, whose row order is not the canonical one."""
    return regression(
        "power",
        folder,
        sha256="366a98c492339475b6a494678d24b97baef240534620a1e4e45590fc446bf963",
        shape=(9568, 4),
        features=("AT", "V", "AP", "RH"),
        sorted_sha256="3d6414d4eece318f59e8bc32dc8beae20ac36b2e63665aa36fb9e5a3eb852ecf",
        fetch=lambda: sheet(uci(294, "combined+cycle+power+plant", "Folds5x2_pp.xlsx"), ["%g"] * 5),
    )
