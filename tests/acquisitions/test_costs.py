"""Scores per cost: beside a search over all candidates, one by one."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from explore import registry
from explore.acquisitions.base import best, needs_of
from explore.core.errors import InputError
from explore.learning.learner import ActiveLearner
from explore.nets.likelihoods import Categorical, Gaussian
from explore.nets.net import Net, mlp
from tests.acquisitions.views import P, R, view

RULES = [name for name in registry.names("acquisitions") if needs_of(registry.acquisition(name)).costs]


def searched(rule, v, k):
    """Point after point the best score per cost, given those before it."""
    chosen = torch.zeros(R, 0, dtype=torch.long)
    rows = torch.arange(R).unsqueeze(1)
    for _ in range(k):
        pending = v.x[rows, chosen] if chosen.shape[1] else None
        worth = torch.full((R, P), -torch.inf, dtype=torch.float64)
        for c in range(P):
            alone = torch.zeros(R, P, dtype=torch.bool)
            alone[:, c] = True
            worth[:, c] = rule(replace(v, mask=alone, pending=pending, cost=None, targets=v.x), 1).scores[:, 0]
        worth = worth / v.cost
        chosen = torch.cat([chosen, worth.scatter(1, chosen, -torch.inf).argmax(1, keepdim=True)], 1)
    return chosen


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("likelihood", [Gaussian(), Categorical()], ids=["numbers", "classes"])
def test_the_best_score_per_cost(name, likelihood):
    needs = needs_of(registry.acquisition(name))
    if likelihood.discrete and (needs.alone == "classes" or needs.targets == "numbers"):
        pytest.skip("no batches of classes")
    rule = registry.acquisition(name, **({"alike": 0.0} if name == "epig" else {}))
    cost = torch.as_tensor(np.random.default_rng(3).uniform(0.2, 5.0, (R, P)))
    v = replace(view(likelihood, outputs=3 if likelihood.discrete else 1), cost=cost)
    v = replace(v, targets=v.x)
    found = rule(v, 3)
    assert found.indices.tolist() == searched(rule, v, 3).tolist()
    assert found.indices.tolist() != rule(replace(v, cost=None), 3).indices.tolist()


def test_what_is_worth_less_than_nothing_is_not_better_for_being_dear():
    mask = torch.ones(1, 3, dtype=torch.bool)
    found = best(torch.tensor([[-1.0, -1.0, 0.5]]), mask, 3, cost=torch.tensor([[1.0, 9.0, 9.0]]))
    assert found.indices.tolist() == [[2, 0, 1]] and found.scores.tolist() == [[0.5, -1.0, -1.0]]


def learner(cost, rule="information-gain"):
    net = Net(mlp(2, [3], 1))
    posterior = registry.posterior("bbb", net, Gaussian(), "small", epochs=2)
    x = np.random.default_rng(0).normal(size=(8, 2))
    made = ActiveLearner(posterior, x, [rule], cost=cost, samples=20)
    made.tell([0, 1, 2], [0.0, 1.0, 2.0])
    return made


def test_a_learner_goes_by_costs():
    dear = np.ones(8)
    plain = learner(dear).ask(2)
    dear[plain.indices[0].tolist()] = 1e6
    other = learner(dear).ask(2).indices[0].tolist()
    assert not set(other) & set(plain.indices[0].tolist())
    np.testing.assert_array_equal(learner(None).ask(2).indices, plain.indices)


@pytest.mark.parametrize(
    ("cost", "message"),
    [
        (np.ones(7), "cost must have one positive number for each of the 8 points"),
        (np.zeros(8), "cost must have one positive number for each of the 8 points"),
        (np.full(8, np.nan), "a cost is not a finite number"),
        (["dear"] * 8, "costs must be a numeric array"),
    ],
)
def test_what_is_no_cost(cost, message):
    with pytest.raises(InputError, match=message):
        learner(cost)
    with pytest.raises(InputError, match="random ignores costs. Use variance-reduction or epig"):
        learner(np.ones(8), "random")
