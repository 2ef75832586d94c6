"""Tasks of other packages."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from PIL import Image
from stable_baselines3.common.env_checker import check_env

from explore.core.errors import InputError
from explore.envs import others


def played(name, steps=60, **settings):
    """The environment, and its rewards under random actions."""
    env: Any = gym.make(f"explore/{name}-v0", **settings)
    env.action_space.seed(0)
    env.reset(seed=0)
    return env, [env.step(env.action_space.sample())[1] for _ in range(steps)]


@pytest.mark.parametrize("name", [name for name in others.OTHERS if "Cheetah" not in name])
def test_the_checker_of_stable_baselines3(name):
    check_env(gym.make(name), skip_render_check=True)


def test_acrobot_pays_at_its_goal_only(monkeypatch):
    env, rewards = played("SparseAcrobot")
    assert set(rewards) == {0.0} and env.spec.max_episode_steps == 500
    monkeypatch.setattr(env.unwrapped, "_terminal", lambda: True)
    assert env.step(0)[1:3] == (1.0, True)


def test_half_cheetah_pays_beyond_five_metres():
    pytest.importorskip("mujoco")
    env, rewards = played("SparseHalfCheetah")
    assert set(rewards) == {0.0} and env.spec.max_episode_steps == 500
    data = env.unwrapped.data
    env.unwrapped.set_state(np.concatenate([[5.5], data.qpos[1:]]), data.qvel)
    assert env.step(np.zeros(6))[1] == 1.0


def test_the_view_of_a_grid_is_a_vector_of_its_codes():
    env, _ = played("MiniGrid", task="DoorKey-5x5")
    seen, raw = env.get_wrapper_attr("func")(env.unwrapped.gen_obs()), env.unwrapped.gen_obs()
    np.testing.assert_allclose(seen[:147] * others.CODES, raw["image"].ravel(), rtol=1e-6)
    assert seen[147:].tolist() == np.eye(4)[raw["direction"]].tolist()
    assert len(gym.make("explore/MiniGrid-v0").observation_space.sample()) == 151


def test_pixels_are_those_of_the_picture():
    env, rewards = played("Pixels", 4, task="explore/Chain-v0", length=4)
    assert rewards != [0.0] * 4  # those of the chain
    large = np.repeat(np.repeat(env.get_wrapper_attr("func")(None), 10, 0), 10, 1)[..., 0]
    grey = np.asarray(Image.fromarray(env.render()).convert("L").resize((420, 420)))
    assert np.abs(large.astype(float) - grey).mean() < 12
    pictures = np.zeros((2, 1, 42, 42), np.uint8)
    pictures[1, 0, 3:6, :3] = 255
    assert np.argwhere(others.pooled(pictures)).tolist() == [[1, 14]]


def test_pixels_have_no_window():
    with pytest.raises(InputError, match="supports 'rgb_array' only"):
        gym.make("explore/Pixels-v0", render_mode="human")


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [("MiniGrid", {"task": "Nowhere-9x9"}, "unknown task: .*Nowhere"), ("Pixels", {"task": "x/Y-v0"}, "unknown task")],
)
def test_unknown_tasks_are_refused(name, settings, message):
    with pytest.raises(InputError, match=message):
        gym.make(f"explore/{name}-v0", **settings)
