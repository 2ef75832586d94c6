"""BatchBALD for classes against all configurations of labels, and by some of them against by all."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch

from explore import registry
from explore.acquisitions.conditioning import LabelSets, information_of_classes
from explore.core.errors import InputError
from explore.core.rng import Rng
from explore.inference import predict
from explore.nets.likelihoods import Bernoulli, Categorical
from tests.acquisitions.views import P, R, S, outputs_of, view

CLASSES = pytest.mark.parametrize(("likelihood", "outputs"), [(Categorical(), 3), (Bernoulli(), 1)])


def entropy(p):
    return -(p * np.log(p)).sum(-1)


def joint_information(p, points):
    """Of the labels of these points and the weights, p [S, P, C]: every configuration of labels, one by one."""
    chances = [
        np.prod([p[:, i, c] for i, c in zip(points, labels, strict=True)], 0).mean()
        for labels in itertools.product(range(p.shape[2]), repeat=len(points))
    ]
    return entropy(np.array(chances)) - entropy(p[:, list(points)]).mean(0).sum()


@CLASSES
@pytest.mark.parametrize("name", ["batch-bald", "information-gain"])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_batch_is_the_greedy_one_by_all_configurations(likelihood, outputs, name, chunked, monkeypatch):
    if chunked:  # of nets' outputs and of sets of labels
        monkeypatch.setattr(predict, "BUDGET", 2 * R * S * 6)
    mask = torch.ones(R, P, dtype=torch.bool)
    mask[:, 1] = False
    v = view(likelihood, outputs, mask=mask)
    p = likelihood.mean(outputs_of(v)).numpy()
    choice = registry.acquisition(name)(v, 4)
    for r in range(R):
        chosen: list[int] = []
        before = 0.0
        for step in range(4):
            left = [i for i in range(P) if i not in chosen and i != 1]
            every = [joint_information(p[r], [*chosen, i]) for i in left]
            chosen.append(left[int(np.argmax(every))])
            assert int(choice.indices[r, step]) == chosen[-1]
            np.testing.assert_allclose(choice.scores[r, step], max(every) - before, rtol=1e-8, atol=1e-12)
            before = max(every)


@CLASSES
def test_pending_points_are_given(likelihood, outputs):
    v = view(likelihood, outputs)
    p = likelihood.mean(outputs_of(v)).numpy()
    few = dataclasses.replace(
        v, candidates=v.x[:, :6], mask=v.mask[:, :6], uniform=v.uniform[:, :6], pending=v.x[:, 6:8]
    )
    choice = registry.acquisition("batch-bald")(few, 1)
    for r in range(R):
        gains = [joint_information(p[r], [6, 7, i]) - joint_information(p[r], [6, 7]) for i in range(6)]
        assert int(choice.indices[r, 0]) == int(np.argmax(gains))
        np.testing.assert_allclose(choice.scores[r, 0], max(gains), rtol=1e-8)


def test_some_sets_of_labels_tell_without_bias_what_all_tell():
    p = Categorical().mean(outputs_of(view(Categorical(), 3)))[:1]
    exact = information_of_classes(p, LabelSets.none(p).condition(p[:, :, :4], 10**4, Rng(0)))[0]
    # 400 replicas, each with numbers of its own: 3 sets, then 7 of 9, of 21 and of 21.
    many = p.expand(400, *p.shape[1:])
    known = LabelSets.none(many).condition(many[:, :, :4], 7, Rng(1, dtype=torch.float64))
    assert known.mass.shape == (400, 7)
    estimates = information_of_classes(many, known)
    error = estimates.std(0) / 400**0.5
    assert (error > 0).all() and (error < 0.02 * exact).all()
    assert ((estimates.mean(0) - exact).abs() < 4 * error).all()
    assert (estimates > 0).all()


def test_more_sets_of_labels_than_there_are_change_nothing():
    v = view(Categorical(), 3)
    exact, more, fewer = (registry.acquisition("batch-bald", label_sets=n)(v, 4).scores for n in (27, 10**6, 26))
    assert torch.equal(exact, more)
    assert torch.equal(exact[:, :3], fewer[:, :3]) and not torch.equal(exact, fewer)


def test_long_batches_and_certain_nets_stay_finite():
    v = view(Categorical(), 3)
    sure = dataclasses.replace(v.predictor, layers=tuple(200 * w for w in v.predictor.layers))
    v = dataclasses.replace(v, sample=lambda: sure)
    choice = registry.acquisition("batch-bald", label_sets=50)(v, P)
    assert choice.scores.isfinite().all() and (choice.scores > -1e-9).all()
    assert (choice.scores.sum(1) < np.log(S) + 1e-9).all()  # one cannot learn more than which net it is


def test_the_number_of_sets_is_checked():
    with pytest.raises(InputError, match="label_sets is 0; it must be"):
        registry.acquisition("batch-bald", label_sets=0)
