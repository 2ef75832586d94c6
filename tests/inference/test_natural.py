"""The steps of natural-gradient posteriors."""

import pytest
import torch
from torch import nn

from explore import registry
from explore.core import tree
from explore.core.rng import Rng
from explore.core.shapes import Batch, Means
from explore.inference import predict
from explore.inference.structures.base import sample_gradients
from explore.inference.updates import natural, steps
from explore.inference.updates.steps import train_pass
from explore.learning.fit import fit
from explore.nets.likelihoods import Categorical, Gaussian
from explore.nets.net import Net, mlp
from tests import oracles

MODULE = mlp(2, [4], 3).double()
NET, LIKELIHOOD = Net(MODULE), Gaussian(noise_std=0.5)
RNG = Rng(0, dtype=torch.float64)
X, Y = RNG.normal(2, 6, 2), RNG.normal(2, 6, 3)
WEIGHTS = NET.glorot(2, RNG, 4)


def method(name, net, likelihood, **settings):
    """By the defaults of its class, which are its paper's."""
    return registry.build(registry.find("posteriors", name), net, likelihood, settings)


def gradient(x, y, weights):
    noise = LIKELIHOOD.sample_noise(LIKELIHOOD.init(3, 2, RNG), weights[0].shape[1], RNG)
    out, pullback = NET.forward(weights, x)
    return oracles.flat(natural.mean_gradient(pullback(LIKELIHOOD.score(noise, out, y.unsqueeze(1)))))


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-8, atol=1e-10)


def test_mean_gradient_is_the_average_over_examples_and_samples():
    jacobian = oracles.jacobians(MODULE, WEIGHTS, X, NET.shapes)
    score = (Y.unsqueeze(1) - oracles.run(MODULE, WEIGHTS, X)) / 0.25
    close(gradient(X, Y, WEIGHTS), torch.einsum("rsbo,rsbow->rw", score, jacobian) / (4 * 6))


def test_mean_gradient_ignores_batch_size_and_number_of_samples():
    whole = gradient(X, Y, WEIGHTS)
    close((gradient(X[:, :3], Y[:, :3], WEIGHTS) + gradient(X[:, 3:], Y[:, 3:], WEIGHTS)) / 2, whole)
    close(gradient(X, Y, tuple(w.repeat(1, 2, 1, 1) for w in WEIGHTS)), whole)
    parts = [gradient(X, Y, tuple(w[:, p] for w in WEIGHTS)) for p in (slice(2), slice(2, 4))]
    close(sum(parts) / 2, whole)


def test_mean_gradient_sums_over_positions():
    net = Net(nn.Sequential(nn.Conv2d(1, 2, 2), nn.Flatten()))
    x, (w,) = RNG.normal(2, 3, 1, 3, 3), net.glorot(2, RNG, 2)
    w.requires_grad_()
    out = net.output((w,), x)
    (expected,) = torch.autograd.grad(out.sum() / (2 * 3), w)
    _, pullback = net.forward((w,), x)
    close(natural.mean_gradient(pullback(torch.ones_like(out)))[0], expected.sum(1))


def outer_products(kind, seed=0):
    posterior = method("noisy-adam", NET, LIKELIHOOD)
    noise = LIKELIHOOD.sample_noise(LIKELIHOOD.init(3, 2, RNG), 4, RNG)
    seen = train_pass(posterior, posterior.init(6, 2, RNG), WEIGHTS, noise, Batch(X, Y))
    return squares(steps.fisher_taps(kind, LIKELIHOOD, seen, Rng(seed, dtype=torch.float64)))


def squares(taps):
    g = torch.cat([sample_gradients(t).flatten(3) for t in taps], 3)
    return torch.einsum("rsbv,rsbw->rvw", g, g) / (g.shape[1] * g.shape[2])


def test_exact_fisher_is_the_gauss_newton_matrix_and_the_mean_of_the_true_one():
    jacobian = oracles.jacobians(MODULE, WEIGHTS, X, NET.shapes)
    expected = torch.einsum("rsbov,rsbow->rvw", jacobian, jacobian) / (0.25 * 4 * 6)
    close(outer_products("exact"), expected)
    draws = torch.stack([outer_products("true", seed) for seed in range(400)])
    assert ((draws.mean(0) - expected).abs() <= 5 * draws.std(0) / 400**0.5 + 1e-12).all()
    assert torch.equal(outer_products("exact", 0), outer_products("exact", 1))  # nothing is drawn


@pytest.mark.parametrize("likelihood", [LIKELIHOOD, Categorical()], ids=["gaussian", "categorical"])
def test_fisher_matrices_of_both_kinds_have_one_mean_where_examples_meet_in_batch_statistics(likelihood):
    module = nn.Sequential(nn.Linear(2, 3, bias=False), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 3))
    posterior = method("noisy-adam", Net(module), likelihood)
    state, y = posterior.init(5, 1, RNG), RNG.normal(1, 5, 3)
    noise = likelihood.sample_noise(state.common.noise, 2, RNG)
    batch = Batch(RNG.normal(1, 5, 2), y.argmax(2) if likelihood.discrete else y)
    seen = train_pass(posterior, state, posterior.net.glorot(1, RNG, 2), noise, batch)
    # Each example's target acts on all others, and targets are independent: their outer products add up.
    expected, roots = 0.0, likelihood.fisher_root(seen.noise, seen.out)
    for example in range(5):
        alone = torch.zeros_like(roots)
        alone[:, :, :, example] = roots[:, :, :, example]
        expected = expected + sum(squares(seen.pullback(root)) for root in alone)
    for kind in ("exact", "true"):
        rngs = (Rng(seed, dtype=torch.float64) for seed in range(400))
        draws = torch.stack([squares(steps.fisher_taps(kind, likelihood, seen, rng)) for rng in rngs])
        assert ((draws.mean(0) - expected).abs() <= 5 * draws.std(0) / 400**0.5 + 1e-12).all(), kind


def test_empirical_fisher_takes_the_targets_of_the_data():
    jacobian = oracles.jacobians(MODULE, WEIGHTS, X, NET.shapes)
    score = (Y.unsqueeze(1) - oracles.run(MODULE, WEIGHTS, X)) / 0.25
    g = torch.einsum("rsbo,rsbow->rsbw", score, jacobian)
    close(outer_products("empirical"), torch.einsum("rsbv,rsbw->rvw", g, g) / (4 * 6))


def test_clipping_bounds_the_change_of_the_predictions_and_leaves_smaller_steps_alone():
    fisher = torch.tensor([[[4.0, 1.0]], [[4.0, 1.0]]])
    v = torch.tensor([[[2.0, 1.0]], [[0.02, 0.01]]])
    d, lr = v / fisher, 0.5
    (step,) = steps.clipped((d,), (v,), lr, 0.1)
    change = (lr**2 * fisher * step.square()).sum((1, 2))
    torch.testing.assert_close(change, torch.tensor([0.1, 0.25 * 2e-4]))
    torch.testing.assert_close(step[0] / d[0], (step[0] / d[0]).mean().expand(1, 2))
    assert steps.clipped((d,), (v,), lr, None)[0] is d


@pytest.mark.parametrize("name", ["noisy-kfac", "noisy-ekfac"])
def test_steps_on_images_are_as_long_as_the_papers_in_the_end(name):
    """The paper adds up steps of 0.01, each clipped at 0.001, with momentum 0.9."""
    settings = registry.settings_in(registry.find("posteriors", name), "paper-image")
    for size in (1.0, 1e-3):
        v = d = torch.full((1, 2, 3), size)
        velocity = torch.zeros_like(v)
        for _ in range(200):
            velocity = 0.9 * velocity + 0.01 * steps.clipped((d,), (v,), 0.01, 1e-3)[0]
        (step,) = steps.clipped((d,), (v,), settings["lr"], settings["kl_clip"])
        torch.testing.assert_close(settings["lr"] * step, velocity)


def test_damping_rises_where_a_step_overshoots_and_falls_where_it_stops_short():
    overshoot = torch.tensor([0.1, 0.7, 1.5, 2.5, float("nan")])
    damping, accepted = steps.adapt(torch.ones(5), overshoot)
    torch.testing.assert_close(damping, torch.tensor([19 / 20, 1.0, 20 / 19, 2.0, 2.0]))
    assert accepted.tolist() == [True, True, True, False, False]


@pytest.mark.parametrize("lr, factor", [(0.4, 19 / 20), (0.8, 1.0), (1.2, 20 / 19), (2.2, 2.0)])
def test_overshoot_of_a_linear_net_is_the_step_size(lr, factor):
    """With known noise and the dense Fisher matrix the quadratic model is the objective itself."""
    x, rng = RNG.normal(1, 8, 2), Rng(0, dtype=torch.float64)
    settings: dict = {"beta": 1.0, "fisher": "exact", "momentum": 0.0, "extrinsic_damping": 0.01, "lr": lr}
    posterior = method("full", Net(nn.Linear(2, 1).double()), Gaussian(noise_std=0.5), **settings)
    state = posterior.init(8, 1, rng)._replace(damping=torch.full((1,), 0.1, dtype=torch.float64))
    gamma = 1 / 8
    after, _ = posterior.update(state, Batch(x, x[..., :1]), rng)
    close(after.damping, (gamma + state.damping) * factor - gamma)
    assert torch.equal(after.mean[0], state.mean[0]) == (factor == 2)


def test_adaptive_damping_saves_a_fit_that_diverges_without():
    x = Rng(3, dtype=torch.float64).normal(2, 200, 3)
    x[:, ::50] *= 5  # a few examples far from the others, and steps far too large for them
    y, error = x[..., :1].sin(), {}
    settings: dict = {"lr": 0.5, "beta": 0.5, "batch_size": 10, "epochs": 5}
    for adaptive in (False, True):
        posterior = method(
            "noisy-kfac", Net(mlp(3, [20], 1).double()), Gaussian(), adaptive_damping=adaptive, **settings
        )
        *_, last = fit(posterior, x, y, Rng(0, dtype=torch.float64))
        predictor = predict.Predictor.sample(posterior, last.state, 50, Rng(1, dtype=torch.float64))
        error[adaptive] = (predictor.moments(x).mean - y).square().mean((1, 2)).sqrt()
    assert (error[False] > 100).all() and (error[True] < 1).all(), error


def overshooting(net, x, y, **settings):
    """A posterior of which the first step is far too long in replica 0 and short in the others, before that step."""
    own: dict = {"lr": 0.05, "fisher": "exact", "statistics_interval": 10**9, "extrinsic_damping": 0.01}
    posterior = method("noisy-kfac", net, LIKELIHOOD, **own | settings)
    return posterior, posterior.init(6, len(x), Rng(1, dtype=torch.float64)), Batch(x, y)


# The Fisher matrix stays the identity, which is far too small for the first replica's inputs.
UNEQUAL = X * torch.tensor([30.0, 0.1], dtype=torch.float64)[:, None, None]


def test_a_step_taken_back_renews_the_factors_of_its_own_replica_alone():
    posterior, state, batch = overshooting(NET, UNEQUAL, Y, factor_interval=50)
    new, _ = posterior.update(state, batch, Rng(2, dtype=torch.float64))
    assert new.common.taken.tolist() == [0, 1] and (new.damping > state.damping).tolist() == [True, False]
    expected, _ = posterior.structure.factor(state.statistics, 1 / 6 + new.damping)
    for (path, factor), (_, mine), (_, old) in zip(
        *map(tree.leaves, (new.step_factor, expected, state.step_factor)), strict=True
    ):
        assert torch.equal(factor[0], mine[0]) and not torch.equal(factor[0], old[0]), path
        assert torch.equal(factor[1], old[1]), path


def test_damping_does_not_run_away_between_two_factorisations():
    posterior, state, batch = overshooting(NET, UNEQUAL, Y, factor_interval=50)
    found = []
    for _ in range(49):
        state, _ = posterior.update(state, batch, Rng(2, dtype=torch.float64))
        found.append(state.damping)
    once_taken = int(state.common.taken[0])
    assert once_taken > 30 and torch.stack(found).max() < 2 ** (49 - once_taken)


@pytest.mark.parametrize("policy", ["frozen", "adam"])
def test_a_step_taken_back_leaves_no_trace_in_the_next_one(policy):
    """But for the damping: moving averages count the steps that they saw."""
    net = Net(nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3)))
    posterior, state, batch = overshooting(net, X, Y, lr=5.0, batch_norm=policy)
    after, _ = posterior.update(state, batch, Rng(2, dtype=torch.float64))
    assert after.common.taken.tolist() == [0, 0]
    for _ in range(20):
        fresh = state._replace(damping=after.damping)
        one, two = (posterior.update(s, batch, Rng(3, dtype=torch.float64))[0] for s in (after, fresh))
        for (path, a), (_, b) in zip(tree.leaves(one), tree.leaves(two), strict=True):
            assert path == "common.step" or torch.equal(a, b), path
        if bool((one.common.taken > 0).all()):
            return
        after = one
    raise AssertionError("no step was taken")


@pytest.mark.parametrize("name", ["noisy-kfac", "noisy-ekfac", "full", "block-tridiagonal"])
def test_damping_of_one_replica_leaves_the_others_as_they_are_bit_for_bit(name):
    x, y, rng = X.float(), Y.float(), Rng(1)
    posterior = method(name, Net(mlp(2, [4], 3)), LIKELIHOOD, beta=0.1)
    state = posterior.init(6, 2, rng)
    state, _ = posterior.update(state, Batch(x, y), rng)
    raised = state._replace(damping=state.damping + torch.tensor([0.3, 0.0]))
    one, two = (posterior.update(s, Batch(x, y), Rng(2))[0] for s in (state, raised))
    assert not torch.equal(one.mean[0][0], two.mean[0][0])
    for (path, a), (_, b) in zip(tree.leaves(one), tree.leaves(two), strict=True):
        assert not a.dim() or torch.equal(a[1], b[1]), path


@pytest.mark.parametrize("name", ["noisy-kfac", "full", "block-tridiagonal"])
def test_a_replica_whose_step_cannot_be_damped_fails_alone(name):
    posterior, rng = method(name, NET, LIKELIHOOD, beta=0.1), Rng(1, dtype=torch.float64)
    state, _ = posterior.update(posterior.init(6, 3, rng), Batch(*(torch.cat([t, t[:1]]) for t in (X, Y))), rng)
    damping = torch.tensor([torch.nan, 0.3, 0.0], dtype=torch.float64)
    sampling, step_factor, ok = posterior._factor(state.statistics, damping, posterior.gamma(state.common))
    expected, _ = posterior.structure.factor(state.statistics, posterior.gamma(state.common) + damping)
    assert ok.tolist() == [False, True, True]
    for (path, a), (_, b), (_, c) in zip(*map(tree.leaves, (step_factor, expected, sampling)), strict=True):
        assert torch.equal(a[1:], b[1:]) and torch.equal(a[2], c[2]), path


@pytest.mark.parametrize("name", ["noisy-adam", "noisy-kfac", "noisy-ekfac", "full", "slang", "vogn"])
def test_without_weight_noise_gradients_are_taken_at_the_mean(name, monkeypatch):
    net, seen = Net(MODULE), []
    forward = net.train_forward

    def noted(weights, x, seed):
        seen.append(weights)
        return forward(weights, x, seed=seed)

    monkeypatch.setattr(net, "train_forward", noted)
    posterior = method(name, net, LIKELIHOOD, weight_noise=False)
    state = posterior.init(6, 2, Rng(1, dtype=torch.float64))
    state, _ = posterior.update(state, Batch(X, Y), Rng(2, dtype=torch.float64))
    posterior.update(state, Batch(X, Y), RNG)
    method(name, net, LIKELIHOOD).update(state, Batch(X, Y), RNG)
    mean, _, _ = posterior.gaussian(state)
    _, weights, noisy = seen
    assert all(torch.equal(w, m.unsqueeze(1)) for w, m in zip(weights, mean, strict=True))
    assert noisy[0].shape[1] == posterior.samples and not torch.equal(noisy[0][:, :1], weights[0])


@pytest.mark.parametrize("name", ["noisy-adam", "noisy-kfac", "noisy-ekfac", "full", "slang", "vogn"])
def test_a_warm_start_takes_gradients_at_the_mean_and_then_at_samples(name):
    """Bit for bit as by hand."""
    warm, still, noisy = (
        method(name, NET, LIKELIHOOD, **own) for own in ({"warm_start": 0.5}, {"weight_noise": False}, {})
    )
    rng, other = (Rng(1, dtype=torch.float64) for _ in range(2))
    state, by_hand = (warm.init(6, 2, each) for each in (rng, other))
    for step in range(6):
        progress = step / 6
        state, _ = warm.update(state, Batch(X, Y), rng, progress)
        by_hand, _ = (still if progress < 0.5 else noisy).update(by_hand, Batch(X, Y), other, progress)
    for (path, a), (_, b) in zip(tree.leaves(state), tree.leaves(by_hand), strict=True):
        assert torch.equal(a, b), path


def test_statistics_are_updated_at_their_interval():
    posterior = method("noisy-kfac", NET, LIKELIHOOD, statistics_interval=2)
    rng = Rng(1, dtype=torch.float64)
    states = [posterior.init(6, 2, rng)]
    for _ in range(2):
        states.append(posterior.update(states[-1], Batch(X, Y), rng)[0])
    moments = [state.statistics[0].inputs for state in states]
    assert torch.equal(moments[1], moments[0]) and not torch.equal(moments[2], moments[1])


@pytest.mark.parametrize("name", ["noisy-kfac", "noisy-ekfac", "block-tridiagonal", "full"])
def test_what_is_left_of_the_start_is_the_share_of_its_diagonal(name):
    """By the diagonals that it began with, where gradients are small."""
    settings = {"lr": 1e-12, "weight_noise": False, "fisher": "exact", "statistics_interval": 2, "beta": 0.2}
    posterior = method(name, NET, LIKELIHOOD, adaptive_damping=False, **settings)
    state = start = posterior.init(6, 2, Rng(1, dtype=torch.float64))
    assert posterior.initial_curvature_share(start).gt(0.9).all()
    for _ in range(7):  # three of which have statistics
        state, _ = posterior.update(state, Batch(0.1 * X, Y), RNG)
    levels = ([m.diagonal(dim1=1, dim2=2).mean(1) for m in matrices(s.statistics)] for s in (start, state))
    shares = [0.8**3 * old / new for old, new in zip(*levels, strict=True)]
    assert len(shares) == (1 if name == "full" else 4)
    torch.testing.assert_close(posterior.initial_curvature_share(state), torch.stack(shares).amax(0), rtol=0.05, atol=0)


def matrices(statistics):
    """Those within layers."""
    if isinstance(statistics, torch.Tensor):
        return [statistics]
    return [m for q in getattr(statistics, "within", statistics) for m in getattr(q, "moments", q)]


def test_power_decay():
    assert [steps.power_decay(t, 0.5) for t in (1, 4, 9)] == [1 / 2, 1 / 3, 1 / 4]
    assert steps.power_decay(7, 0.0) == 1.0


def test_momentum_of_a_constant_gradient_is_that_gradient():
    gradient: Means = (torch.tensor([[[3.0, -2.0]]]),)
    average: Means = (torch.zeros(1, 1, 2),)
    for step in range(1, 5):
        average, corrected = steps.momentum(average, gradient, 0.9, 1 - 0.9**step)
        torch.testing.assert_close(average[0], (1 - 0.9**step) * gradient[0])
        torch.testing.assert_close(corrected, gradient)


def test_momentum_is_corrected_by_the_steps_of_each_replica():
    m: Means = (torch.tensor([[[3.0, -2.0]], [[1.0, 4.0]]]),)
    _, corrected = steps.momentum(m, m, 0.9, 1 - 0.9 ** torch.tensor([1.0, 5.0]))
    torch.testing.assert_close(corrected[0], m[0] / (1 - 0.9 ** torch.tensor([1.0, 5.0]))[:, None, None])


def test_decay_is_one_until_its_point():
    def decay(progress, at, factor, schedule="step"):
        settings = {"lr_decay_at": at, "lr_decay": factor, "lr_schedule": schedule}
        return method("noisy-kfac", NET, LIKELIHOOD, **settings).schedule(progress)

    assert [decay(p, 0.5, 0.1) for p in (0.0, 0.499, 0.5, 1.0)] == [1.0, 1.0, 0.1, 0.1]
    linear = [decay(p, 0.2, 0.0, "linear") for p in (0.0, 0.2, 0.6, 0.9, 1.0)]
    assert linear == pytest.approx([1, 1, 0.5, 0.125, 0], abs=1e-12)
    assert decay(0.6, 0.2, 0.5, "linear") == pytest.approx(0.75)
    assert decay(1.0, 1.0, 0.1, "linear") == decay(1.0, 1.0, 0.1) == 1.0
