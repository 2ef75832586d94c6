"""All environments as Gymnasium and stable-baselines3 see them, alone and batched."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode
from stable_baselines3.common import env_checker

from explore.core.errors import InputError
from explore.envs import ENVS

every = pytest.mark.parametrize("name", ENVS)
MODES = [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP]


def batch(name, n, **settings) -> Any:
    return gym.make_vec(name, n, vectorization_mode="vector_entry_point", **settings)


def episode(env, seed, steps=40):
    env.action_space.seed(seed)
    seen = [env.reset(seed=seed)[0]]
    for _ in range(steps):
        seen.append(env.step(env.action_space.sample())[0])
    return np.stack(seen)


def last_action(env, steps=8):
    """What is seen if the last of some actions, or none of a force, is taken again and again."""
    action = env.action_space.n - 1 if isinstance(env.action_space, gym.spaces.Discrete) else np.zeros(1)
    return [(seen.tobytes(), reward) for seen, reward, *_ in (env.step(action) for _ in range(steps))]


@every
def test_checkers(name):
    env = gym.make(name)
    check_env(env.unwrapped, skip_render_check=True)
    env_checker.check_env(env, skip_render_check=True)


def test_made_by_name_alone():
    env = gym.make("explore.envs:explore/SparseMountainCar-v0", threshold=0.5)
    assert env.spec and env.spec.max_episode_steps == 500
    again = gym.make(gym.envs.registration.EnvSpec.from_json(env.spec.to_json()))
    assert again.get_wrapper_attr("simulation").threshold == 0.5


@every
def test_seeds_decide(name):
    one, two = gym.make(name), gym.make(name)
    np.testing.assert_array_equal(episode(one, 3, 8), episode(two, 3, 8))
    np.testing.assert_array_equal(episode(one, 3, 8), episode(two, 3, 8))  # nothing left of the last episode
    if one.get_wrapper_attr("simulation").draw(np.random.default_rng(0)).size:
        for seeds, which in ((range(20), "seed"), ([None] * 20, "reset")):  # two may be alike by chance
            seen = {(one.reset(seed=seed)[0].tobytes(), *last_action(one)) for seed in seeds}
            assert len(seen) > 1, f"{name} is alike with every {which}, though `draw` gives it random numbers"


@every
@pytest.mark.parametrize("mode", MODES)
def test_a_batch_equals_single_environments(name, mode):
    n, settings = 3, dict[str, Any]({"max_episode_steps": 25} if gym.spec(name).max_episode_steps else {})
    if "CartPole" in name:
        settings["max_episode_steps"] = 60  # some end before, most are cut off
    single = gym.make_vec(name, n, vectorization_mode="sync", vector_kwargs={"autoreset_mode": mode}, **settings)
    many = batch(name, n, autoreset_mode=mode, **settings)
    assert many.observation_space == single.observation_space
    assert many.action_space == single.action_space
    assert many.metadata["autoreset_mode"] == mode
    many.action_space.seed(0)
    np.testing.assert_array_equal(many.reset(seed=7)[0], single.reset(seed=7)[0])
    ends = np.zeros(2, int)
    for _ in range(150):
        actions = many.action_space.sample()
        *a, a_info = many.step(actions)
        *b, b_info = single.step(actions)
        for x, y in zip(a, b, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)
            assert x.dtype == y.dtype
        ends += a[2].sum(), a[3].sum()
        assert a_info.keys() == b_info.keys()
        for i in np.flatnonzero(a_info.get("_final_obs", [])):
            np.testing.assert_allclose(a_info["final_obs"][i], b_info["final_obs"][i], rtol=1e-5, atol=1e-6)
            assert (a_info["_final_obs"] == b_info["_final_obs"]).all()
            assert a_info["final_info"] == b_info["final_info"]
    assert ends.sum() >= 3
    assert ends[0] > 0 or "CartPole" not in name


def test_seeds_of_a_batch():
    env = batch("explore/SparseCartPoleSwingup-v0", 3)
    first = env.reset(seed=[4, 5, 6])[0]
    np.testing.assert_array_equal(first, env.reset(seed=4)[0])
    kept = env.reset(seed=[4, None, None])[0]
    np.testing.assert_array_equal(first[0], kept[0])
    assert (kept[1:] != first[1:]).all()
    assert (env.reset()[0] != kept).all()
    with pytest.raises(InputError, match="2 seeds for 3"):
        env.reset(seed=[1, 2])


@every
def test_actions_outside_the_space_are_clipped_or_refused(name):
    one, two = gym.make(name), gym.make(name)
    one.reset(seed=0), two.reset(seed=0)
    space: Any = one.action_space
    high = space.n - 1 if isinstance(space, gym.spaces.Discrete) else space.high
    try:
        outside = one.step(high + 6)[0]
    except InputError:
        return
    np.testing.assert_array_equal(outside, two.step(high)[0])


def test_batches_refuse_what_they_cannot():
    with pytest.raises(InputError, match="NextStep, SameStep"):
        batch("explore/SparseMountainCar-v0", 1, autoreset_mode=AutoresetMode.DISABLED)
    with pytest.raises(InputError, match="render_mode"):
        batch("explore/SparseMountainCar-v0", 1, render_mode="human")
    with pytest.raises(gym.error.ResetNeeded):
        batch("explore/SparseMountainCar-v0", 1).step(np.zeros((1, 1)))


@every
def test_pictures(name):
    env: Any = gym.make(name, render_mode="rgb_array")
    env.reset(seed=0)
    before = env.render()
    assert before.shape == (320, 480, 3) and before.dtype == np.uint8
    env.reset(seed=1)
    for _ in range(5):
        env.step(env.action_space.sample() * 0 + 1)
    assert (env.render() != before).any()
    frames = batch(name, 2, render_mode="rgb_array")
    frames.reset(seed=0)
    np.testing.assert_array_equal(frames.render()[0], before)


def test_a_window(monkeypatch):
    pytest.importorskip("pygame")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    with pytest.warns(UserWarning, match="HumanRendering"):
        env = gym.make("explore/Chain-v0", render_mode="human")
    env.reset(seed=0)
    env.step(1)
    assert env.render() is None
    env.close()


def test_a_simulation_that_says_nothing_about_itself():
    from explore import envs

    with pytest.raises(InputError, match="add about = .* to the simulation Silent"):
        envs._register(type("Silent", (envs._Simulation,), {}))
