"""Australian: credit approval with anonymous features scaled to [-1, 1] (690 x 14, classification)."""

from pathlib import Path

from explore.data.base import Dataset
from explore.data.source import binary, libsvm


def australian(folder: Path | None = None) -> Dataset:
    """The scaled version of the LIBSVM collection."""
    return binary(
        "australian",
        folder,
        file="australian_scale",
        sha256="3a1ebc2844eb4a9925f479d30d70235dfe6553afa83ec05ed07d44e2d2c2dc61",
        shape=(690, 14),
        features=[f"A{i}" for i in range(1, 15)],
        classes=("-1", "+1"),
        fetch=lambda: libsvm("australian_scale", 14, positive=1),
    )
