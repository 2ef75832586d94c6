"""What stable-baselines3 and sb3-contrib support: every cell of the table in docs/vime.md."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import sb3_contrib
import stable_baselines3
from stable_baselines3.common import buffers
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor
from stable_baselines3.her import HerReplayBuffer

from explore.core.errors import InputError
from explore.vime import VIME, sb3

# The posterior whose gain takes least time: these tests are of the way from a bonus to an algorithm.
FEW: dict[str, Any] = {
    "posterior": "noisy-adam", "updates": 3, "minimum": 10, "hidden": (4,), "capacity": 1000, "eta": 1.0,
}  # fmt: skip
ON = ("A2C", "PPO", "TRPO", "MaskablePPO", "RecurrentPPO")
OFF = ("DDPG", "DQN", "SAC", "TD3", "CrossQ", "QRDQN", "TQC")
DISCRETE = {"DQN", "QRDQN", "MaskablePPO"}
OF_BUFFER = {  # of the off-policy algorithms: what pays in place of it
    "ReplayBuffer": "VIMEReplayBuffer",
    "DictReplayBuffer": "VIMEDictReplayBuffer",
    "NStepReplayBuffer": "VIMENStepReplayBuffer",
    "HerReplayBuffer": "VIMEHerReplayBuffer",
}
GOALS = ("DictReplayBuffer", "HerReplayBuffer")
# CrossQ has no policy for dictionaries.
PAIRS = [(name, kind) for kind in OF_BUFFER for name in OFF if name != "CrossQ" or kind not in GOALS]
DOCS = Path(__file__).parents[2] / "docs/vime.md"


class Worthless(gym.Env):
    """A walk without rewards, of which every other action may be masked; `goals` makes it one with goals."""

    def __init__(self, discrete: bool, goals: bool):
        box = gym.spaces.Box(-9, 9, (2,), np.float32)
        keys = ("observation", "achieved_goal", "desired_goal")
        self.observation_space: Any = gym.spaces.Dict(dict.fromkeys(keys, box)) if goals else box
        self.action_space: Any = gym.spaces.Discrete(2) if discrete else gym.spaces.Box(-1, 1, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.time = self.np_random.normal(size=2).astype(np.float32), 0
        return self.observation(), {}

    def step(self, action):
        self.time += 1
        self.place = (0.9 * self.place + np.sum(action) / 3).astype(np.float32)
        return self.observation(), 0.0, self.time == 8, False, {}

    def observation(self):
        goals = {"achieved_goal": self.place.copy(), "desired_goal": np.zeros(2, np.float32)}
        return {"observation": self.place.copy(), **goals} if "spaces" in vars(self.observation_space) else self.place

    def action_masks(self):
        return np.ones(2, bool)

    def compute_reward(self, achieved, desired, info):
        return np.zeros(len(achieved))


def environment(name, goals):
    return make_vec_env(lambda: Worthless(name in DISCRETE, goals), 2)


def algorithm(name, env, **settings):
    cls: Any = getattr(stable_baselines3, name, None) or getattr(sb3_contrib, name)
    kind = "MultiInput" if "spaces" in vars(env.observation_space) else "Mlp"
    if name in ON:
        settings = {"n_steps": 12, "policy_kwargs": {"net_arch": [4]}, **settings}
        if name == "RecurrentPPO":
            settings["policy_kwargs"] = {"net_arch": [4], "lstm_hidden_size": 4}
    else:
        few: dict[str, Any] = {"learning_starts": 40, "train_freq": 32, "batch_size": 8, "buffer_size": 400}
        settings = few | {"policy_kwargs": {"net_arch": [4]}} | settings
    if name in ("PPO", "TRPO", "MaskablePPO", "RecurrentPPO"):
        settings["batch_size"] = 12
    return cls(kind + ("Lstm" * (name == "RecurrentPPO")) + "Policy", env, seed=0, device="cpu", **settings)


def buffer(name):
    """Settings of an off-policy algorithm whose buffer it is."""
    cls = HerReplayBuffer if name == "HerReplayBuffer" else getattr(buffers, name, None) or getattr(sb3, name)
    return {"replay_buffer_class": cls} | (
        {"replay_buffer_kwargs": {"n_steps": 3, "gamma": 0.9}} if "NStep" in name else {}
    )


@pytest.mark.parametrize("goals", [False, True])
@pytest.mark.parametrize("name", ON)
@pytest.mark.parametrize("way", ["VIMECallback", "VIMEVecEnv"])
def test_on_policy(name, goals, way):
    env: Any = environment(name, goals)
    callback = sb3.VIMECallback(**FEW) if way == "VIMECallback" else None
    model = algorithm(name, env if callback else sb3.VIMEVecEnv(env, interval=20, **FEW))
    model.learn(48, callback)
    assert (model.rollout_buffer.rewards > 0).all()


@pytest.mark.parametrize("name", OFF)
def test_off_policy_with_the_callback(name):
    with pytest.raises(InputError, match=f"VIMECallback is for on-policy algorithms; for {name} use VIMEReplayBuffer"):
        algorithm(name, environment(name, False)).learn(1, sb3.VIMECallback(**FEW))


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_off_policy_with_a_buffer_that_pays(name, kind):
    settings = buffer(OF_BUFFER[kind])
    settings["replay_buffer_kwargs"] = settings.get("replay_buffer_kwargs", {}) | FEW | {"interval": 20}
    model: Any = algorithm(name, environment(name, kind in GOALS), **settings)
    model.learn(64)
    assert kind in [base.__name__ for base in type(model.replay_buffer).__mro__]
    assert not model.replay_buffer.rewards.any()
    samples: Any = model.replay_buffer.sample(20)
    assert (samples.rewards > 0).all() and samples.rewards.shape == (20, 1)


@pytest.mark.parametrize(
    ("name", "kind", "way"),
    [(*pair, way) for pair in PAIRS for way in ("VIMEVecEnv", "VIME") if way != "VIME" or "SAC" in pair],
)
def test_off_policy_with_a_wrapper(name, kind, way):
    goals = kind in GOALS
    settings = FEW | {"interval": 20}
    if way == "VIME":
        env: Any = make_vec_env(lambda: VIME(Worthless(name in DISCRETE, goals), **settings), 2)
    else:
        env = sb3.VIMEVecEnv(environment(name, goals), **settings)
    model = algorithm(name, env, **buffer(kind))
    if kind == "HerReplayBuffer":
        with pytest.raises(InputError, match=f"recomputes rewards without the bonus; use .* instead of {way}"):
            model.learn(64)
        return
    model.learn(64)
    assert (model.replay_buffer.rewards[20:32] > 0).all()


def test_ars_whose_returns_a_monitor_around_it_counts():
    env: Any = VecMonitor(sb3.VIMEVecEnv(DummyVecEnv([lambda: Worthless(False, False)]), interval=20, **FEW))
    model = sb3_contrib.ARS("LinearPolicy", env, n_delta=1, device="cpu", seed=0)
    model.learn(100)
    assert env.venv.bonus.batches > 1 and model.ep_info_buffer
    assert all(info["r"] > 0 for info in model.ep_info_buffer)


def test_the_pages_table():
    rows = [f"| {', '.join(ON)} | every rollout buffer | yes | | yes |"]
    for kind, ours in OF_BUFFER.items():
        wrapped = "refused" if kind == "HerReplayBuffer" else "yes"
        names = ", ".join(name for name, of in PAIRS if of == kind)
        rows.append(f"| {names} | `{kind}` | refused | `{ours}` | {wrapped} |")
    rows.append("| ARS | | refused | | yes, with `VecMonitor` around it |")
    text = DOCS.read_text(encoding="utf-8")
    assert all(row in text for row in rows)


def test_what_a_buffer_does_not_take_is_refused():
    space = gym.spaces.Box(-1, 1, (2,))
    for cls in (sb3.VIMEDictReplayBuffer, sb3.VIMEHerReplayBuffer):
        with pytest.raises(InputError, match=f"{cls.__name__} supports Dict observations only; use VIMEReplayBuffer"):
            cls(10, space, space)
    with pytest.raises(
        InputError, match="VIMEReplayBuffer does not support n_steps and gamma; use VIMENStepReplayBuffer"
    ):
        sb3.VIMEReplayBuffer(10, space, space, n_steps=3, gamma=0.9)


@pytest.mark.parametrize("kind", ["VIMENStepReplayBuffer", "VIMEHerReplayBuffer"])
def test_bonuses_are_those_of_the_stored_transitions(kind):
    """Discounted over the steps of a return; those of another goal keep the bonus of their own."""
    settings = buffer(kind)
    settings["replay_buffer_kwargs"] = settings.get("replay_buffer_kwargs", {}) | FEW | {"interval": 20, "clip": None}
    model = algorithm("SAC", environment("SAC", "Her" in kind), **settings)
    model.learn(80)
    stored, bonus = model.replay_buffer, model.replay_buffer.bonus
    stored.rewards[:] = 2.0
    every = np.divmod(np.arange(80), 2)
    paid = bonus.scaled(bonus.score(stored.stored(every))).reshape(40, 2)
    if "Her" in kind:
        virtual = stored._get_virtual_samples(*every).rewards.numpy().reshape(40, 2)
        real = stored._get_real_samples(*every).rewards.numpy().reshape(40, 2)
        np.testing.assert_allclose(virtual, paid, rtol=1e-5)
        np.testing.assert_allclose(real, 2 + paid, rtol=1e-5)
    else:
        expected = np.zeros((40, 2))
        for t in range(40):  # episodes have 8 steps, and the last of the stored ones ends a return too
            for k in range(min(3, 8 - t % 8, 40 - t)):
                expected[t] += 0.9**k * (2 + paid[t + k])
        np.random.seed(1)
        envs = np.random.randint(0, 2, 40)
        np.random.seed(1)
        found = stored._get_samples(np.arange(40)).rewards.numpy()[:, 0]
        np.testing.assert_allclose(found, expected[np.arange(40), envs], rtol=1e-5)
    assert isinstance(stored.rewards, np.ndarray)
