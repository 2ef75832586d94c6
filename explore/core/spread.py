"""Space-filling points: farthest-first traversal (Gonzalez 1985), a 2-approximation of the k-centre problem.

If no points are taken, the first choice is the candidate nearest to the mean of all points. Each further choice is the
candidate with the largest distance to its nearest taken or chosen point.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

MOST = 2**24  # numbers in a chunk of differences


def farthest_first(
    x: Float[np.ndarray, "N D"], candidates: Sequence[int], taken: Sequence[int], k: int
) -> tuple[list[int], list[float]]:
    """Choose k candidate rows far from each other and from the rows in `taken`, in standardised features.

    Return the chosen rows, and the distance of each to the nearest row taken or chosen before (inf if there is none).
    Distances are root mean squares over features, in standard deviations. Ties go to the first candidate.
    """
    z = standardised(x)
    free = np.asarray(candidates, np.int64)
    distance = _squares_to_nearest(z, free, taken)
    chosen, distances = [], []
    for _ in range(k):
        first = np.isinf(distance).all()
        best = int(_squares(z, free, z.mean(0)).argmin() if first else distance.argmax())
        chosen.append(int(free[best]))
        distances.append(float(np.sqrt(distance[best])))
        distance = np.minimum(distance, _squares(z, free, z[free[best]]))
        distance[best] = -np.inf
    return chosen, distances


def standardised(x: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "N D"]:
    """Standardise each feature to mean 0 and standard deviation 1; constant features become 0."""
    most = np.abs(x).max(0)  # so that no square overflows
    x = x / np.where(most > 0, most, 1)
    centred = x - x.mean(0)
    scale = np.sqrt(np.square(centred).mean(0))
    return centred / np.where(scale > 1e-12, scale, 1)  # constant features leave only rounding errors


def nearest(z: Float[np.ndarray, "N D"], rows: Sequence[int], centres: Sequence[int]) -> Float[np.ndarray, " n"]:
    """Return the distance of each row in `rows` to the nearest row in `centres`, measured as in `farthest_first`."""
    return np.sqrt(_squares_to_nearest(z, np.asarray(rows, np.int64), centres))


def _squares_to_nearest(z: np.ndarray, rows: np.ndarray, centres: Sequence[int]) -> np.ndarray:
    distance = np.full(len(rows), np.inf)
    for i in centres:
        distance = np.minimum(distance, _squares(z, rows, z[i]))
    return distance


def _squares(z: np.ndarray, rows: np.ndarray, centre: np.ndarray) -> np.ndarray:
    """Return the squared difference of each row from `centre`, averaged over features; computed in chunks of rows."""
    size = max(1, MOST // max(1, z.shape[1]))
    parts = [np.square(z[rows[i : i + size]] - centre).mean(1) for i in range(0, len(rows), size)]
    return np.concatenate(parts) if parts else np.empty(0)
