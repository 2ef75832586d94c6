"""The bonuses without a posterior, against slow ones."""

from collections import Counter

import numpy as np
import pytest
import torch
from gymnasium import spaces

from explore import registry
from explore.core.errors import InputError
from explore.core.rng import Rng
from explore.vime.bonuses.count import Count, CountSettings
from explore.vime.bonuses.e3b import E3B, E3BSettings
from explore.vime.bonuses.icm import ICM, ICMSettings
from explore.vime.bonuses.novelty import Novelty, NoveltySettings
from explore.vime.bonuses.rnd import RND
from explore.vime.replay import Replay
from explore.vime.reward import IntrinsicReward, Transitions
from explore.vime.sb3 import VIMEReplayBuffer

SIZE, ACTIONS, N = 3, 2, 40
OWN = [name for name in registry.names("bonuses") if not hasattr(registry.find("bonuses", name).Settings, "posterior")]


def transitions(n=N, seed=0, copies=4, episode=5):
    """Steps of copies side by side, in episodes of `episode` steps."""
    rng = np.random.default_rng(seed)
    o, a, after = (rng.normal(size=(n, size)).astype(np.float32) for size in (SIZE, ACTIONS, SIZE))
    copy, step = np.arange(n) % copies, np.arange(n) // copies
    return Transitions(o, a, after, np.stack([copy, seed * 100 + step // episode], 1))


def made(bonus, **settings):
    boxes = (spaces.Box(-np.inf, np.inf, (size,), np.float32) for size in (SIZE, ACTIONS))
    return IntrinsicReward(*boxes, bonus=bonus, minimum=20, seed=3, **settings)


def trained(cls, settings):
    """A model that has learned N transitions, and others on its scales."""
    model, replay = cls(settings, SIZE + ACTIONS, SIZE, Rng(0)), Replay(1000, SIZE + ACTIONS, SIZE)
    for seed in (0, 1):
        seen = transitions(seed=seed)
        replay.add(*tensors(seen))
        model.train(replay, Rng(seed))
    return model, *tensors(transitions(seed=2))


def tensors(t):
    return torch.from_numpy(np.concatenate([t.observations, t.actions], 1)), torch.from_numpy(t.following)


@pytest.mark.parametrize("bonus", OWN)
def test_a_saved_bonus_goes_on_as_if_nothing_had_happened(bonus):
    one, two = made(bonus), made(bonus)
    for seed in (1, 2):
        one.batch(transitions(seed=seed))
    two.load_state_dict(one.state_dict())
    for seed in (3, 4, 5):
        ours, theirs = (reward.batch(transitions(seed=seed)) for reward in (one, two))
        np.testing.assert_array_equal(ours.raw, theirs.raw)
        np.testing.assert_array_equal(ours.scaled, theirs.scaled)
    assert ours.raw.any()
    with pytest.raises(InputError, match="saved with bonus="):
        made("rnd" if bonus != "rnd" else "icm").load_state_dict(one.state_dict())


@pytest.mark.parametrize("bonus", OWN)
def test_a_bonus_depends_on_its_seed_alone_and_draws_no_global_numbers(bonus):
    found = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        before = torch.random.get_rng_state()
        reward = made(bonus)
        found.append([reward.batch(transitions(seed=i)).raw for i in range(3)])
        assert torch.equal(before, torch.random.get_rng_state())
    np.testing.assert_array_equal(found[0], found[1])


def test_distillation_pays_less_for_what_it_has_learned():
    reward = made("rnd")
    first = [np.mean(reward.batch(transitions(200, i)).raw) for i in range(12)]
    assert not first[0] and first[-1] < 0.3 * first[1]
    far = transitions(200, 20)
    far.following[:] += 4
    assert np.mean(reward.score(far)) > 3 * first[-1]
    model, inputs, following = trained(RND, RND.Settings())
    y = model.standard(inputs, following)[1]
    gap = model.nets["fixed"](y) - model.nets["learning"](y)
    torch.testing.assert_close(model.score(inputs, following, Rng(0)), (gap**2).sum(1).detach())
    assert not any(p.requires_grad for p in model.nets["fixed"].parameters())


def test_curiosity_is_the_error_of_the_forward_model():
    model, inputs, following = trained(ICM, ICMSettings(units=8, features=5))
    x, y = model.standard(inputs, following)
    with torch.no_grad():
        before, after = (model.nets["encoder"](o) for o in (x[:, :SIZE], y))
        forward = ((model.nets["dynamics"](torch.cat([before, x[:, SIZE:]], 1)) - after) ** 2).sum(1) / 2
        inverse = ((model.nets["inverse"](torch.cat([before, after], 1)) - x[:, SIZE:]) ** 2).mean(1)
    torch.testing.assert_close(model.score(inputs, following, Rng(0)), forward)
    torch.testing.assert_close(model.loss(x, y).detach(), 0.2 * forward + 0.8 * inverse)


@pytest.mark.parametrize("batches", [1, 2, 5])
def test_counts_are_those_of_a_dictionary(batches):
    """Also after the scales, and with them the codes, were computed anew."""
    model, replay = Count(CountSettings(bits=7), SIZE + ACTIONS, SIZE, Rng(0)), Replay(10**4, SIZE + ACTIONS, SIZE)
    for seed in range(batches):
        replay.add(*tensors(transitions(seed=seed)))
        model.train(replay, Rng(seed))
    expected = Counter(model._hashed(model.standard(replay.inputs, replay.next)[1]).tolist())
    inputs, following = tensors(transitions(200, 9))
    codes = model._hashed(model.standard(inputs, following)[1]).tolist()
    np.testing.assert_allclose(model.score(inputs, following, Rng(0)), [(1 + expected[c]) ** -0.5 for c in codes], 1e-6)
    assert 0 < sum(c in expected for c in codes) and len(expected) > 5


def episodes(t):
    """Row numbers of each episode, in order."""
    return [np.flatnonzero((t.episodes == episode).all(1)) for episode in np.unique(t.episodes, axis=0)]


def test_the_elliptical_bonus_is_that_of_a_dense_inverse():
    model, inputs, following = trained(E3B, E3BSettings(units=8, features=5, ridge=0.3))
    t = transitions(seed=2)
    found = torch.cat([  # in two calls, which cut an episode
        model.follow(inputs[part], following[part], torch.tensor(t.episodes)[part], Rng(0))
        for part in (slice(0, 26), slice(26, N))
    ]).double()  # fmt: skip
    features = model.encode(model.standard(inputs, following)[1]).detach().double()
    for rows in episodes(t):
        moments = 0.3 * torch.eye(5, dtype=torch.float64)
        for row in rows:
            f = features[row]
            torch.testing.assert_close(found[row], f @ torch.linalg.solve(moments, f), rtol=1e-4, atol=1e-6)
            moments += torch.outer(f, f)


@pytest.mark.parametrize(("neighbours", "memory"), [(10, 1000), (2, 1000), (3, 4)])
def test_episodic_novelty_is_that_of_a_plain_loop(neighbours, memory):
    settings = NoveltySettings(units=8, features=5, neighbours=neighbours, memory=memory, lifelong=None)
    model, inputs, following = trained(Novelty, settings)
    t = transitions(seed=2, episode=7)
    found = model.follow(inputs, following, torch.tensor(t.episodes), Rng(0))
    features, total, number = model.encode(model.standard(inputs, following)[1]).detach(), 0.0, 0
    seen: dict[tuple[int, ...], list[torch.Tensor]] = {}
    for step in range(N // 4):  # copies share the running mean of distances
        every = []
        for row in range(4 * step, 4 * step + 4):
            past = seen.setdefault(tuple(t.episodes[row]), [])
            near = sorted(float(((features[row] - f) ** 2).sum()) for f in past[-memory:])[:neighbours]
            every.append((row, near))
            total, number = total + sum(near), number + len(near)
            past.append(features[row])
        for row, near in every:
            kernel = [0.001 / (max(d / (total / number) - 0.008, 0) + 0.001) for d in near]
            similarity = sum(kernel) ** 0.5 + 0.001
            assert float(found[row]) == pytest.approx(0 if similarity > 8 else 1 / similarity, rel=1e-4)


def test_a_lifelong_bonus_multiplies():
    alone, both = (made("e3b", lifelong=name) for name in (None, "rnd"))
    for seed in (1, 2, 3):
        raws = [reward.batch(transitions(200, seed)).raw for reward in (alone, both)]
    ratio = raws[1] / raws[0]
    assert (ratio >= 1 - 1e-6).all() and (ratio <= 5 + 1e-6).all() and np.ptp(ratio) > 0.1
    assert np.isfinite(made("e3b", lifelong="kl").batch(transitions(200)).raw).all()
    for name, why in (("novelty", "episodic"), ("x", "unknown bonus"), ("builtins:dict", "must be a subclass")):
        with pytest.raises(InputError, match=why):
            made("e3b", lifelong=name)


def test_episodic_bonuses_are_refused_where_there_are_no_episodes():
    box = spaces.Box(-1, 1, (SIZE,), np.float32)
    with pytest.raises(InputError, match="e3b needs the episode so far"):
        VIMEReplayBuffer(100, box, box, "cpu", bonus="e3b")
    assert VIMEReplayBuffer(100, box, box, "cpu", bonus="rnd").bonus.model.settings.features == 32


@pytest.mark.parametrize("bonus", ["builtins:dict", "explore.vime:VIME", "nothing"])
def test_what_is_no_bonus_is_refused(bonus):
    with pytest.raises(InputError, match="bonus"):
        made(bonus)
