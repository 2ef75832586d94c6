"""Mixtures against their members, fitted one by one with the same random numbers."""

import math

import pytest
import torch

from explore import registry
from explore.core import tree
from explore.core.errors import InputError
from explore.core.rng import Rng
from explore.core.shapes import Batch
from explore.inference.base import Predictive, Variational
from explore.inference.members import Mixture, VariationalMixture, mixture
from explore.inference.predict import Predictor
from explore.nets.likelihoods import Categorical, Gaussian
from explore.nets.net import Net, mlp
from explore.posteriors.bbb import BBB
from explore.posteriors.ensemble import Ensemble
from explore.posteriors.mc_dropout import MCDropout
from explore.posteriors.noisy_kfac import NoisyKFAC
from explore.testing import oracles
from explore.testing.oracles import Lone, flat

R, K, N = 2, 3, 9
NET = Net(mlp(2, [4], 1).double())
MIXED = [name for name in registry.names("posteriors") if not registry.find("posteriors", name).mixture_error]
every = pytest.mark.parametrize("name", MIXED)


def rng(seed=0, **options):
    return Rng(seed, dtype=torch.float64, **options)


def data(seed=5, n=N):
    draw = rng(seed)
    x = draw.normal(R, n, 2)
    return Batch(x, x.sum(2, keepdim=True).sin() + 0.1 * draw.normal(R, n, 1))


def build(name, **settings):
    return registry.build(registry.find("posteriors", name), NET, Gaussian(), {"members": K} | settings)


def trained(posterior, batch, steps=4, numbers=rng, replicas=R):
    state = posterior.init(N, replicas, numbers(0))
    stream = numbers(1)
    for step in range(steps):
        state, info = posterior.update(state, batch, stream, step / steps)
    return posterior.finish(state, iter([batch]), stream), info


def alone(mixture, steps=4):
    """The members of all replicas, one after the other: (posterior, state, its stream of samples)."""
    for i in range(R * K):
        own = Batch(*(t[i // K : i // K + 1] for t in data()))

        def numbers(seed, i=i):
            return Lone(i, R * K, seed, dtype=torch.float64)

        state, info = trained(mixture.posterior, own, steps, numbers, 1)
        yield state, info, numbers(2)


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-7, atol=1e-9)


@every
def test_predictions_are_those_of_the_pooled_samples_of_separate_fits(name):
    mixture = build(name)
    state, info = trained(mixture, data())
    test, each = data(6, 5), 4
    found = Predictor.sample(mixture, state, K * each, rng(2))
    outs, densities = [], []
    logged: dict[str, list[torch.Tensor]] = {key: [] for key in info}
    for i, (own, own_info, stream) in enumerate(alone(mixture)):
        one = Predictor.sample(mixture.posterior, own, each, stream)
        part = Batch(*(t[i // K : i // K + 1] for t in test))
        outs.append(one.net.output(one.layers, part.x))
        densities.append(one.log_prob(part.x, part.y))  # with the noise of this member
        for key, value in own_info.items():
            logged[key].append(value)
    outs, densities = (torch.cat(parts).unflatten(0, (R, K)).flatten(1, 2) for parts in (outs, densities))  # [R, S, P]
    assert found.samples == outs.shape[1] == (K if name == "map" else K * each)
    moments = found.moments(test.x)
    close(moments.mean, outs.mean(1))
    close(moments.variance, outs.var(1))
    close(found.evaluate(test.x, test.y)["log_likelihood"], (densities.logsumexp(1) - math.log(outs.shape[1])).mean(1))
    for key, values in logged.items():
        close(info[key], torch.cat(values).view(R, K).mean(1))


@pytest.mark.parametrize("name", ["noisy-kfac", "bbb", "whvi"])
def test_what_follows_from_the_density_is_the_mean_over_separate_fits(name):
    mixture, batch = build(name), data(7)
    new, _ = trained(mixture, data(), 4)
    rows = []
    for i, (state, *_) in enumerate(alone(mixture)):
        p, own = mixture.posterior, Batch(*(t[i // K : i // K + 1] for t in batch))
        divergence, noise = p.kl_prior(state), p.likelihood.kl(state.common.noise)
        gain = p.gain(state, own, Lone(i, R * K, 3, dtype=torch.float64))
        rows.append([divergence, divergence + noise, gain, p.likelihood.expected(state.common.noise)])
    expected = [torch.cat(parts).unflatten(0, (R, K)).mean(1) for parts in zip(*rows, strict=True)]
    assert (rows[0][2] != rows[1][2]).all()  # members are not alike
    found = [mixture.kl_prior(new), mixture.divergence(new)]
    found += [mixture.gain(new, batch, rng(3)), mixture.expected_noise(new)]
    for actual, mean in zip(found, expected, strict=True):
        close(actual, mean)


def test_what_is_left_of_the_start_is_the_mean_over_separate_fits():
    mixture = build("noisy-kfac", beta=0.5)
    found = mixture.initial_curvature_share(trained(mixture, data())[0])
    assert ((found > 0) & (found < 1)).all()
    close(
        found,
        torch.cat([mixture.posterior.initial_curvature_share(state) for state, *_ in alone(mixture)])
        .view(R, K)
        .mean(1),
    )


def members_of(mixture, state):
    """The states of each member, of R replicas."""
    for i in range(K):
        own = tree.map_tensors(lambda t, i=i: t[:, i] if t.dim() > 1 else t, state)
        yield own


def test_the_divergence_bounds_that_of_the_mixture_from_above():
    mixture = build("bbb", initial_std=0.3)
    new, _ = trained(mixture, data(), 60)
    p, n = mixture.posterior, 5_000
    samples = [p.sample_coordinates(own, n, rng(9)) for own in members_of(mixture, new)]
    pooled = tuple(torch.cat(parts, 1) for parts in zip(*samples, strict=True))

    each = torch.stack([oracles.log_prob(p, own, flat(pooled)) for own in members_of(mixture, new)])
    prior = torch.distributions.Normal(0.0, 1.0).log_prob(flat(pooled)).sum(2)
    ratio, bound = each.logsumexp(0) - math.log(K) - prior, mixture.kl_prior(new)
    own, error = ratio.mean(1), 5 * ratio.std(1) / (K * n) ** 0.5
    assert (own < bound + error).all() and (bound < own + math.log(K) + error).all()
    # Members that are the same have the divergence of one.
    same = tree.map_tensors(lambda t: t[:, :1].expand_as(t) if t.dim() > 1 else t, new)
    close(mixture.kl_prior(same), p.kl_prior(next(members_of(mixture, new))))


@every
def test_one_member_is_the_posterior_to_the_bit(name):
    alone = build(name, members=1)
    assert not isinstance(alone, Mixture)
    one = Mixture(posterior=alone, members=1)
    (state, info), (own, own_info) = trained(one, data()), trained(alone, data())
    pairs = [(state, own), (info, own_info), (one.joint_sample(state, 5, rng(2)), alone.joint_sample(own, 5, rng(2)))]
    if isinstance(alone, Variational):
        made = VariationalMixture(posterior=alone, members=1)
        pairs += [(made.gain(state, data(), rng(3)), alone.gain(own, data(), rng(3)))]
    for a, b in pairs:
        for (path, left), (_, right) in zip(tree.leaves(a), tree.leaves(b), strict=True):
            if left.numel() == right.numel():  # else what all samples share stands there for each of them
                left = left.reshape(right.shape)
            assert torch.equal(left, right.expand_as(left)), path


def matrix(layers):
    """The first layer's."""
    return layers[0]


@pytest.mark.parametrize("n", [1, 2, K, 7, 99, 100])
def test_every_member_has_the_same_share_of_the_samples(n):
    several = mixture(NoisyKFAC(net=NET, likelihood=Gaussian()), K)
    replicas = 2000
    state = several.init(1e30, replicas, rng())  # so many data leave no noise in the weights
    drawn = matrix(several.sample(state, n, rng(2)))
    mean = state.mean[0][:, :, None, :1, :1]  # [R, K, 1, 1, 1]
    member = (drawn[:, None, :, :1, :1] - mean).abs().argmin(1).flatten(1)
    assert member.shape == (replicas, n)
    counts = torch.stack([(member == i).sum(1) for i in range(K)], 1)
    assert set(counts.flatten().tolist()) == {n // K, -(-n // K)}
    rest = n % K / K  # how many more a member gives, on the average
    assert ((counts.double().mean(0) - n // K - rest).abs() <= 5 * (rest * (1 - rest) / replicas) ** 0.5).all()


def test_samples_have_the_noise_of_their_own_member():
    several = mixture(BBB(net=NET, likelihood=Gaussian(), initial_std=1e-9), K)
    state = several.init(N, 50, rng())
    noise = state.common.noise
    rates = 10.0 ** torch.arange(0, 4 * K, 4, dtype=torch.float64).view(1, K, 1).expand_as(
        noise.rate
    )  # precisions four orders apart
    state = state._replace(common=state.common._replace(noise=noise._replace(shape=noise.shape * 20, rate=1 / rates)))
    for n in (1, 2, 5, 3 * K):
        layers, tau = several.joint_sample(state, n, rng(2))
        distance = (matrix(layers).unsqueeze(1) - state.mean[0][0].unsqueeze(2)).abs().sum((3, 4))  # [R, K, S]
        assert (tau / 120).log10().div(4).round().eq(distance.argmin(1).unsqueeze(2)).all()


@pytest.mark.parametrize("broken", range(K))
def test_a_replica_fails_with_any_of_its_members(broken):
    mixture, batch = build("noisy-adam"), data()
    state, _ = trained(mixture, batch)
    hurt = tree.map_tensors(torch.clone, state)
    hurt.momentum[0][1, broken] = 1e308  # of one member of the second replica: the next step overflows
    hurt.mean[0][1, broken] = 1e308
    new, _ = mixture.update(hurt, batch, rng(4))
    well, _ = mixture.update(state, batch, rng(4))
    assert new.common.alive.tolist() == [True, False]
    for (path, a), (_, b), (_, old) in zip(*map(tree.leaves, (new, well, hurt)), strict=True):
        if a.dim() and path != "common.alive":
            assert torch.equal(a[0], b[0]) and torch.equal(a[1], old[1]), path
    later, _ = mixture.update(new, batch, rng(5))
    assert later.common.alive.tolist() == [True, False]


def test_arms_share_the_numbers_of_their_members():
    mixture = build("noisy-kfac")
    batch = Batch(*(torch.cat([t, t]) for t in data()))
    state, _ = trained(mixture, batch, numbers=lambda seed: rng(seed, arms=2), replicas=2 * R)
    for path, leaf in tree.leaves((state, mixture.sample(state, 7, rng(3, arms=2)))):
        if leaf.dim():
            torch.testing.assert_close(leaf[:R], leaf[R:], rtol=1e-9, atol=1e-12, msg=path)
    some = mixture.sample(state, 1, rng(3, arms=2))[0]
    torch.testing.assert_close(some[:R], some[R:], rtol=1e-9, atol=1e-12)


def test_members_differ_in_start_and_noise():
    mixture = build("noisy-kfac")
    start = mixture.init(N, R, rng())
    assert (start.mean[0][:, 0] != start.mean[0][:, 1]).all()
    same = tree.map_tensors(lambda t: t[:, :1].expand_as(t) if t.dim() > 1 else t, start)
    moved, _ = mixture.update(same, data(), rng(1))
    assert not torch.allclose(moved.mean[0][:, 0], moved.mean[0][:, 1])


def test_nothing_is_certain_about_several_nets():
    net = MCDropout(net=NET, likelihood=Gaussian(), rate=0.0)
    assert net.certain and not mixture(net, 2).certain and Mixture(posterior=net, members=1).certain
    assert not mixture(BBB(net=NET, likelihood=Gaussian()), 2).certain


def test_settings_are_those_of_the_posterior():
    mixture = build("bbb", epochs=7, kl_weight=0.3, batch_norm="adam", gain_step=0.2, batch_size=4)
    p = mixture.posterior
    for name in ("net", "likelihood", "epochs", "batch_size", "batch_norm", "batch_norm_lr", "whole", "coordinates"):
        assert getattr(mixture, name) == getattr(p, name)
    assert (mixture.kl_weight, mixture.gain_step) == (0.3, 0.2)
    assert mixture == build("bbb", epochs=7, kl_weight=0.3, batch_norm="adam", gain_step=0.2, batch_size=4)
    assert mixture != build("bbb", epochs=8, kl_weight=0.3, batch_norm="adam", gain_step=0.2, batch_size=4)
    assert not hasattr(build("mc-dropout"), "gain") and not hasattr(build("mc-dropout"), "divergence")


def test_an_ensembles_members_are_its_own():
    made = registry.posterior("ensemble", NET, Gaussian(), members=4)
    assert type(made) is Ensemble and made.members == 4
    with pytest.raises(InputError, match="an ensemble is already a mixture"):
        mixture(made, 2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: build("hmc"), "hmc samples the exact posterior, .* use more chains"),
        (lambda: mixture(build("bbb"), 2), "a mixture cannot be mixed again"),
        (lambda: build("bbb", members=0), r"members is 0; it must be in \[1, 1e4\]"),
        (lambda: registry.posterior("bbb", NET, Gaussian(), member=3), "unknown setting 'member'; allowed: .*members"),
    ],
)
def test_mixture_of_unsupported_posterior_is_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_classes_have_no_noise():
    mixture = registry.posterior("bbb", Net(mlp(2, [4], 3).double()), Categorical(), members=K)
    state = mixture.init(N, R, rng())
    assert mixture.expected_noise(state) is None and mixture.joint_sample(state, 7, rng(2))[1] is None


def test_every_other_posterior_is_mixed():
    everyone = set(registry.names("posteriors"))
    assert everyone - set(MIXED) == {"ensemble", "gp", "hmc", "last-layer", "mclmc"}
    assert all(issubclass(registry.find("posteriors", name), Predictive) for name in everyone)
