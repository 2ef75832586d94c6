"""Yacht: residuary resistance of sailing yachts from their hull (308 x 6, regression)."""

from pathlib import Path

from explore.data.base import Dataset
from explore.data.source import regression, rows, uci


def yacht(folder: Path | None = None) -> Dataset:
    """UCI set 243."""
    return regression(
        "yacht",
        folder,
        sha256="e49419685cd7e6d84f6a4b6405cd052b1922e8c1df10d2ca4660adf1c0329bfd",
        shape=(308, 6),
        features="buoyancy_position prismatic length_displacement beam_draught length_beam froude".split(),
        fetch=lambda: rows(uci(243, "yacht+hydrodynamics", "yacht_hydrodynamics.data")),
    )
