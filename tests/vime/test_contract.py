"""Tabular worlds, in which it is known what has been seen how often."""

import numpy as np
import pytest
from gymnasium import spaces
from scipy.stats import spearmanr

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


@pytest.mark.parametrize("flag", [0, 1], ids=["chain", "flag"])
@pytest.mark.parametrize("bonus", ["kl", "expected-gain"])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_bonus_ranks_by_visits_and_is_largest_where_nothing_was_seen(bonus, flag, seed):
    world = World(flag)
    box = spaces.Box(0, 1, (world.size,), np.float32)
    reward = IntrinsicReward(box, spaces.Discrete(2), seed=seed, posterior="last-layer", bonus=bonus)
    walked = world.walk(np.random.default_rng(seed))
    steps = world.transitions(*walked)
    for begin in range(0, COPIES * STEPS, 2048):
        reward.batch(Transitions(*(part[begin : begin + 2048] for part in steps)))
    places, flags, actions = (np.array(part) for part in zip(*world.pairs, strict=True))
    raw = reward.score(world.transitions(places, flags, actions))
    visits = np.zeros((LENGTH, 2, 2))
    np.add.at(visits, tuple(walked), 1)
    count = visits[places, flags, actions]
    to, on = world.step(places, flags, actions)
    seen = np.zeros((LENGTH, 2), bool)
    seen[walked[0], walked[1]] = seen[world.step(*walked)] = True
    known, new = count > 0, ~seen[to, on]
    assert spearmanr(raw[known], 1 / count[known]).statistic >= 0.9
    assert raw[new].min() > np.quantile(raw[known], 0.99)
    if flag:
        first = new & (on > flags)
        assert first.any() and raw[first].min() > np.quantile(raw[known], 0.99)
