"""Naval: compressor decay of a frigate's gas turbine (11934 x 16, regression)."""

from pathlib import Path

from explore.data.base import Dataset
from explore.data.source import regression, rows, uci


def naval(folder: Path | None = None) -> Dataset:
    """UCI set 316; its second target, the turbine decay, is left out as in the literature.

    T1 and P1 are constant.
    """
    return regression(
        "naval",
        folder,
        sha256="af694673570227b92baff188bddbf46381f2833a56af0ef7ff729d63aca88936",
        shape=(11934, 16),
        features="lever speed GTT GTn GGn Ts Tp T48 T1 T2 P48 P1 P2 Pexh TIC mf".split(),
        fetch=lambda: [
            row[:17] for row in rows(uci(316, "condition+based+maintenance+of+naval+propulsion+plants", "data.txt"))
        ],
    )
