"""Points spread over a space, beside brute force."""

import numpy as np
import pytest

from explore.core import spread
from tests.seeds import seeds


def distances(x):
    z = (x - x.mean(0)) / np.where(x.std(0) > 0, x.std(0), 1)
    return np.sqrt(np.square(z[:, None] - z[None]).mean(-1)), z


@pytest.mark.parametrize("seed", seeds(20, 6))
def test_the_next_point_is_the_farthest(seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(30, 3)) * [1, 1e-6, 1e9] + [0, 1, -1e10]
    x[:, int(rng.integers(3))] = 4.0
    between, z = distances(x)
    candidates, taken = list(range(5, 30)), [0, 3][: seed % 3]
    chosen, found = spread.farthest_first(x, candidates, taken, 8)
    if not taken:
        assert chosen[0] == candidates[int(np.square(z[candidates]).sum(1).argmin())] and found[0] == np.inf
    known = [*taken]
    for point, distance in zip(chosen, found, strict=True):
        if known:
            nearest = {i: between[i, known].min() for i in candidates if i not in known}
            assert nearest[point] == pytest.approx(max(nearest.values()), rel=1e-5)
            assert distance == pytest.approx(nearest[point], rel=1e-5)
        known.append(point)
    assert len(set(chosen)) == 8


def test_equal_and_huge_points():
    x = np.zeros((4, 2))
    assert spread.farthest_first(x, [0, 1, 2, 3], [], 4) == ([0, 1, 2, 3], [np.inf, 0, 0, 0])
    x = np.array([[1e300, 1], [-1e300, 2], [0, 3.0]])
    assert np.isfinite(spread.standardised(x)).all()
    np.testing.assert_allclose(spread.nearest(spread.standardised(x), [0, 1], [0]), [0, np.sqrt((6 + 1.5) / 2)])
