"""Space-filling points: farthest-first traversal (Gonzalez 1985), a 2-approximation of the k-centre problem.

If no points are taken, the first choice is the candidate nearest to the mean of all points. Each further choice is the
candidate with the largest distance to its nearest taken or chosen point.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

Rows = Sequence[int] | np.ndarray  # indices


def farthest_first(x: Float[np.ndarray, "N D"], candidates: Rows, taken: Rows, k: int) -> tuple[list[int], list[float]]:
    """Choose k candidate rows far from each other and from the rows in `taken`, in standardised features.

    Return the chosen rows, and the distance of each to the nearest row taken or chosen before (inf if there is none).
    Distances are root mean squares over features, in standard deviations. Ties go to the first candidate.
    """
    z = standardised(x)
    points, distance = z[list(candidates)], nearest(z, candidates, taken)
    chosen, distances = [], []
    for _ in range(k):
        first = np.isinf(distance).all()
        best = int(_distances(points, z.mean(0)).argmin() if first else distance.argmax())
        chosen.append(int(candidates[best]))
        distances.append(float(distance[best]))
        distance = np.minimum(distance, _distances(points, points[best]))
        distance[best] = -np.inf
    return chosen, distances


def standardised(x: Float[np.ndarray, "N D"], rows: Any = slice(None)) -> Float[np.ndarray, "n D"]:
    """Standardise each feature to mean 0 and standard deviation 1; constant features become 0. Return some `rows`."""
    z = np.empty_like(x[rows])
    for d, column in enumerate(x.T):  # one at a time: the pool may fill most of the memory
        centred = column / (np.abs(column).max() or 1)  # so that no square overflows
        centred -= centred.mean()
        scale = np.sqrt(np.square(centred).mean())
        z[:, d] = centred[rows] / (scale if scale > 1e-12 else 1)  # constant features leave only rounding errors
    return z


def nearest(z: Float[np.ndarray, "N D"], rows: Rows, centres: Rows) -> Float[np.ndarray, " n"]:
    """Return the distance of each row in `rows` to the nearest row in `centres`, measured as in `farthest_first`."""
    points, distance = z[list(rows)], np.full(len(rows), np.inf)
    for i in centres:
        distance = np.minimum(distance, _distances(points, z[i]))
    return distance


def _distances(points: np.ndarray, centre: np.ndarray) -> np.ndarray:
    from scipy.spatial.distance import cdist

    return cdist(points, centre[None])[:, 0] / np.sqrt(len(centre))
