"""Breast cancer: benign or malignant cells, Wisconsin, scaled to [-1, 1] (683 x 10, classification)."""

from pathlib import Path

from explore.data.base import Dataset
from explore.data.source import binary, libsvm


def breast_cancer(folder: Path | None = None) -> Dataset:
    """The scaled version of the LIBSVM collection, with labels 2 and 4; its first feature is a code."""
    return binary(
        "breast-cancer",
        folder,
        file="breast_cancer_scale",
        sha256="a28fff26c57692e58a1d4034d60e410024fee1a1de7e8c2c61908ba15f29a459",
        shape=(683, 10),
        features=(
            "sample_code clump_thickness cell_size_uniformity cell_shape_uniformity adhesion "
            "epithelial_cell_size bare_nuclei bland_chromatin normal_nucleoli mitoses"
        ).split(),
        classes=("benign", "malignant"),
        fetch=lambda: libsvm("breast-cancer_scale", 10, positive=4),
    )
