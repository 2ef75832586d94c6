"""The README's pictures: the learning curves of its first command, and the upper part of a screenshot of TensorBoard.

    explore active --dataset boston
    python docs/pictures.py runs/active-boston-gp-variance-reduction

`experiments/compare/screenshots.py` takes the screenshot.
"""

from __future__ import annotations

import sys
from pathlib import Path

from PIL import Image

DOCS = Path(__file__).parent


def small(source: Path, name: str, height: int | None = None) -> None:
    """Keeps the upper part of a picture in 128 colours, a third of the size."""
    with Image.open(source) as picture:
        upper = picture.convert("RGB").crop((0, 0, picture.width, height or picture.height))
    upper.convert("P", palette=Image.Palette.ADAPTIVE, colors=128).save(DOCS / "pictures" / name, optimize=True)


if __name__ == "__main__":
    small(Path(sys.argv[1]) / "learning_curve.png", "learning_curve.png")
    small(DOCS.parent / "experiments" / "compare" / "scalars.png", "tensorboard.png", 755)
