"""Acquisition rules against their formulas written out densely."""

import dataclasses

import numpy as np
import pytest
import torch

from explore import registry
from explore.acquisitions.base import best
from explore.inference import predict
from explore.nets.likelihoods import Bernoulli, Categorical
from tests.acquisitions.views import P, R, S, outputs_of, view

random, max_variance, information_gain = (
    registry.find("acquisitions", name) for name in ("random", "max-variance", "information-gain")
)


def test_best_ranks_what_is_not_finite_below_every_allowed_point():
    scores = torch.tensor([[1.0, torch.nan, 3.0, -5.0, torch.inf, 9.0]])
    mask = torch.tensor([[True, True, True, True, True, False]])
    choice = best(scores, mask, 5)
    assert choice.indices[0, :3].tolist() == [2, 0, 3] and set(choice.indices[0, 3:].tolist()) == {1, 4}
    assert choice.scores[0, :3].tolist() == [3, 1, -5]


def test_random_makes_no_prediction_and_is_uniform():
    def refuse():
        raise AssertionError("weights were drawn")

    mask = torch.ones(R, P, dtype=torch.bool)
    mask[:, 3] = False
    v, counts = view(sample=refuse, mask=mask), torch.zeros(P)
    for _ in range(1000):
        drawn = dataclasses.replace(v, uniform=v.rng.uniform(R, P))
        counts += torch.bincount(random(drawn, 2).indices.flatten(), minlength=P)
    # 4000 picks among 9 points: 444 each, with a standard error of 20.
    assert counts[3] == 0 and (counts[mask[0]] - 4000 / 9).abs().max() < 100


@pytest.mark.parametrize("outputs", [1, 2])
def test_max_variance_takes_the_largest_sum_over_outputs(outputs):
    v = view(outputs=outputs)
    variance = outputs_of(v).numpy().var(1, ddof=1).sum(-1)
    choice = max_variance(v, 3)
    assert np.array_equal(choice.indices, np.argsort(-variance, 1)[:, :3])
    np.testing.assert_allclose(choice.scores, -np.sort(-variance, 1)[:, :3], rtol=1e-8)


def test_max_variance_finds_a_planted_point():
    v = view()
    v.x[0, 4], v.x[1, 7] = 100.0, 100.0
    assert max_variance(v, 1).indices.tolist() == [[4], [7]]


def joint_gain(v, r, points):
    """1/2 log det(I + tau K) over the outputs of all these points, each output with its precision."""
    out = outputs_of(v)[r][:, points].flatten(1).numpy()
    covariance, tau = np.cov(out.T).reshape(out.shape[1], -1), np.tile(v.noise[r, 0].numpy(), len(points))
    return 0.5 * np.linalg.slogdet(np.eye(len(covariance)) + tau[:, None] * covariance)[1]


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("chunked", [False, True])
def test_information_gain_is_the_greedy_joint_gain(outputs, chunked, monkeypatch):
    if chunked:
        monkeypatch.setattr(predict, "CACHE", 4 * R * S * 9)
    mask = torch.ones(R, P, dtype=torch.bool)
    mask[:, 1] = False
    v = view(outputs=outputs, mask=mask)
    choice = information_gain(v, 4)
    for r in range(R):
        chosen: list[int] = []
        for step in range(4):
            left = [i for i in range(P) if i not in chosen and i != 1]
            gains = [joint_gain(v, r, [*chosen, i]) for i in left]
            before = joint_gain(v, r, chosen) if chosen else 0
            chosen.append(left[int(np.argmax(gains))])
            assert int(choice.indices[r, step]) == chosen[-1]
            np.testing.assert_allclose(choice.scores[r, step], max(gains) - before, rtol=1e-8)


def test_information_gain_is_that_beyond_pending_points():
    v = view(outputs=2)
    few = dataclasses.replace(
        v, candidates=v.x[:, :6], mask=v.mask[:, :6], uniform=v.uniform[:, :6], pending=v.x[:, 6:8]
    )
    choice = information_gain(few, 1)
    for r in range(R):
        gains = [joint_gain(v, r, [6, 7, i]) - joint_gain(v, r, [6, 7]) for i in range(6)]
        assert int(choice.indices[r, 0]) == int(np.argmax(gains))
        np.testing.assert_allclose(choice.scores[r, 0], max(gains), rtol=1e-8)


def test_information_gain_passes_over_a_copy():
    v = view()
    first = int(max_variance(view(), 1).indices[0, 0])
    v.x[:, first - 1] = v.x[:, first]  # the most uncertain point, twice
    assert first in max_variance(v, 2).indices[0] and (first - 1) % P in max_variance(v, 2).indices[0]
    assert not {first, (first - 1) % P} <= set(information_gain(v, 2).indices[0].tolist())


@pytest.mark.parametrize(("likelihood", "outputs"), [(Categorical(), 3), (Bernoulli(), 1)])
def test_mutual_information_of_classes(likelihood, outputs):
    v = view(likelihood, outputs)
    p = likelihood.mean(outputs_of(v)).numpy()  # [R, S, P, C]
    mean = p.mean(1, keepdims=True)
    # As the expected KL of each sample's prediction from the average: another formula for the same thing.
    scores = (p * np.log(p / mean)).sum(-1).mean(1)
    np.testing.assert_allclose(information_gain.needs.scores(v), scores, rtol=1e-8)
    choice = information_gain(v, 1)
    np.testing.assert_allclose(choice.scores[:, 0], scores.max(1), rtol=1e-8)
    assert np.array_equal(choice.indices[:, 0], scores.argmax(1))
    assert (scores > 0).all() and (scores < np.log(p.shape[-1])).all()
