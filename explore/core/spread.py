"""Space-filling points: farthest-first traversal (Gonzalez 1985), a 2-approximation of the k-centre problem.

If no points are taken, the first choice is the candidate nearest to the mean of all points. Each further choice is the
candidate with the largest distance to its nearest taken or chosen point.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float


def farthest_first(
    x: Float[np.ndarray, "N D"], candidates: Sequence[int], taken: Sequence[int], k: int
) -> tuple[list[int], list[float]]:
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


def standardised(x: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "N D"]:
    """Standardise each feature to mean 0 and standard deviation 1; constant features become 0."""
    most = np.abs(x).max(0)  # so that no square overflows
    x = x / np.where(most > 0, most, 1)
    centred = x - x.mean(0)
    scale = np.sqrt(np.square(centred).mean(0))
    return centred / np.where(scale > 1e-12, scale, 1)  # constant features leave only rounding errors


def nearest(z: Float[np.ndarray, "N D"], rows: Sequence[int], centres: Sequence[int]) -> Float[np.ndarray, " n"]:
    """Return the distance of each row in `rows` to the nearest row in `centres`, measured as in `farthest_first`."""
    points, distance = z[list(rows)], np.full(len(rows), np.inf)
    for i in centres:
        distance = np.minimum(distance, _distances(points, z[i]))
    return distance


def _distances(points: np.ndarray, centre: np.ndarray) -> np.ndarray:
    from scipy.spatial.distance import cdist

    return cdist(points, centre[None])[:, 0] / np.sqrt(len(centre))
