"""Greedy k-centre against all distances."""

import dataclasses

import numpy as np
import pytest
import torch

from explore import registry
from explore.core.errors import InputError
from explore.inference import predict
from explore.nets.likelihoods import Bernoulli, Categorical, Gaussian
from tests.acquisitions.views import P, R, S, view


def predictions(v, x):
    out = v.predictor.net.output(v.predictor.layers, x)
    return v.likelihood.mean(out).movedim(1, 2).flatten(2).numpy() / S**0.5


@pytest.mark.parametrize("space", ["predictions", "inputs"])
@pytest.mark.parametrize("pending", [0, 2])
@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize(
    ("likelihood", "outputs"), [(Gaussian(), 2), (Categorical(), 3), (Bernoulli(), 1)], ids=["2", "3", "classes"]
)
def test_each_point_is_the_farthest(likelihood, outputs, space, pending, chunked, monkeypatch):
    if chunked:
        monkeypatch.setattr(predict, "BUDGET", 4 * R * S * 6)
    mask = torch.ones(R, P, dtype=torch.bool)
    mask[:, 2] = False
    v = view(likelihood, outputs, mask=mask)
    beside = dataclasses.replace(v, pending=v.rng.normal(R, pending, 2)) if pending else v
    choice = registry.acquisition("core-set", space=space)(beside, 4)
    place = (lambda v, x: x.numpy()) if space == "inputs" else predictions
    points, taken = place(v, v.x), place(v, beside.taken)
    assert taken.shape[1] == 4 + pending
    for r in range(R):
        have = list(taken[r])
        for step in range(4):
            distance = np.array([min(np.linalg.norm(p - other) for other in have) for p in points[r]])
            distance[2] = 0
            assert int(choice.indices[r, step]) == int(distance.argmax())
            np.testing.assert_allclose(choice.scores[r, step], distance.max(), rtol=1e-8)
            have.append(points[r][distance.argmax()])


def test_distances_of_inputs_need_no_prediction():
    def refuse():
        raise AssertionError("weights were drawn")

    registry.acquisition("core-set", space="inputs")(view(sample=refuse), 2)


def test_the_space_is_checked():
    with pytest.raises(InputError, match=r"space='features' is not valid; allowed: predictions \| inputs"):
        registry.configured("acquisitions", "core-set", [("space", "features")])
