"""Tabular worlds, in which it is known what has been seen how often."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from gymnasium import spaces
from scipy.stats import spearmanr

from explore import registry
from explore.vime.reward import IntrinsicReward, Transitions

LENGTH, COPIES, STEPS = 20, 8, 768


class World:
    """A corridor with a flag that turns on at its far end and stays on until the episode ends."""

    def __init__(self, flag):
        self.flag, self.size = flag, LENGTH + flag
        states = [(place, on) for on in range(1 + flag) for place in range(LENGTH)]
        self.pairs = [(place, on, action) for place, on in states for action in (0, 1)]

    def step(self, place, on, action):
        to = np.clip(place + 2 * action - 1, 0, LENGTH - 1)
        return to, on | (self.flag * (to == LENGTH - 1))

    def vectors(self, place, on):
        return np.concatenate([np.eye(LENGTH)[place], on[:, None]][: 1 + self.flag], 1).astype(np.float32)

    def transitions(self, place, on, action):
        after = self.vectors(*self.step(place, on, action))
        return Transitions(self.vectors(place, on), np.eye(2, dtype=np.float32)[action], after)

    def walk(self, rng):
        """Transitions of random episodes, as places, flags and actions, [steps, copies] each."""
        every, place, on = [], np.ones(COPIES, int), np.zeros(COPIES, int)
        for step in range(STEPS):
            if step % (LENGTH // 2) == 0:  # the far end is out of reach
                place, on = np.ones(COPIES, int), np.zeros(COPIES, int)
            action = rng.integers(0, 2, COPIES)
            every.append((place, on, action))
            place, on = self.step(place, on, action)
        return [np.concatenate(part) for part in zip(*every, strict=True)]


EXACT = {"posterior": "last-layer"}
GLOBAL = {"kl": EXACT, "expected-gain": EXACT, "variance": EXACT, "rnd": {}, "count": {}, "icm": {}}


def made(bonus, world, seed, **settings):
    box = spaces.Box(0, 1, (world.size,), np.float32)
    return IntrinsicReward(box, spaces.Discrete(2), seed=seed, bonus=bonus, **settings)


def part_of(steps, rows):
    part: Any = (None if values is None else values[rows] for values in steps)
    return Transitions(*part)


@pytest.mark.parametrize("flag", [0, 1], ids=["chain", "flag"])
@pytest.mark.parametrize("bonus", GLOBAL)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_the_bonus_ranks_by_visits_and_is_largest_where_nothing_was_seen(bonus, flag, seed):
    world = World(flag)
    walked = world.walk(np.random.default_rng(seed))
    steps, reward = world.transitions(*walked), made(bonus, world, seed, **GLOBAL[bonus])
    for begin in range(0, COPIES * STEPS, 2048):
        reward.batch(part_of(steps, slice(begin, begin + 2048)))
    places, flags, actions = (np.array(part) for part in zip(*world.pairs, strict=True))
    raw = reward.score(world.transitions(places, flags, actions))
    visits, arrivals = np.zeros((LENGTH, 2, 2)), np.zeros((LENGTH, 2))
    np.add.at(visits, tuple(walked), 1)
    np.add.at(arrivals, world.step(*walked), 1)
    to, on = world.step(places, flags, actions)
    known, new = visits[places, flags, actions] > 0, (arrivals + visits.sum(2))[to, on] == 0
    # The bonuses with a posterior are about observation and action, the others about the next observation alone.
    count = visits[places, flags, actions] if GLOBAL[bonus] else arrivals[to, on]
    assert spearmanr(raw[known], 1 / count[known]).statistic >= 0.9
    highest, least = np.quantile(raw[known], 0.99), raw[new].min() if GLOBAL[bonus] else raw[new].mean()
    assert least > highest
    if flag:
        first = new & (on > flags)
        assert first.any() and raw[first].mean() > highest


@pytest.mark.parametrize("bonus", ["expected-gain", pytest.param("variance", marks=pytest.mark.slow)])
def test_of_hundreds_of_states_the_few_unseen_ones_are_worth_most(bonus):
    """With fewer features than states, those of unseen states would be combinations of those of seen ones."""
    states, unseen = np.eye(300, dtype=np.float32), 5
    reward = IntrinsicReward(spaces.Box(0, 1, (300,), np.float32), spaces.Discrete(2), bonus=bonus)
    rng = np.random.default_rng(0)
    for _ in range(3):
        place, action = rng.integers(0, 300 - unseen, 2048), np.eye(2, dtype=np.float32)[rng.integers(0, 2, 2048)]
        reward.batch(Transitions(states[place], action, states[(place + 1) % 300]))
    raw = reward.score(Transitions(states, np.eye(2, dtype=np.float32)[[0] * 300], np.roll(states, -1, 0)))
    assert raw[-unseen:].min() > 50 * np.median(raw[:-unseen])


@pytest.mark.parametrize("bonus", ["kl", "expected-gain", "variance"])
def test_noise_in_an_observation_is_worth_little_beside_what_was_never_seen(bonus):
    world, rng = World(0), np.random.default_rng(0)
    steps, unseen = world.transitions(*world.walk(rng)), world.transitions(*np.array(world.pairs[2 * 16 :]).T)
    shows = rng.random(COPIES * STEPS) < 0.3
    noise = shows[:, None] * rng.standard_normal((COPIES * STEPS, 4))
    box = spaces.Box(-np.inf, np.inf, (LENGTH + 4,), np.float32)
    reward = IntrinsicReward(box, spaces.Discrete(2), bonus=bonus)

    def wide(part, extra):
        before, after = (np.concatenate([values, extra[i]], 1) for i, values in enumerate((part[0], part[2])))
        return Transitions(before.astype(np.float32), part.actions, after.astype(np.float32))

    steps = wide(steps, (noise, np.roll(noise, -COPIES, 0)))
    for begin in range(0, COPIES * STEPS, 2048):
        raw = reward.batch(part_of(steps, slice(begin, begin + 2048))).raw
    blank = np.zeros((len(unseen.actions), 4))
    assert 50 * np.median(raw[shows[-2048:]]) < reward.score(wide(unseen, (blank, blank))).min()


@pytest.mark.parametrize("flag", [0, 1], ids=["chain", "flag"])
@pytest.mark.parametrize("bonus", ["e3b", "novelty"])
def test_episodic_bonuses_rank_by_visits_in_the_episode(bonus, flag):
    world = World(flag)
    steps, reward = world.transitions(*world.walk(np.random.default_rng(0))), made(bonus, world, 0)
    copies, numbers = np.tile(np.arange(COPIES), STEPS), np.repeat(np.arange(STEPS) // (LENGTH // 2), COPIES)
    steps = steps._replace(episodes=np.stack([copies, numbers], 1))
    parts = [reward.batch(part_of(steps, slice(i, i + 2048))).raw for i in range(0, COPIES * STEPS, 2048)]
    seen = pd.DataFrame({"copy": copies, "number": numbers, "state": [after.tobytes() for after in steps.following]})
    visits = seen.groupby(["copy", "number", "state"]).cumcount().to_numpy() + 1
    paid = np.arange(COPIES * STEPS) >= 2048  # nothing is paid before the first training
    raw = np.concatenate(parts)
    assert spearmanr(raw[paid], 1 / visits[paid]).statistic >= 0.9
    assert np.median(raw[paid & (visits == 1)]) > np.quantile(raw[paid & (visits > 1)], 0.99)


OUTLIERS = [  # the others have networks that are trained in the same way, and take much longer
    pytest.param(name, marks=pytest.mark.slow if name in ("disagreement", "novelty") else ())
    for name in registry.names("bonuses")
]


@pytest.mark.parametrize("bonus", OUTLIERS)
def test_one_outlier_changes_no_rank_much(bonus):
    world = World(0)
    steps = world.transitions(*world.walk(np.random.default_rng(0)))
    places, flags, actions = (np.array(part) for part in zip(*world.pairs, strict=True))
    scores = []
    for glitch in (False, True):
        reward = made(bonus, world, 0, **GLOBAL.get(bonus, {}))
        for begin in range(0, COPIES * STEPS, 2048):
            some = part_of(steps, slice(begin, begin + 2048))
            if glitch and not begin:
                some.following[3, 5] = 1e6
            reward.batch(some)
        scores.append(reward.score(world.transitions(places, flags, actions)))
    assert spearmanr(*scores).statistic >= 0.9
