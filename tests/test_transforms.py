"""Scales of targets and their inverses."""

import json

import numpy as np
import pytest
from scipy.stats import norm, rankdata

from explore.core.errors import InputError
from explore.learning.scaling import KINDS, Transform


@pytest.mark.parametrize("kind", KINDS)
def test_undo_is_the_inverse(kind):
    y = np.random.default_rng(0).gamma(2.0, size=(30, 2)).round(1) + 0.1
    made = Transform.fit(kind, y)
    z = made.apply(y)
    np.testing.assert_allclose(made.undo(z), y)
    assert Transform.from_json(json.loads(json.dumps(made.to_json()))) == made
    order = np.argsort(y[:, 0], kind="stable")
    assert (np.diff(z[order, 0]) >= 0).all()
    assert made.undo(np.zeros((3, 4, 2))).shape == (3, 4, 2)


def test_normal_scores():
    y = np.random.default_rng(1).normal(size=(25, 1))
    z = Transform.fit("rank", y).apply(y)
    np.testing.assert_allclose(z[:, 0], norm.ppf((rankdata(y[:, 0]) - 0.5) / 25))
    made = Transform.fit("rank", np.array([[1.0], [5.0], [5.0], [9.0]]))
    np.testing.assert_allclose(made.scores[0], [norm.ppf(1 / 8), 0, norm.ppf(7 / 8)], atol=1e-12)
    np.testing.assert_allclose(made.undo(np.array([[-99.0], [99.0], [0.0]]))[:, 0], [1, 9, 5])


def test_what_is_refused():
    with pytest.raises(InputError, match="a target of 0 has no logarithm. Use the"):
        Transform("log").apply(np.array([[1.0], [0.0]]))
    with pytest.raises(InputError, match="is not a valid target transform"):
        Transform.from_json({"kind": "rank", "knots": [[1]], "scores": [[1, 2]]})
