"""What a picture shows, read from its pixels."""

from pathlib import Path

import numpy as np
from matplotlib.colors import to_rgb
from PIL import Image


def shares(path: Path, colour: str, panels: int = 1, upper: float = 1.0) -> list[float]:
    """For each of so many panels side by side the share of its columns of pixels in which a colour stands.

    A curve or a band crosses its panel, where its sample in a legend is narrow, and empty axes have nothing of it.
    Axes and letters are black.

    Args:
        path: of the picture.
        colour: a name that matplotlib knows.
        panels: of equal width.
        upper: the part of the height that counts, where the legend stands below it.
    """
    with Image.open(path) as image:
        pixels = np.asarray(image.convert("RGB")).astype(int)
    pixels = pixels[: round(upper * len(pixels))]
    near = (np.abs(pixels - np.round(255 * np.array(to_rgb(colour)))) <= 8).all(2).any(0)
    return [float(part.mean()) for part in np.array_split(near, panels)]
