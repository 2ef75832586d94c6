"""What every acquisition rule owes. A new file in `explore/acquisitions` is tested here by existing."""

import dataclasses

import pytest
import torch

from explore import registry
from explore.acquisitions.base import View
from explore.likelihoods import Bernoulli, Categorical, Gaussian
from explore.nets import Net, mlp
from explore.rng import Rng

RULES = {name: registry.find("acquisitions", name) for name in registry.names("acquisitions")}
R, S, P = 3, 8, 12
OUTPUTS = {Gaussian(): 2, Categorical(): 3, Bernoulli(): 1}

every = pytest.mark.parametrize("name", RULES)


@pytest.fixture(params=OUTPUTS, ids=lambda x: type(x).__name__)
def view(request):
    rng, likelihood = Rng(0, dtype=torch.float64), request.param
    net = Net(mlp(2, [5], OUTPUTS[likelihood]))
    layers = net.glorot(R, rng, S)
    mask = rng.uniform(R, P) > 0.4
    mask[0] = False
    mask[0, [2, 5, 7]] = True  # as many as are asked for, and no more
    noise = likelihood.expected(likelihood.init(R, rng))
    return View(net, likelihood, rng.normal(R, P, 2), mask, lambda: layers, noise, rng.stream("acquire"))


@every
@pytest.mark.parametrize("k", [1, 3])
def test_choices_are_allowed_and_distinct(name, view, k):
    choice = RULES[name](view, k)
    assert choice.indices.shape == choice.scores.shape == (R, k)
    assert choice.indices.dtype == torch.int64 and choice.scores.isfinite().all()
    assert view.mask.gather(1, choice.indices).all()
    assert all(len(set(row)) == k for row in choice.indices.tolist())


@every
def test_the_same_view_gives_the_same_choice(name, view):
    again = dataclasses.replace(view, rng=Rng(0, dtype=torch.float64).stream("acquire"))
    one, two = RULES[name](view, 2), RULES[name](again, 2)
    assert torch.equal(one.indices, two.indices) and torch.equal(one.scores, two.scores)


# Random numbers are drawn for all replicas at once.
@pytest.mark.parametrize("name", [name for name in RULES if name != "random"])
def test_replicas_choose_for_themselves(name, view):
    whole = RULES[name](view, 2)
    for r in range(R):
        own = slice(r, r + 1)
        layers = tuple(w[own] for w in view.layers)
        alone = dataclasses.replace(
            view,
            x=view.x[own],
            mask=view.mask[own],
            draw=lambda layers=layers: layers,
            noise=None if view.noise is None else view.noise[own],
        )
        choice = RULES[name](alone, 2)
        assert torch.equal(choice.indices, whole.indices[own])
        torch.testing.assert_close(choice.scores, whole.scores[own], rtol=1e-9, atol=1e-12)
