"""What all rules that look at batches have in common.

Pools in which 60 of 100 points are nearly the same, and score highest: batches hit one of them at most. And memory
that does not grow with a pool.
"""

import dataclasses

import pytest
import torch

from explore import registry
from explore.acquisitions import base, conditioning
from explore.acquisitions.base import ShortlistWarning, check, needs_of, shortlist
from explore.core.errors import InputError
from explore.core.rng import Rng
from explore.inference import predict
from explore.inference.predict import Predictor
from explore.nets.likelihoods import Bernoulli, Categorical, Gamma, Gaussian
from explore.nets.net import Net, mlp
from tests.acquisitions.views import view
from tests.memory import Largest

SAME, OTHERS, K = 60, 40, 5
RULES = {name: registry.acquisition(name) for name in registry.names("acquisitions") if name != "random"}
LIKELIHOODS = pytest.mark.parametrize(
    ("likelihood", "outputs"), [(Gaussian(), 1), (Gaussian(), 2), (Categorical(), 3), (Bernoulli(), 1)]
)


def trap(likelihood, outputs):
    """Far from the labelled points 60 near-duplicates, on which nets disagree most; 40 others around the origin."""
    rng, small = Rng(3, dtype=torch.float64), view(likelihood, outputs)
    x = rng.normal(1, SAME + OTHERS, 2)
    x[:, :SAME] = torch.tensor([5.0, -5.0]) + 1e-4 * x[:, :SAME]
    net = Net(mlp(2, [30], outputs))
    layers = tuple(4 * w for w in net.glorot(1, rng, 200))
    tau = torch.full((1, outputs), 100.0, dtype=torch.float64)
    state = small.posterior.init(10, 1, rng)
    if not likelihood.discrete:
        state = state._replace(common=state.common._replace(noise=Gamma(tau, torch.ones_like(tau))))
    nets = Predictor(net, likelihood, layers, tau.unsqueeze(1).expand(1, 200, outputs))
    return dataclasses.replace(
        small, posterior=dataclasses.replace(small.posterior, net=net), state=state, candidates=x, sample=lambda: nets,
        labelled=type(small.labelled)(0.1 * rng.normal(1, 4, 2), small.labelled.y[:1]),
        mask=torch.ones(1, SAME + OTHERS, dtype=torch.bool), uniform=rng.uniform(1, SAME + OTHERS), rng=rng,
    )  # fmt: skip


def refused(rule, v):
    try:
        check(rule, v.posterior, 200, K)
    except InputError:
        return True
    return False


def same(choice):
    return int((choice.indices < SAME).sum())


@LIKELIHOODS
@pytest.mark.parametrize("name", [name for name, rule in RULES.items() if not needs_of(rule).alone])
def test_a_rule_that_looks_at_batches_takes_one_of_the_same(name, likelihood, outputs):
    rule, v = RULES[name], trap(likelihood, outputs)
    if not refused(rule, v):
        assert same(rule(v, K)) <= 1
        assert same(rule(dataclasses.replace(v, pending=v.x[:, :1]), K)) == 0


@LIKELIHOODS
@pytest.mark.parametrize("name", ["bait", "epig", "batch-bald", "expected-improvement", "upper-confidence-bound"])
def test_a_batch_from_a_shortlist_begins_with_the_best_of_all_and_takes_one_of_the_same(
    name, likelihood, outputs, monkeypatch
):
    rule, v = RULES[name], trap(likelihood, outputs)
    if refused(rule, v):
        return
    whole = rule(v, K)
    monkeypatch.setattr(conditioning, "SHORTLIST", 40)
    with pytest.warns(ShortlistWarning, match="among the 20 best of 100 candidates and as many others at random"):
        few = rule(v, K)
    assert few.indices[0, 0] == whole.indices[0, 0]
    torch.testing.assert_close(few.scores[:, 0], whole.scores[:, 0])
    assert same(few) <= 1
    assert len(set(few.indices[0].tolist())) == K


def test_a_shortlist_has_no_candidate_twice_and_none_that_is_masked():
    few = 12  # candidates of the second replica, of 30
    v = view(points=30, mask=torch.arange(30) < torch.tensor([[30], [few]]))
    scores = v.uniform.flip(1)
    with pytest.warns(ShortlistWarning):
        short = shortlist(v, scores, 20, torch.zeros_like(v.mask))
    assert short.view.mask.sum(1).tolist() == [20, few]
    for places, mask, best in zip(short.places, short.view.mask, scores.masked_fill(~v.mask, -1), strict=True):
        allowed = places[mask].tolist()
        assert len(set(allowed)) == len(allowed)
        assert {*best.topk(10).indices.tolist()} <= {*allowed}
    rows = torch.arange(2).unsqueeze(1)
    assert torch.equal(short.view.candidates[:, 3:5], v.x[rows, short.places[:, 3:5]])
    assert torch.equal(
        short.view.candidates[rows, torch.tensor([[4, 1], [0, 2]])],
        v.x[rows, short.places[rows, torch.tensor([[4, 1], [0, 2]])]],
    )
    assert torch.equal(short.view.uniform, v.uniform.gather(1, short.places))


@LIKELIHOODS
def test_the_pool_is_a_trap(likelihood, outputs):
    """Else the other test could not fail."""
    v = trap(likelihood, outputs)
    rule = registry.acquisition("information-gain")
    assert rule.needs.scores(v)[0].topk(K).indices.max() < SAME
    assert same(registry.acquisition("max-variance")(v, K)) == K


@LIKELIHOODS
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("batch-bald", {"label_sets": 20}),
        ("bait", {}),
        ("core-set", {}),
        ("expected-improvement", {"draws": 12}),
        ("upper-confidence-bound", {"draws": 12}),
    ],
)
def test_no_tensor_grows_with_the_pool_and_with_samples_or_labels(name, settings, likelihood, outputs, monkeypatch):
    for bound in ("BUDGET", "CACHE", "KEPT"):
        monkeypatch.setattr(predict, bound, 2**12)
    monkeypatch.setattr(base, "CACHED", 2**12)
    v, rule = view(likelihood, outputs, points=1000, samples=12), registry.acquisition(name, **settings)
    if not refused(rule, v):
        with Largest() as largest:
            rule(dataclasses.replace(v, pending=v.x[:, :2]), 3)
        assert largest.numbers <= 2**14 < 2 * 12 * 1000
