"""Digits: small handwritten digits that come with scikit-learn (1,437 + 360 grey images of 8 x 8)."""

from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from explore.images.base import Images


def digits(folder: Path | None = None) -> Images:
    """Load scikit-learn's digits: 80 % for training, then 20 % (partly other writers) for testing; ignore `folder`."""
    bunch = load_digits()
    x = np.rint(bunch.images * (255 / 16)).astype(np.uint8)[:, None]
    y, n = bunch.target.astype(np.int64), len(x) * 4 // 5
    return Images("digits", x[:n], y[:n], x[n:], y[n:], tuple("0123456789"))
