"""The prior's learned variance: bounds, groups, who refuses, and what follows it."""

import math

import pytest
import torch

from explore import registry
from explore.core.errors import InputError
from explore.core.rng import Rng
from explore.core.shapes import Batch
from explore.inference.base import Prior
from explore.inference.gaussian import best_variance
from explore.learning.fit import last_epoch
from explore.nets.likelihoods import Gaussian
from explore.nets.net import Net, mlp
from explore.testing import oracles

NET = Net(mlp(2, [3], 1))
LEARNING = ("noisy-kfac", "noisy-ekfac", "block-tridiagonal", "noisy-adam", "vogn", "full", "slang", "bbb", "whvi")


def build(name, net=NET, **settings):
    own = {"prior_variance": "learned"} | settings
    return registry.build(registry.find("posteriors", name), net, Gaussian(noise_std=0.5), own)


def batch(seed=0, n=12):
    rng = Rng(seed, dtype=torch.float64)
    x = rng.normal(2, n, 2)
    return Batch(x, x.sum(2, keepdim=True).sin())


def test_variances_stay_within_their_bounds_and_the_kl_falls_there_too():
    second = (torch.tensor([[[1e-9], [1e-9], [1e9]], [[0.5], [1.5], [3.0]]], dtype=torch.float64),)
    (apart,), (shared,) = best_variance(second, [True]), best_variance(second, [False])
    torch.testing.assert_close(apart.squeeze(2), torch.tensor([[1e-4, 1e-4, 1e2], [1.0, 1.0, 3.0]]).double())
    torch.testing.assert_close(shared.flatten(), torch.tensor([1e2, 5 / 3]).double())

    def kl(eta):  # up to a constant
        return (second[0] / eta + eta.log()).sum((1, 2))

    for eta in (1e-4, 0.01, 1.0, 1e2):
        assert (kl(apart) <= kl(torch.full_like(apart, eta))).all()


@pytest.mark.parametrize("name", LEARNING)
def test_those_that_learn_it(name):
    posterior = build(name)
    state = posterior.init(12, 2, Rng(0, dtype=torch.float64))
    default = {"vogn": 0.01}.get(name, 1.0)
    assert posterior.eta == default and all((v == default).all() for v in state.common.prior.variance)
    shapes = [v.shape[1] for v in state.common.prior.variance]
    if name in ("noisy-kfac", "noisy-ekfac", "block-tridiagonal"):
        assert shapes == [1, 1]
    elif name == "whvi":  # g and bias of the hidden layer, and the last layer's weights and bias
        assert shapes == [1, 1, 4]
    else:
        assert shapes == [3, 4]


@pytest.mark.parametrize("name", [n for n in LEARNING if n != "whvi"])
def test_the_learned_variance_of_each_group_is_its_mean_second_moment(name):
    posterior = build(name)
    state = posterior.init(12, 2, Rng(0, dtype=torch.float64))
    for i in range(3):
        state, _ = posterior.update(state, batch(), Rng(i, dtype=torch.float64))
    mean, covariance = oracles.implied_gaussian(posterior, state)
    second = oracles.unflat(mean.square() + covariance.diagonal(dim1=1, dim2=2), posterior.coordinates)
    learned = posterior.end_epoch(state).common.prior.variance
    for squares, apart, variance in zip(second, posterior.own_bias_variance, learned, strict=True):
        groups = (squares[:, :-1], squares[:, -1:]) if apart else (squares,)
        expected = torch.cat([g.mean((1, 2), keepdim=True).expand_as(g) for g in groups], 1)
        torch.testing.assert_close(variance.expand_as(expected), expected)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("tensor-factorised", {}, "TensorFactorised does not learn prior_variance; set it to a number"),
        ("map", {}, "MAP does not learn prior_variance; set it to a number"),
        ("ensemble", {}, "Ensemble does not learn prior_variance"),
        ("mc-dropout", {}, "MCDropout does not learn prior_variance"),
        ("hmc", {}, "HMC does not learn prior_variance"),
        ("whvi", {"flows": 1}, "WHVI with flows or dropout cannot learn"),
    ],
)
def test_those_that_do_not_say_so(name, settings, message):
    with pytest.raises(InputError, match=message):
        build(name, **settings)


def test_it_is_parsed_as_every_setting_is():
    cls = registry.find("posteriors", "noisy-kfac")
    assert registry.parse(cls, {"prior_variance": "learned"}) == {"prior_variance": "learned"}
    assert registry.parse(cls, {"prior_variance": "0.5"}) == {"prior_variance": 0.5}
    with pytest.raises(InputError, match="prior_variance='much' is not valid; allowed: a number or learned"):
        registry.parse(cls, {"prior_variance": "much"})


@pytest.mark.parametrize("name", ["noisy-kfac", "noisy-ekfac", "block-tridiagonal", "full", "noisy-adam", "vogn"])
@pytest.mark.parametrize("adaptive", [False, True])
def test_a_learned_variance_does_what_the_same_number_does(name, adaptive):
    if adaptive and name in ("noisy-adam", "vogn"):
        pytest.skip("its damping does not adapt")
    settings = {"adaptive_damping": True, "lr": 3.0, "extrinsic_damping": 0.1} if adaptive else {}
    fixed, learned = build(name, prior_variance=0.2, **settings), build(name, **settings)
    data, states = batch(), []
    start, other = (p.init(12, 2, Rng(0, dtype=torch.float64)) for p in (fixed, learned))
    rows = tuple(torch.full_like(v, 0.2) for v in other.common.prior.variance)
    for posterior, known in ((fixed, None), (learned, Prior(rows, rows))):
        state = start._replace(common=start.common._replace(prior=known))
        for i in range(4):
            state, _ = posterior.update(state, data, Rng(i, dtype=torch.float64))
        states.append(state)
    for one, two in zip(*(s.mean for s in states), strict=True):
        torch.testing.assert_close(one, two)
    ours, theirs = (oracles.implied_gaussian(p, s)[1] for p, s in zip((fixed, learned), states, strict=True))
    torch.testing.assert_close(ours, theirs)
    if adaptive:
        assert (states[0].damping > 0.1).any()
        torch.testing.assert_close(states[0].damping, states[1].damping)


def test_the_mean_damping_counts_every_weight_once():
    posterior = build("full", adaptive_damping=False)
    state = posterior.init(12, 2, Rng(0, dtype=torch.float64))
    state, _ = posterior.update(state, batch(), Rng(1, dtype=torch.float64))
    state = posterior.end_epoch(state)
    _, info = posterior.update(state, batch(), Rng(2, dtype=torch.float64))
    eta = oracles.flat([v * torch.ones_like(m) for v, m in zip(state.common.prior.variance, state.mean, strict=True)])
    assert eta.std() > 0.01
    torch.testing.assert_close(info["damping"], (1 / (12 * eta)).mean(1))


def test_slangs_own_variance_of_biases_is_not_learned():
    posterior = build("slang", bias_prior_variance=7.0)
    state = posterior.init(12, 2, Rng(0, dtype=torch.float64))
    state, _ = posterior.update(state, batch(), Rng(1, dtype=torch.float64))
    state = posterior.end_epoch(state)
    for rows in posterior.variances(state):
        assert (rows[:, -1] == 7.0).all() and (rows[:, :-1] < 1.0).all()
    mean, covariance = oracles.implied_gaussian(posterior, state)
    eta = oracles.flat([r * torch.ones_like(m) for r, m in zip(posterior.variances(state), state.mean, strict=True)])
    exact = oracles.kl(mean, covariance, torch.zeros_like(mean), torch.diag_embed(eta))
    torch.testing.assert_close(posterior.kl_prior(state), exact)


def test_a_failed_replica_keeps_its_variance():
    posterior = build("noisy-kfac")
    state = posterior.init(12, 2, Rng(0, dtype=torch.float64))
    state, _ = posterior.update(state, batch(), Rng(1, dtype=torch.float64))
    state = state._replace(common=state.common._replace(alive=torch.tensor([True, False])))
    (one, _), (old, _) = (s.common.prior.variance for s in (posterior.end_epoch(state), state))
    assert one[0] != old[0] and one[1] == old[1] == 1.0


def test_training_finds_the_variance_that_data_were_drawn_with():
    # Linear regression with far more data than weights: eta is then the mean square of the true weights.
    rng = Rng(3, dtype=torch.float64)
    w = math.sqrt(0.09) * rng.normal(1, 30, 1)
    x = rng.normal(1, 400, 30)
    y = x @ w + 0.1 * rng.normal(1, 400, 1)
    net = Net(torch.nn.Linear(30, 1, bias=False))
    posterior = registry.posterior(
        "noisy-kfac", net, Gaussian(noise_std=0.1), "paper", prior_variance="learned", epochs=200, batch_size=400,
        lr=0.2, beta=0.1, damping="exact", adaptive_damping=True,
    )  # fmt: skip
    state = last_epoch(posterior, x, y, Rng(4, dtype=torch.float64)).state
    assert abs(float(state.common.prior.variance[0]) / float(w.square().mean()) - 1) < 0.01


def test_members_of_a_mixture_learn_each_its_own():
    mixture = build("bbb", members=3)
    old = mixture.init(12, 2, Rng(0, dtype=torch.float64))
    old, _ = mixture.update(old, batch(), Rng(1, dtype=torch.float64))
    new = mixture.end_epoch(old)
    first = new.common.prior.variance[0]
    assert first.shape == (2, 3, 3, 1) and first[:, :, 0].flatten().unique().numel() == 6
    torch.testing.assert_close(mixture.learned(new)["prior_variance_1"], first[:, :, 0, 0].mean(1))
    assert (mixture.kl_prior(new) < mixture.kl_prior(old)).all()
