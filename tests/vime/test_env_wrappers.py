"""The Gymnasium wrappers: what counts as a transition, and what passes through."""

from contextlib import nullcontext
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from explore.core.errors import InputError
from explore.envs import ENVS
from explore.vime import VIME, VIMEVector
from explore.vime.env_wrappers import KEYS, RETURNS

FEW: dict[str, Any] = {"minimum": 10, "interval": 20, "hidden": (4,), "capacity": 1000}
CHAIN = "explore/Chain-v0"


LIMITS = (3, 5, 7)  # so that the copies' episodes do not end together
LIMITED = [lambda limit=limit: gym.wrappers.TimeLimit(gym.make(CHAIN).unwrapped, limit) for limit in LIMITS]


def walk(env, steps, seed=0):
    """(reward, terminated or truncated, info) of random steps, reset where an episode ends."""
    env.reset(seed=seed)
    env.action_space.seed(seed)
    for _ in range(steps):
        _, reward, terminated, truncated, info = env.step(env.action_space.sample())
        yield reward, terminated or truncated, info
        if terminated or truncated:
            env.reset()


def is_a_step(replay):
    """Whether stored transitions can happen in the chain, whose state moves by at most one place."""
    before, after = replay.inputs[:, : replay.next.shape[1]], replay.next
    return ((before.argmax(1) - after.argmax(1)).abs() <= 1).all() and len(replay) > 0


@pytest.mark.filterwarnings("ignore:.*different from the unwrapped version")
@pytest.mark.parametrize("name", ENVS)
def test_gymnasiums_checker(name):
    check_env(VIME(gym.make(name), **FEW), skip_render_check=True)


def test_the_bonus_is_added_and_told():
    paid = 0.0
    for i, (reward, _, info) in enumerate(walk(VIME(gym.make("explore/SparseCartPoleSwingup-v0"), eta=0.5, **FEW), 60)):
        assert reward == info["extrinsic_reward"] + info["intrinsic_reward"]
        assert info["intrinsic_raw"] >= 0 and (i >= 20 or reward == info["extrinsic_reward"])
        paid += info["intrinsic_reward"]
    assert paid > 0


def test_rebuilt_from_its_specification():
    settings = FEW | {"hidden": [4], "posterior_settings": {"samples": 3}}
    env = VIME(gym.make("explore/SparseMountainCar-v0"), posterior="bbb", eta=0.2, seed=5, **settings)
    assert env.spec is not None
    again = gym.make(gym.envs.registration.EnvSpec.from_json(env.spec.to_json()))
    assert (
        isinstance(again, VIME)
        and again.bonus.settings == env.bonus.settings
        and again.bonus.model_settings == env.bonus.model_settings
    )
    assert [r for r, _, _ in walk(env, 50)] == [r for r, _, _ in walk(again, 50)]


def test_the_first_reset_seeds_the_bonus():
    one, two, other = (
        [r for r, _, _ in walk(VIME(gym.make("explore/SparseMountainCar-v0"), seed=own, **FEW), 45, seed)]
        for seed, own in ((1, None), (1, None), (1, 7))
    )
    assert one == two and one != other


def test_evaluation_learns_nothing_and_pays_nothing():
    env = VIME(gym.make("explore/SparseCartPoleSwingup-v0"), **FEW)
    env.training = False
    for reward, _, info in walk(env, 30):
        assert {key: info[key] for key in KEYS} == {
            "extrinsic_reward": reward,
            "intrinsic_reward": 0,
            "intrinsic_raw": 0,
        }
        assert not reward
    assert env.bonus.replay.total == 0


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_no_transition_crosses_the_end_of_an_episode(mode):
    env = VIMEVector(SyncVectorEnv(LIMITED, autoreset_mode=mode), eta=1.0, **FEW)
    env.reset(seed=0)
    env.action_space.seed(0)
    for _ in range(60):
        rewards, terminated, truncated, infos = env.step(env.action_space.sample())[1:]
        ended = terminated | truncated
        np.testing.assert_allclose(rewards, infos["extrinsic_reward"] + infos["intrinsic_reward"])
        if mode == AutoresetMode.DISABLED and ended.any():
            env.reset(options={"reset_mask": ended})
    assert is_a_step(env.bonus.replay)
    # With NEXT_STEP the step after the last only resets.
    idle = sum(60 // (limit + 1) for limit in LIMITS) if mode == AutoresetMode.NEXT_STEP else 0
    assert env.bonus.replay.total == 3 * 60 - idle


def test_a_single_environment_never_crosses_it_either():
    env = VIME(gym.wrappers.TimeLimit(gym.make(CHAIN).unwrapped, 5), **FEW)
    assert sum(ended for _, ended, _ in walk(env, 60)) == 12
    assert is_a_step(env.bonus.replay) and env.bonus.replay.total == 60


def test_steps_that_only_reset_are_not_paid():
    batched = gym.make_vec(
        "explore/SparseCartPoleSwingup-v0", 4, vectorization_mode="vector_entry_point", max_episode_steps=7
    )
    env: Any = VIMEVector(batched, eta=1.0, **FEW)
    env.reset(seed=0)
    env.action_space.seed(0)
    before, resets = np.zeros(4, bool), 0
    for i in range(40):
        trained = env.bonus.batches > 0
        terminated, truncated, infos = env.step(env.action_space.sample())[2:]
        assert trained == (i >= 5)  # four copies, an interval of 20
        assert not infos["intrinsic_reward"][before].any()
        assert infos["intrinsic_reward"][~before].all() == trained
        resets += before.sum()
        before = terminated | truncated
    assert resets == 4 * 40 // 8  # every eighth step


def test_a_batch_in_evaluation_passes_through():
    batched = gym.make_vec("explore/SparseMountainCar-v0", 4, vectorization_mode="vector_entry_point")
    env: Any = VIMEVector(batched, **FEW)
    env.training = False
    env.reset(seed=0)
    for _ in range(30):
        rewards, infos = env.step(env.action_space.sample())[1::3]
    assert infos.keys() == {*KEYS, *(f"_{key}" for key in KEYS)}
    assert not rewards.any() and not any(infos[key].any() for key in KEYS) and env.bonus.replay.total == 0


def test_a_restored_bonus_outlives_the_first_seed():
    def fresh(single):
        if single:
            return VIME(gym.make(CHAIN), **FEW)
        return VIMEVector(SyncVectorEnv([lambda: gym.make(CHAIN)] * 2), **FEW)

    learnt = VIME(gym.make(CHAIN), **FEW)
    for _ in walk(learnt, 30):
        pass
    saved = learnt.bonus.state_dict()
    for env in (fresh(True), fresh(False)):
        env.bonus.load_state_dict(saved)
        env.reset(seed=5)
        again = env.bonus.state_dict()
        assert again.keys() == saved.keys() and all(torch.equal(again[k], saved[k]) for k in saved)


@pytest.mark.parametrize("mode", [None, AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_steps_out_of_training_leave_no_gap(mode):
    def make():
        return gym.wrappers.TimeLimit(gym.make(CHAIN).unwrapped, 7)

    env: Any = (
        VIME(make(), **FEW) if mode is None else VIMEVector(SyncVectorEnv([make] * 3, autoreset_mode=mode), **FEW)
    )
    env.reset(seed=0)
    env.action_space.seed(0)
    for i in range(90):
        env.training = i % 20 < 13
        terminated, truncated = env.step(env.action_space.sample())[2:4]
        if mode is None and (terminated or truncated):
            env.reset()
    assert is_a_step(env.bonus.replay)
    taught = [i for i in range(90) if i % 20 < 13]
    if mode == AutoresetMode.NEXT_STEP:  # every eighth step only resets
        assert env.bonus.replay.total == 3 * sum(i % 8 != 7 for i in taught)
    else:
        assert env.bonus.replay.total == len(taught) * (1 if mode is None else 3)


@pytest.mark.parametrize("mode", [None, *AutoresetMode])
def test_the_last_step_of_an_episode_tells_its_sums(mode):
    settings: dict[str, Any] = {"eta": 1.0, **FEW}
    env: Any = VIME(LIMITED[1](), **settings)
    if mode is not None:
        env = VIMEVector(SyncVectorEnv(LIMITED, autoreset_mode=mode), **settings)
    env.reset(seed=0)
    env.action_space.seed(0)
    env.training = False  # what is not paid does not count
    env.step(env.action_space.sample())
    env.training = True
    own, paid, told = np.zeros(3), np.zeros(3), 0
    for _ in range(60):
        terminated, truncated, info = env.step(env.action_space.sample())[2:]
        ended = np.broadcast_to(terminated | truncated, 3)
        own, paid = own + info["extrinsic_reward"], paid + info["intrinsic_reward"]
        assert ("intrinsic_return" in info) == ended.any()
        if ended.any():
            np.testing.assert_allclose(np.broadcast_to(info["extrinsic_return"], 3)[ended], own[ended])
            np.testing.assert_allclose(np.broadcast_to(info["intrinsic_return"], 3)[ended], paid[ended])
            told += int((paid[ended] > 0).sum())
            if mode is None:
                env.reset()
            elif mode == AutoresetMode.DISABLED:
                env.reset(options={"reset_mask": ended})
        own, paid = np.where(ended, 0, own), np.where(ended, 0, paid)
    assert told > 20


@pytest.mark.parametrize("early", [False, True])
def test_copies_that_are_reset_apart_have_sums_of_their_own(early):
    """Without autoreset copies end at different steps, and any may be reset before its end."""

    def make(limit):
        return lambda: gym.wrappers.TimeLimit(gym.make(CHAIN).unwrapped, limit)

    env: Any = VIMEVector(SyncVectorEnv([make(n) for n in (3, 5, 7)], autoreset_mode=AutoresetMode.DISABLED), **FEW)
    env.reset(seed=0)
    env.action_space.seed(0)
    sums, told = np.zeros((2, 3)), 0
    for i in range(80):
        terminated, truncated, info = env.step(env.action_space.sample())[2:]
        ended = terminated | truncated
        sums += [info["extrinsic_reward"], info["intrinsic_reward"]]
        assert all((key in info) == ended.any() for key in RETURNS)
        for key, values in zip(RETURNS, sums, strict=True):
            if ended.any():
                np.testing.assert_allclose(info[key][ended], values[ended])
                told += int((values[ended] > 0).sum())
        fresh = ended | (early & (np.arange(3) == i % 9))
        sums[:, fresh] = 0
        if fresh.any():
            env.reset(options={"reset_mask": fresh})
    assert told > 40


class Nested(gym.Env):
    """Observations and actions of every kind."""

    observation_space = gym.spaces.Dict(
        {"a": gym.spaces.Discrete(3), "b": gym.spaces.Tuple([gym.spaces.Box(-1, 1, (2,))])}
    )
    action_space = gym.spaces.MultiDiscrete([2, 3])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 0.0, bool(self.np_random.random() < 0.1), False, {}


def test_dictionaries_tuples_and_several_discrete_actions():
    env = VIME(Nested(), **FEW)
    assert sum(r for r, _, _ in walk(env, 50)) > 0 and env.bonus.replay.inputs.shape[1] == 5 + 5
    batched: Any = VIMEVector(SyncVectorEnv([Nested] * 2), **FEW)
    batched.reset(seed=0)
    for _ in range(30):
        rewards = batched.step(batched.action_space.sample())[1]
    assert rewards.shape == (2,) and batched.bonus.batches > 0


def test_an_action_that_there_is_not_is_refused_before_it_is_taken():
    """An environment that indexes takes -1 for its last choice."""
    env, several = VIME(Nested(), **FEW), VIMEVector(SyncVectorEnv([Nested] * 2), **FEW)
    for each, action in ((env, [0, -1]), (several, [[0, 0], [0, -1]])):
        each.reset(seed=0)
        with pytest.raises(InputError, match="actions hold -1; expected whole numbers from 0 to 2"):
            each.step(np.array(action))
        assert not each.bonus.replay.total


def test_a_stale_space_of_a_vector_environment_is_refused():
    double = gym.wrappers.vector.TransformObservation
    for spaces in ({}, {"observation_space": gym.spaces.Box(-9, 9, (2, 8))}):
        with pytest.warns(UserWarning, match="don't match") if spaces else nullcontext():
            stale = double(SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 2), lambda o: np.tile(o, 2), **spaces)
        env = VIMEVector(stale, **FEW)
        message = r"observations have shape \[2, 8\]; expected \[n, 4\]. .*single_observation_space"
        with pytest.raises(InputError, match=message):
            env.reset(seed=0)
    right = {"single_observation_space": gym.spaces.Box(-9, 9, (8,))}
    env = VIMEVector(
        double(SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 2), lambda o: np.tile(o, 2), **right), **FEW
    )
    env.reset(seed=0)
    assert env.bonus.observations.size == 8


@pytest.mark.parametrize("name", ["NormalizeObservation", "NormalizeReward"])
@pytest.mark.parametrize("between", [False, True])
def test_what_normalises_belongs_around_the_bonus(name, between):
    single = getattr(gym.wrappers, name)(gym.make("MountainCarContinuous-v0"))
    several = getattr(gym.wrappers.vector, name)(SyncVectorEnv([lambda: gym.make("MountainCarContinuous-v0")] * 2))
    for env, cls, outer in ((single, VIME, gym.wrappers), (several, VIMEVector, gym.wrappers.vector)):
        inside = outer.RecordEpisodeStatistics(env) if between else env
        with pytest.raises(InputError, match=f"put {name} around it, not inside"):
            cls(inside, posterior="bbb")
        env.update_running_mean = False  # a scale that stays
        cls(inside, posterior="bbb")
        getattr(outer, name)(cls(env.env, posterior="bbb"))


# A process takes seconds to start, so that there is one, and for one of the wrappers.
@pytest.mark.parametrize(
    ("kind", "name", "n"),
    [
        (SyncVectorEnv, "NormalizeObservation", 2),
        (SyncVectorEnv, "NormalizeReward", 2),
        (partial(AsyncVectorEnv, context="spawn"), "NormalizeReward", 1),
    ],
    ids=["observations", "rewards", "rewards-in-processes"],
)
def test_what_normalises_inside_of_vector_environments_is_refused(kind, name, n):
    wrapper = getattr(gym.wrappers, name)
    copies = [lambda: wrapper(gym.make("MountainCarContinuous-v0"))] * n
    env = kind(copies)
    with pytest.raises(InputError, match="put .* around it, not inside"):
        VIMEVector(env, posterior="bbb")
    env.close()
    env = kind(copies)  # before 1.3, gymnasium closes what a discarded wrapper was around
    env.set_attr("update_running_mean", False)  # a scale that stays
    VIMEVector(env, posterior="bbb")
    env.close()
