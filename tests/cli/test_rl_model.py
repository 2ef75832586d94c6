"""What an algorithm has learnt as tensors, beside stable-baselines3's own way to save it."""

import re
from dataclasses import replace
from typing import Any, cast

import gymnasium as gym
import numpy as np
import pytest
import torch
from stable_baselines3.common.vec_env import VecNormalize

from explore.cli import rl
from explore.cli.rl import model as rl_model
from explore.cli.rl.environment import environments
from explore.cli.rl.model import derived
from explore.cli.rl.settings import ALGORITHMS, resolve
from explore.cli.rl.training import Training
from explore.core import files, tree
from explore.core.errors import InputError

BONUS = ["--posterior", "bbb", "-p", "vime.minimum=40", "-p", "vime.updates=2"]
SMALL = ["--algo-param", "batch_size=8", "--algo-param", "net_arch=8"]
ON = ["--n-envs", 4, "--algo-param", "n_steps=16", *SMALL]
SAC = ["--algo", "sac", "--algo-param", "learning_starts=30", *SMALL]
CONFIGURATIONS: dict[str, list[Any]] = {
    "trpo": ["--env", "explore/Chain-v0", "--env-kwargs", "length:5", *ON, *BONUS],
    "trpo-critic": ["--env", "explore/SparseMountainCar-v0", *ON, *BONUS, "--algo-param", "value_init=zero"],
    "trpo-gsde": ["--env", "Pendulum-v1", *ON, *BONUS, "--algo-param", "use_sde=true"],
    "trpo-dict": ["--env", "tests/Parts-v0", *ON, *BONUS],
    "trpo-images": ["--env", "tests/Pictures-v0", *ON, "--posterior", "none"],
    "ppo": ["--env", "CartPole-v1", "--algo", "ppo", *ON, *BONUS],
    "ppo-normalised": ["--env", "CartPole-v1", "--algo", "ppo", *ON, *BONUS, "--vec-normalize"],
    "ppo-dict": ["--env", "tests/Parts-v0", "--algo", "ppo", *ON, *BONUS, "--vec-normalize"],
    "ppo_lstm": ["--env", "CartPole-v1", "--algo", "ppo_lstm", *ON, *BONUS],
    "a2c": ["--env", "CartPole-v1", "--algo", "a2c", *ON[:4], *BONUS],
    "maxinfo": ["--env", "Pendulum-v1", "--algo", "maxinfo", *SAC[2:], *BONUS, "--bonus", "variance", "-p",
                "vime.interval=32"],
    "sac": ["--env", "Pendulum-v1", *SAC, *BONUS, "-p", "vime.interval=32"],
    "sac-normalised": ["--env", "Pendulum-v1", *SAC, *BONUS, "--vec-normalize", "-p", "vime.interval=32"],
    "sac-entropy": ["--env", "Pendulum-v1", *SAC, "--posterior", "none", "--algo-param", "ent_coef=0.1"],
    "sac-full": ["--env", "Pendulum-v1", *SAC, "--posterior", "none", "--algo-param", "buffer_size=50"],
    "sac-gsde": ["--env", "Pendulum-v1", *SAC, "--posterior", "none", "--algo-param", "use_sde=true", "--n-envs", 2],
    "sac-dict": ["--env", "tests/Parts-v0", *SAC, "--posterior", "none"],
    **{
        name: ["--env", "Pendulum-v1", "--algo", name, *SAC[2:], *BONUS, "-p", "vime.interval=32"]
        for name in ("td3", "ddpg", "tqc", "crossq")
    },
    **{
        name: ["--env", "CartPole-v1", "--algo", name, *SAC[2:], *BONUS, "-p", "vime.interval=32", "--algo-param",
               "target_update_interval=20"]
        for name in ("dqn", "qrdqn")
    },
}  # fmt: skip


class World(gym.Env):
    """Observations of any space, episodes of five steps, each of which succeeds or not."""

    action_space = gym.spaces.Box(-2, 1, (1,))

    def __init__(self, space: Any):
        self.observation_space = space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        observation = self.observation_space.sample()
        return observation, float(action[0]), False, False, {"is_success": bool(action[0] > 0)}


@pytest.fixture(scope="module", autouse=True)
def worlds():
    spaces = {
        "tests/Parts-v0": gym.spaces.Dict({"x": gym.spaces.Box(-1, 1, (2,)), "y": gym.spaces.Box(-9, 9, (1,))}),
        "tests/Pictures-v0": gym.spaces.Box(0, 255, (36, 36, 3), np.uint8),
    }
    for name, space in spaces.items():
        gym.register(name, cast(Any, World), max_episode_steps=5, kwargs={"space": space})
    yield
    for name in spaces:
        del gym.registry[name]


def settings_of(name, timesteps):
    arguments: list[Any] = [*CONFIGURATIONS[name], "--timesteps", timesteps]
    return resolve(rl.command.make_context("rl", [str(a) for a in arguments]).params)


def learn(training):
    """All that is logged but for the clock."""
    logged = []

    def keep(step, values):
        logged.append((step, {tag: value for tag, value in values.items() if not tag.startswith("time/")}))

    events = {name: lambda *_: None for name in ("on_step", "before_log", "after_log")}
    training.learn(training.callbacks(keep, **events))
    return logged


def by_sb3(settings, ours, folder):
    """A training that continues from the files of stable-baselines3."""
    theirs: Any = Training(settings, 5, "cpu")
    env = environments(settings, settings.n_envs)
    if settings.vec_normalize:
        env = VecNormalize.load(str(folder / "vecnormalize.pkl"), env)
    buffer = getattr(theirs.model, "replay_buffer", None)
    theirs.model = ALGORITHMS[settings.algo].load(folder / "model.zip", env, "cpu")
    theirs.model.set_random_seed(derived(5, theirs.model.num_timesteps))
    if theirs.bonus is not None:
        theirs.bonus.load_state_dict(ours.bonus.state_dict())
    if buffer is not None:
        for name in rl_model.ROWS:
            setattr(buffer, name, getattr(ours.model.replay_buffer, name))
        buffer.pos, buffer.full = ours.model.replay_buffer.pos, ours.model.replay_buffer.full
        theirs.model.replay_buffer = buffer
    return theirs


def numbers(value):
    """All tensors and numbers, by path."""
    if isinstance(value, dict):
        return {f"{key}/{path}": v for key, part in value.items() for path, v in numbers(part).items()}
    return {"": value}


QUICK = {"ppo-dict", "trpo", "dqn", "sac-gsde"}  # an algorithm of each family, and observations of several parts


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in CONFIGURATIONS]
)
def test_continuing_is_to_the_bit_as_from_the_files_of_stable_baselines3(tmp_path, name):
    first: Any = Training(settings_of(name, 64), 5, "cpu")
    learn(first)
    first.save(tmp_path)
    settings = replace(settings_of(name, 64), timesteps=192)
    theirs = by_sb3(settings, first, tmp_path)
    expected = learn(theirs), numbers(rl_model.state_dict(theirs.model))
    (tmp_path / "model.zip").write_text("never read")
    (tmp_path / "vecnormalize.pkl").write_text("never read")
    ours: Any = Training(settings, 5, "cpu", tmp_path)
    found = learn(ours), numbers(rl_model.state_dict(ours.model))
    np.testing.assert_equal(found[0], expected[0])
    assert found[1].keys() == expected[1].keys() and found[1]["counts/num_timesteps/"] == 192
    for path, value in expected[1].items():
        if path != "episodes/t/":  # the clock
            assert torch.equal(torch.as_tensor(found[1][path]), torch.as_tensor(value)), path
    started = numbers(rl_model.state_dict(first.model))
    assert any(not torch.equal(v, found[1][k]) for k, v in started.items() if k.startswith("policy/"))


def test_the_state_of_the_optimisers_and_the_entropy_is_there(tmp_path):
    training: Any = Training(settings_of("sac", 64), 5, "cpu")
    learn(training)
    saved = rl_model.state_dict(training.model)
    assert saved["optimisers"].keys() == {"actor.optimizer", "critic.optimizer", "ent_coef_optimizer"}
    assert all(part["0.step"] == 34 for part in saved["optimisers"].values())
    assert saved["variables"].keys() == {"log_ent_coef"} and saved["counts"]["_n_updates"] == 34


def changed(name, damage):
    """A saved model after some damage."""
    training: Any = Training(settings_of(name, 64), 5, "cpu")
    learn(training)
    saved: Any = rl_model.state_dict(training.model)
    damage(saved)
    return training, saved


def drop(saved):
    del saved["policy"]["log_std"]


def widen(saved):
    saved["policy"]["log_std"] = torch.zeros(7)


def text(saved):
    saved["policy"]["log_std"] = "0"


def no_moments(saved):
    saved["moments"] = {}


def wrong_moments(saved):
    saved["moments"]["observations/.mean"] = torch.zeros(9)


def foreign_step(saved):
    saved["optimisers"]["policy.optimizer"]["99.step"] = torch.zeros(())


def half_adam(saved):
    adam = saved["optimisers"]["policy.optimizer"]
    del adam[next(path for path in adam if path.endswith(".exp_avg"))]


def no_counts(saved):
    saved["counts"] = {"num_timesteps": "many"}


def torn_episodes(saved):
    saved["episodes"]["r"] = torch.zeros(3)


@pytest.mark.parametrize(
    "damage",
    [drop, widen, text, no_moments, wrong_moments, foreign_step, half_adam, no_counts, torn_episodes, dict.clear],
)
def test_what_does_not_fit_is_refused_in_a_sentence(tmp_path, damage):
    CONFIGURATIONS["damaged"] = [*CONFIGURATIONS["trpo-gsde"], "--vec-normalize"]
    training, saved = changed("damaged", damage)
    training.save(tmp_path)
    files.save(tmp_path / "model.pt", "model", 1, saved)
    with pytest.raises(InputError, match=rf"^{re.escape(str(tmp_path))}/model.pt does not belong to this run: [^\n]+$"):
        Training(settings_of("damaged", 64), 5, "cpu", tmp_path)


def test_a_replay_of_another_size_is_refused(tmp_path):
    training: Any = Training(settings_of("sac-full", 64), 5, "cpu")
    learn(training)
    saved = rl_model.replay(training.model.replay_buffer)
    assert (len(saved["rewards"]), int(saved["pos"])) == (50, 14)
    fresh: Any = Training(settings_of("sac-full", 64), 5, "cpu")
    for pos in (50, -1):
        with pytest.raises(InputError, match=f"its replay buffer has 50 of 50 rows, but position {pos}"):
            rl_model.load_replay(fresh.model.replay_buffer, saved | {"pos": torch.tensor(pos)})
    half = tree.map_tensors(lambda t: t[:25] if t.dim() else t, saved)
    with pytest.raises(InputError, match="its replay buffer has 25 of 50 rows, but position 14"):
        rl_model.load_replay(fresh.model.replay_buffer, half)
    rl_model.load_replay(fresh.model.replay_buffer, half | {"pos": torch.tensor(25)})
    assert (fresh.model.replay_buffer.pos, fresh.model.replay_buffer.full) == (25, False)


def test_saving_uses_no_random_numbers(tmp_path):
    training: Any = Training(settings_of("ppo", 64), 5, "cpu")
    torch_before, numpy_before = torch.get_rng_state(), str(np.random.get_state())
    training.save(tmp_path)
    assert torch.equal(torch.get_rng_state(), torch_before) and str(np.random.get_state()) == numpy_before
