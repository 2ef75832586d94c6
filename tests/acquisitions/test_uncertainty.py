"""Rules that score points one by one, and draws by their scores."""

import dataclasses

import numpy as np
import pytest
import torch

from explore import registry
from explore.acquisitions.base import Needs, best, check, name_of
from explore.core.errors import InputError
from explore.core.rng import Rng
from explore.nets.likelihoods import Bernoulli, Categorical, Gaussian
from explore.nets.net import Net, mlp
from tests.acquisitions.views import P, outputs_of, view

CLASSES = pytest.mark.parametrize(("likelihood", "outputs"), [(Categorical(), 3), (Bernoulli(), 1)])


@CLASSES
def test_entropy_and_margin_are_those_of_the_averaged_probabilities(likelihood, outputs):
    v = view(likelihood, outputs)
    p = likelihood.mean(outputs_of(v)).numpy().mean(1)  # [R, P, C]
    ordered = np.sort(p, 2)
    for name, scores in (("entropy", -(p * np.log(p)).sum(2)), ("margin", 1 - ordered[..., -1] + ordered[..., -2])):
        choice = registry.acquisition(name)(v, P)
        assert np.array_equal(choice.indices, np.argsort(-scores, 1)), name
        np.testing.assert_allclose(choice.scores, -np.sort(-scores, 1), rtol=1e-8)


@pytest.mark.parametrize("name", ["entropy", "margin"])
def test_a_rule_for_classes_refuses_numbers_by_name(name):
    posterior = registry.posterior("bbb", Net(mlp(2, [4], 1)), Gaussian())
    with pytest.raises(InputError, match=f"{name} supports classes only, but BBB predicts numbers"):
        check(registry.acquisition(name), posterior, 10)


def sizes(view):
    return (view.x[..., 0].abs() - 0.5).relu()


@Needs(alone=True, scores=sizes)
def large(view, k):
    return best(sizes(view), view.mask, k)


def drawn(beta, k, n=3000):
    """What is drawn n times in one replica, by a rule that scores some points 0; and all scores."""
    v, rule = view(), registry.acquisition("power", rule=f"{__name__}:large", beta=beta)
    mask = torch.arange(P) != 3
    many = dataclasses.replace(
        v, candidates=v.x[:1].expand(n, P, 2), mask=mask.expand(n, P), uniform=Rng(1, dtype=torch.float64).uniform(n, P)
    )
    choice, scores = rule(many, k), sizes(many)
    assert torch.equal(choice.scores, scores.gather(1, choice.indices))
    return choice.indices.numpy(), np.where(mask, scores[0], 0)


@pytest.mark.parametrize("beta", [1.0, 3.0])
def test_power_draws_in_proportion_to_a_power_of_the_scores(beta):
    indices, scores = drawn(beta, 2)
    first = scores**beta / (scores**beta).sum()
    others = first / (1 - first)
    second = first * (others.sum() - others)  # drawn from those that are left
    for step, chance in enumerate((first, second)):
        share = np.bincount(indices[:, step], minlength=P) / len(indices)
        assert (np.abs(share - chance) < 4.5 * np.sqrt(chance * (1 - chance) / len(indices)) + 1e-12).all()


def test_power_takes_what_scores_zero_last_and_at_random():
    indices, scores = drawn(1.0, P - 1)
    positive = int((scores > 0).sum())
    assert 1 < positive < P - 2
    assert (scores[indices[:, :positive]] > 0).all()
    zeros = set(np.flatnonzero(scores == 0)) - {3}
    assert set(indices[:, positive]) == zeros


def test_power_of_exponent_zero_is_random():
    v = view()
    rule = registry.acquisition("power", rule="max-variance", beta=0.0)
    assert torch.equal(rule(v, P).indices, registry.acquisition("random")(v, P).indices)


def test_power_needs_what_the_rule_needs_that_it_draws_by():
    posterior = registry.posterior("map", Net(mlp(2, [4], 1)), Gaussian())
    with pytest.raises(InputError, match=r"power needs weight uncertainty"):
        check(registry.acquisition("power"), posterior, 10)
    with pytest.raises(InputError, match=r"power\(rule='entropy'\) supports classes only"):
        check(registry.acquisition("power", rule="entropy"), posterior, 10)
    assert name_of(registry.acquisition("power", rule="margin")) == "power(rule='margin')"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rule": "random"}, "which random does not; allowed: entropy, .*margin, max-variance"),
        ({"rule": "power"}, "which power does not; allowed"),
        ({"rule": "variance"}, "unknown acquisition 'variance'"),
        ({"beta": -1.0}, r"beta is -1.0; it must be in \[0, inf\)"),
    ],
)
def test_power_refuses_rules_without_scores_and_wrong_settings(settings, message):
    with pytest.raises(InputError, match=message):
        registry.acquisition("power", **settings)


@pytest.mark.parametrize("name", ["max-variance", "information-gain", "entropy", "margin"])
@CLASSES
def test_scores_of_single_points_are_those_that_the_rule_chooses_by(name, likelihood, outputs):
    v, rule = view(likelihood, outputs), registry.acquisition(name)
    scores = rule.needs.scores(v)
    choice = rule(v, 1)
    assert torch.equal(choice.indices[:, 0], scores.argmax(1)) and (scores >= 0).all()
    torch.testing.assert_close(choice.scores[:, 0], scores.amax(1), rtol=1e-9, atol=1e-12)
