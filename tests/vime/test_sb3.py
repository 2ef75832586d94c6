"""VIME in stable-baselines3."""

from contextlib import nullcontext
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.wrappers import NormalizeObservation, NormalizeReward
from sb3_contrib import ARS, TRPO, MaskablePPO, RecurrentPPO
from stable_baselines3 import DQN, PPO, SAC
from stable_baselines3.common import env_checker
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecFrameStack, VecMonitor, VecNormalize

from explore.core.errors import InputError
from explore.envs import ENVS
from explore.vime import VIME, sb3
from explore.vime.env_wrappers import KEYS

FEW: dict[str, Any] = {"minimum": 10, "hidden": (4,), "capacity": 1000}
POLE = "explore/SparseCartPoleSwingup-v0"


def batched(name=POLE, n=3, mode=AutoresetMode.SAME_STEP, **settings) -> Any:
    return sb3.BatchedVecEnv(
        gym.make_vec(name, n, vectorization_mode="vector_entry_point", autoreset_mode=mode, **settings)
    )


def chain(limit=5):
    return gym.wrappers.TimeLimit(gym.make("explore/Chain-v0").unwrapped, limit)


def small(env, cls: Any = PPO, policy="MlpPolicy", **settings):
    return cls(policy, env, n_steps=16, batch_size=16, seed=0, device="cpu", **settings)


@pytest.mark.filterwarnings("ignore:Your observation .* has an unconventional shape")
@pytest.mark.parametrize("name", ENVS)
def test_stable_baselines3s_checker(name):
    env_checker.check_env(VIME(gym.make(name), **FEW), skip_render_check=True)


def test_a_batched_environment_is_like_several_single_ones():
    ours: Any = batched(max_episode_steps=9)
    theirs: Any = DummyVecEnv([lambda: gym.make(POLE, max_episode_steps=9)] * 3)
    rng = np.random.default_rng(0)
    for env in (ours, theirs):
        env.seed(4)
    np.testing.assert_array_equal(ours.reset(), theirs.reset())
    ended = 0
    for _ in range(40):
        actions = rng.uniform(-1, 1, (3, 1)).astype(np.float32)
        (o, r, d, infos), (o2, r2, d2, infos2) = ours.step(actions), theirs.step(actions)
        np.testing.assert_allclose(o, o2, atol=1e-5)
        np.testing.assert_array_equal(r, r2)
        np.testing.assert_array_equal(d, d2)
        for info, info2 in zip(infos, infos2, strict=True):
            assert info.get("TimeLimit.truncated", False) == info2.get("TimeLimit.truncated", False)
            if "terminal_observation" in info2:
                np.testing.assert_allclose(info["terminal_observation"], info2["terminal_observation"], atol=1e-5)
                ended += 1
    assert ended >= 12


def test_another_reset_mode_is_refused():
    with pytest.raises(InputError, match="SAME_STEP"):
        batched(mode=AutoresetMode.NEXT_STEP)


class Keep(BaseCallback):
    """Rewards, values and ends of each step, as they were before any bonus."""

    def __init__(self):
        super().__init__()
        self.rows: list[tuple[np.ndarray, ...]] = []

    def _on_rollout_start(self):
        self.rows = []

    def _on_step(self):
        names = ("rewards", "dones", "new_obs")
        self.rows.append(tuple(np.array(self.locals[name]) for name in names))
        return True


class Logged(BaseCallback):
    """What has been logged at the end of a rollout."""

    def __init__(self):
        super().__init__()
        self.values: dict[str, Any] = {}

    def _on_step(self):
        return True

    def _on_rollout_end(self):
        self.values |= self.logger.name_to_value


class Choices(gym.Env):
    """Actions of which every other one is forbidden; episodes of seven steps end and are cut off in turns."""

    observation_space = gym.spaces.Box(-5, 5, (2,))
    action_space = gym.spaces.Discrete(4)
    episodes = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episodes += 1
        self.place, self.time = self.np_random.normal(size=2), 0
        return self.place.astype(np.float32), {}

    def step(self, action):
        self.time += 1
        self.place = 0.9 * self.place + np.array([action - 1.5, self.time]) / 7
        ended, cut = self.time == 7, self.episodes % 2 == 0
        return self.place.astype(np.float32), float(self.place[0]), ended and not cut, ended and cut, {}

    def action_masks(self):
        return np.arange(4) % 2 == self.time % 2


@pytest.mark.parametrize("cls", [PPO, TRPO, MaskablePPO, RecurrentPPO])
def test_returns_are_those_that_the_algorithm_computes_from_paid_rewards(cls):
    """Its own, of the rewards without a bonus, and the discounted bonus: what the critic says does not change."""

    class Given(sb3.VIMECallback):
        """Has the algorithm's own returns and advantages when the bonus comes."""

        def _on_rollout_end(self):
            buffer = self.locals["rollout_buffer"]
            self.own, rewards = (buffer.returns.copy(), buffer.advantages.copy()), buffer.rewards.copy()
            super()._on_rollout_end()
            self.paid = buffer.rewards - rewards
            self.starts, self.found = buffer.episode_starts.copy(), (buffer.returns.copy(), buffer.advantages.copy())

    callback = Given(eta=0.3, **FEW)
    policy = "MlpLstmPolicy" if cls is RecurrentPPO else "MlpPolicy"
    model = small(make_vec_env(Choices, 3), cls, policy, gamma=0.9, gae_lambda=0.8)
    for rollouts in (1, 2):
        # The first pays nothing, and says so.
        said = pytest.warns(UserWarning, match="the bonus was always 0") if rollouts == 1 else nullcontext()
        with said:
            model.learn(16 * 3, callback, reset_num_timesteps=False)
        assert callback.paid.any() == (rollouts == 2)
        bonus, total = np.zeros((16, 3)), np.zeros(3)
        for t in reversed(range(16)):
            goes_on = 0 if t == 15 else 1 - callback.starts[t + 1]
            total = callback.paid[t] + 0.9 * 0.8 * goes_on * total
            bonus[t] = total
        for own, found in zip(callback.own, callback.found, strict=True):
            np.testing.assert_allclose(found, own + bonus, atol=2e-6)


@pytest.mark.parametrize("cls", [PPO, TRPO])
def test_the_callback_pays_before_returns_are_computed(cls):
    callback, keep = sb3.VIMECallback(eta=0.7, **FEW), Keep()
    model = small(VecMonitor(batched("explore/SparseDoublePendulum-v0", 4)), cls, gae_lambda=1.0, gamma=0.9)
    model.learn(2 * 16 * 4, [keep, callback])
    buffer = model.rollout_buffer  # flattened by the training, but for the rewards
    values, found, advantages = (a.reshape(4, 16).T for a in (buffer.values, buffer.returns, buffer.advantages))
    rewards = np.stack([row[0] for row in keep.rows])
    bonus = buffer.rewards - rewards
    assert (bonus > 0).all()
    # With lambda = 1 the returns are discounted sums, closed by the last value.
    returns, total = np.zeros_like(rewards), callback.locals["values"].numpy()[:, 0]
    for t in reversed(range(16)):
        total = buffer.rewards[t] + 0.9 * total
        returns[t] = total
    np.testing.assert_allclose(found, returns, rtol=1e-4)
    np.testing.assert_allclose(advantages, returns - values, rtol=1e-3, atol=1e-3)
    assert callback.bonus.batches == 2


def test_the_callback_learns_whole_episodes_only():
    callback = sb3.VIMECallback(**FEW)
    model = small(make_vec_env(chain, 3))
    model.learn(3 * 16 * 2, callback)
    replay = callback.bonus.replay
    places = [t.argmax(1) for t in (replay.inputs[:, : replay.next.shape[1]], replay.next)]
    assert len(replay) == 96 and ((places[0] - places[1]).abs() <= 1).all()


def test_episode_returns_stay_the_environments():
    envs = {
        "callback": make_vec_env(chain, 2),
        "vector": sb3.VIMEVecEnv(make_vec_env(chain, 2), eta=100.0, interval=20, **FEW),
        "single": sb3.monitored(chain(), eta=100.0, interval=20, **FEW),
    }
    for name, env in envs.items():
        model = small(env)
        model.learn(128, sb3.VIMECallback(eta=100.0, **FEW) if name == "callback" else None)
        assert model.ep_info_buffer and all(info["r"] <= 5 for info in model.ep_info_buffer), name


def test_what_is_logged():
    callback, logged = sb3.VIMECallback(eta=100.0, **FEW), Logged()
    small(make_vec_env(chain, 2)).learn(64, [callback, logged])
    expected = {"bonus_mean", "bonus_median", "bonus_max", "eta", "kl_divisor", "dyn_nll_before", "dyn_rmse_after"}
    assert {f"vime/{name}" for name in expected} <= logged.values.keys()
    assert logged.values["rollout/ep_intrinsic_mean"] > 5 >= logged.values["rollout/ep_extrinsic_mean"]


@pytest.mark.parametrize("way", ["single", "vector", "buffer"])
def test_what_a_wrapper_or_a_buffer_pays_is_logged(way):
    settings: dict[str, Any] = {"eta": 100.0, "interval": 20, **FEW}
    env: Any = VecMonitor(batched(n=2))
    if way == "buffer":
        model: Any = SAC(
            "MlpPolicy", env, replay_buffer_class=sb3.VIMEReplayBuffer, replay_buffer_kwargs=settings,
            learning_starts=100, buffer_size=500, device="cpu", policy_kwargs={"net_arch": [8]},
        )  # fmt: skip
        bonus = model.replay_buffer.bonus
    else:
        env = (
            sb3.monitored(chain(), **settings)
            if way == "single"
            else sb3.VIMEVecEnv(make_vec_env(chain, 2), **settings)
        )
        model, bonus = small(env), env.bonus
    logged = Logged()
    model.learn(64, [sb3.VIMELog(bonus), logged])
    assert {"vime/bonus_median", "vime/dyn_nll_after"} <= logged.values.keys()
    if way != "buffer":
        assert logged.values["rollout/ep_intrinsic_mean"] > 5 >= logged.values["rollout/ep_extrinsic_mean"]


@pytest.mark.parametrize("way", ["single", "vector", "buffer"])
def test_a_bonus_that_is_never_paid_is_said(way):
    settings: dict[str, Any] = FEW | {"interval": 60, "minimum": 70}
    if way == "buffer":
        model: Any = SAC(
            "MlpPolicy", VecMonitor(batched(n=2)), replay_buffer_class=sb3.VIMEReplayBuffer,
            replay_buffer_kwargs=settings, learning_starts=40, buffer_size=500, device="cpu",
            policy_kwargs={"net_arch": [8]},
        )  # fmt: skip
        bonus = model.replay_buffer.bonus
    else:
        env: Any = sb3.monitored(chain(), **settings)
        if way == "vector":
            env = sb3.VIMEVecEnv(make_vec_env(chain, 2), **settings)
        model, bonus = small(env), env.bonus
    with pytest.warns(UserWarning, match=r"always 0: .*`interval` \(60\) .*`minimum` \(70\); 96 were"):
        model.learn(96, sb3.VIMELog(bonus))
    model.learn(64, sb3.VIMELog(bonus), reset_num_timesteps=False)


@pytest.mark.parametrize("wrap", [lambda env: env, lambda env: VecFrameStack(env, 2)])
def test_vecnormalize_inside_is_refused(wrap):
    with pytest.raises(InputError, match="put VecNormalize around it, not inside"):
        sb3.VIMEVecEnv(wrap(VecNormalize(make_vec_env(chain, 2), norm_obs=False)), **FEW)
    assert sb3.VIMEVecEnv(wrap(make_vec_env(chain, 2)), **FEW).bonus


def test_a_vector_wrapper_pays_every_step_and_not_in_evaluation():
    env = sb3.VIMEVecEnv(batched(n=3, max_episode_steps=6), eta=1.0, interval=15, **FEW)
    env.reset()
    paid = []
    for _ in range(20):
        _, rewards, dones, infos = env.step(np.zeros((3, 1), np.float32))
        paid.append(rewards)
        assert [i["extrinsic_reward"] + i["intrinsic_reward"] for i in infos] == pytest.approx(rewards)
    assert not np.any(paid[:5]) and np.all(paid[5:]) and env.bonus.replay.total == 60
    env.training = False
    _, rewards, _, infos = env.step(np.zeros((3, 1), np.float32))
    assert not rewards.any() and env.bonus.replay.total == 60
    assert [{key: info[key] for key in KEYS} for info in infos] == [dict.fromkeys(KEYS, 0.0)] * 3


def test_terminal_observations_are_the_ones_learnt():
    env = sb3.VIMEVecEnv(make_vec_env(chain, 2), interval=1000, **FEW)
    env.reset()
    for _ in range(30):
        env.step(np.ones(2, int))
    replay = env.bonus.replay
    places = [t.argmax(1) for t in (replay.inputs[:, : replay.next.shape[1]], replay.next)]
    assert len(replay) == 60 and (places[1] - places[0] == 1).all() and int(places[1].max()) == 6


def test_beside_vecnormalize_the_model_sees_the_raw_observations():
    callback = sb3.VIMECallback(**FEW)
    env = VecNormalize(VecMonitor(batched("explore/SparseMountainCar-v0", 2, max_episode_steps=10)), norm_reward=False)
    keep = Keep()
    small(env).learn(16 * 2 * 2, [callback, keep])
    raw: Any = env.get_original_obs()
    np.testing.assert_allclose(callback.bonus.replay.last(2)[1].numpy(), raw, rtol=1e-5)
    before, after = (t.unflatten(0, (-1, 2)) for t in (callback.bonus.replay.inputs[:, :2], callback.bonus.replay.next))
    assert float(before[..., 0].abs().max()) < 1.5  # the valley; standardised positions of so few steps reach further
    assert len(before) == 32
    for t in range(31):
        if (t + 1) % 10:  # no episode ended with step t
            assert torch.equal(before[t + 1], after[t])


def test_last_observations_are_learnt_as_they_were_before_vecnormalize_clips():
    class Jump(gym.Env):
        """Stays near 0, and ends far away."""

        observation_space, action_space = gym.spaces.Box(-1e6, 1e6, (1,)), gym.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.time = 0
            return self.np_random.normal(size=1).astype(np.float32), {}

        def step(self, action):
            self.time += 1
            last = self.time == 8
            place = np.array([1000 + action], np.float32) if last else self.np_random.normal(size=1).astype(np.float32)
            return place, 0.0, last, False, {}

    callback = sb3.VIMECallback(**FEW)
    env = VecNormalize(make_vec_env(Jump, 2), norm_reward=False, clip_obs=3.0)
    # EvalCallback compares its chain of wrappers with that of the training.
    evaluation = EvalCallback(VecNormalize(make_vec_env(Jump, 2), training=False), eval_freq=16, verbose=0)
    small(env).learn(32 * 2, [callback, evaluation])
    replay = callback.bonus.replay
    far = replay.next[:, 0] > 100
    assert len(replay) == 64 and int(far.sum()) == 8
    np.testing.assert_array_equal(replay.next[far, 0], 1000 + replay.inputs[far, 2].numpy())
    assert "step_wait" not in vars(env.venv)


def test_observations_changed_outside_of_vecnormalize_are_refused():
    stacked = VecFrameStack(VecNormalize(make_vec_env(chain, 2)), 2)
    with pytest.raises(InputError, match="put VecNormalize around VecFrameStack"):
        small(stacked).learn(32, sb3.VIMECallback(**FEW))
    callback = sb3.VIMECallback(**FEW)
    small(VecNormalize(VecFrameStack(make_vec_env(chain, 2), 2), norm_reward=False)).learn(64, callback)
    assert len(callback.bonus.replay) == 64


def test_returns_beside_normalised_rewards_are_the_environments():
    callback, logged = sb3.VIMECallback(**FEW), Logged()
    env = VecNormalize(make_vec_env(lambda: gym.make("Pendulum-v1"), 2))
    env.ret_rms.var, env.training = np.array(50.0), False  # a scale that stays
    model = PPO("MlpPolicy", env, n_steps=200, batch_size=50, n_epochs=1, seed=0, device="cpu")
    with pytest.warns(UserWarning, match="the bonus was always 0"):
        model.learn(400, [callback, logged])
    assert model.ep_info_buffer is not None
    expected = np.mean([info["r"] for info in model.ep_info_buffer])
    assert logged.values["rollout/ep_extrinsic_mean"] == pytest.approx(expected, rel=1e-5)


def test_a_bonus_beside_rewards_whose_scale_moves_is_refused():
    env = VecNormalize(make_vec_env(lambda: gym.make("Pendulum-v1"), 2))
    with pytest.raises(InputError, match="set norm_reward=False, or put VecNormalize around VIMEVecEnv"):
        small(env).learn(32, sb3.VIMECallback(**FEW))
    model = SAC(
        "MlpPolicy", env, replay_buffer_class=sb3.VIMEReplayBuffer, replay_buffer_kwargs=FEW, learning_starts=10,
        buffer_size=100, batch_size=8, device="cpu", policy_kwargs={"net_arch": [8]},
    )  # fmt: skip
    with pytest.raises(InputError, match="set norm_reward=False"):
        model.learn(20)


class Counting(gym.Env):
    """Pays whole numbers, as Python has them."""

    observation_space, action_space = gym.spaces.Discrete(5), gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        return int(self.np_random.integers(5)), 1, False, False, {}


# A process takes seconds to start, so that there is one.
@pytest.mark.parametrize(("kind", "n"), [(DummyVecEnv, 2), (SubprocVecEnv, 1)])
def test_rewards_that_are_whole_numbers_do_not_cut_the_bonus_off(kind, n):
    env = sb3.VIMEVecEnv(make_vec_env(Counting, n, vec_env_cls=kind), **FEW, interval=20)
    env.reset()
    for _ in range(30):
        _, rewards, _, infos = env.step(np.arange(n))
        added = [info["intrinsic_reward"] for info in infos]
        np.testing.assert_allclose(rewards, 1 + np.array(added), rtol=1e-6)
    assert min(added) > 0
    env.close()


@pytest.mark.parametrize(
    ("kind", "wrapper", "n"),
    [(DummyVecEnv, NormalizeReward, 2), (DummyVecEnv, NormalizeObservation, 2), (SubprocVecEnv, NormalizeReward, 1)],
)
def test_single_environments_that_normalise_inside_are_refused(kind, wrapper, n):
    env = make_vec_env("Pendulum-v1", n, wrapper_class=wrapper, vec_env_cls=kind)
    message = f"put {wrapper.__name__} around it, not inside"
    with pytest.raises(InputError, match=message):
        sb3.VIMEVecEnv(env, **FEW)
    with pytest.raises(InputError, match=message):
        small(env).learn(32, sb3.VIMECallback(**FEW))
    env.set_attr("update_running_mean", False)
    sb3.VIMEVecEnv(env, **FEW)
    env.close()


def test_a_callback_has_no_interval():
    with pytest.raises(InputError, match="interval does not apply to VIMECallback"):
        sb3.VIMECallback(interval=3)


class Told(VectorEnv):
    """Three copies, of which the second ends at every second step; what it says of itself stands in the infos."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
    num_envs = 3
    single_observation_space = observation_space = gym.spaces.Box(-1, 1, (1,))
    single_action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.time = 0
        return np.zeros((3, 1), np.float32), {}

    def step(self, actions):
        self.time += 1
        ended = np.array([False, self.time % 2 == 0, False])
        infos: dict[str, Any] = {"time": np.full(3, self.time)}
        infos |= {"odd": np.full(3, 7.0), "_odd": np.array([True, False, True])}
        if ended.any():
            final = {"is_success": np.array([False, True, False]), "_is_success": ended, "deep": {"a": np.arange(3)}}
            infos |= {"final_obs": np.ones((3, 1), np.float32), "_final_obs": ended}
            infos |= {"final_info": final, "_final_info": ended, "time": np.zeros(3, int)}
        return np.zeros((3, 1), np.float32), np.ones(3), ended, np.zeros(3, bool), infos


def test_infos_of_batched_environments_are_those_of_each():
    env = sb3.BatchedVecEnv(Told())
    env.reset()
    assert env.step(np.zeros(3))[3] == [{"time": 1, "odd": 7.0}, {"time": 1}, {"time": 1, "odd": 7.0}]
    first, second, _ = env.step(np.zeros(3))[3]
    assert first == {"time": 0, "odd": 7.0}
    assert second.pop("terminal_observation").tolist() == [1.0]
    assert second == {"is_success": True, "deep": {"a": 1}, "TimeLimit.truncated": False}


def test_sac_pays_when_it_samples():
    env = VecMonitor(batched("explore/SparseMountainCar-v0", 2))
    kwargs = {"eta": 0.5, "interval": 40, **FEW}
    model = SAC(
        "MlpPolicy", env, replay_buffer_class=sb3.VIMEReplayBuffer, replay_buffer_kwargs=kwargs, learning_starts=60,
        buffer_size=500, batch_size=8, seed=0, device="cpu", policy_kwargs={"net_arch": [8]},
    )  # fmt: skip
    model.learn(100)
    buffer: Any = model.replay_buffer
    assert not buffer.rewards.any() and buffer.bonus.batches == 2
    np.random.seed(0)
    samples = buffer.sample(16)
    assert (samples.rewards > 0).all()
    bonus = buffer.bonus
    state = {name: value.clone() for name, value in bonus.state_dict().items()}
    bonus.seed(1)
    np.random.seed(0)
    assert not buffer.sample(16).rewards.any()  # a model that knows nothing yet
    bonus.load_state_dict(state)
    np.random.seed(0)
    np.testing.assert_array_equal(buffer.sample(16).rewards, samples.rewards)


def test_sac_with_vecnormalize_normalises_after_the_bonus():
    env = VecNormalize(VecMonitor(batched("explore/SparseMountainCar-v0", 2)), norm_reward=False)
    model = SAC(
        "MlpPolicy", env, replay_buffer_class=sb3.VIMEReplayBuffer, replay_buffer_kwargs={"interval": 40, **FEW},
        learning_starts=60, buffer_size=500, batch_size=8, seed=0, device="cpu", policy_kwargs={"net_arch": [8]},
    )  # fmt: skip
    model.learn(80)
    buffer: Any = model.replay_buffer
    np.random.seed(0)
    raw = buffer.sample(8)
    np.random.seed(0)
    scaled = buffer.sample(8, env)
    normalised: Any = env.normalize_obs(raw.observations.numpy())
    np.testing.assert_allclose(normalised, scaled.observations, rtol=1e-5)
    np.testing.assert_array_equal(raw.rewards, scaled.rewards)


def test_each_algorithm_has_its_way():
    model = SAC("MlpPolicy", batched(n=1), device="cpu", buffer_size=10)
    with pytest.raises(InputError, match="on-policy.*VIMEReplayBuffer"):
        model.learn(1, sb3.VIMECallback(**FEW))
    evolved = ARS("LinearPolicy", batched(n=1), n_delta=1, device="cpu")
    with pytest.raises(InputError, match="for ARS use VIMEVecEnv"):
        evolved.learn(1, sb3.VIMECallback(**FEW))
    with pytest.raises(InputError, match="Dict observations; use VIMEDictReplayBuffer"):
        sb3.VIMEReplayBuffer(10, gym.spaces.Dict({}), gym.spaces.Discrete(2))
    with pytest.raises(InputError, match="drops the last observations"):
        sb3.VIMEReplayBuffer(10, gym.spaces.Box(0, 1, (1,)), gym.spaces.Discrete(2), optimize_memory_usage=True)
    with pytest.raises(InputError, match="eta applies to a new bonus only"):
        sb3.VIMECallback(sb3.VIMEVecEnv(batched(n=1), **FEW).bonus, eta=0.5)


@pytest.mark.parametrize("way", ["single", "vector"])
def test_evaluation_is_neither_paid_nor_learnt_from(way):
    """On the environment of the training and on another one; there is no Monitor inside that would hide a bonus."""
    settings: dict[str, Any] = {"eta": 1000.0, "interval": 20, **FEW}

    def make():
        return VIME(chain(), **settings) if way == "single" else sb3.VIMEVecEnv(DummyVecEnv([chain]), **settings)

    env, other = make(), make()
    model = small(env)
    evaluation = EvalCallback(other, eval_freq=40, n_eval_episodes=2, warn=False, verbose=0)
    model.learn(64, evaluation)
    seen = env.bonus.replay.total
    assert seen == 64 and evaluation.last_mean_reward <= 5
    state = env.bonus.state_dict()
    mean: Any = evaluate_policy(model, env, n_eval_episodes=9, warn=False)[0]
    assert mean <= 5
    again = env.bonus.state_dict()
    assert again.keys() == state.keys() and all(torch.equal(again[key], state[key]) for key in state)
    assert not other.bonus.replay.total
    model.learn(16, reset_num_timesteps=False)
    assert env.bonus.replay.total == 80
    replay = env.bonus.replay
    places = [t.argmax(1) for t in (replay.inputs[:, : replay.next.shape[1]], replay.next)]
    assert ((places[0] - places[1]).abs() <= 1).all()


def test_a_switch_makes_an_environment_one_for_evaluation():
    env = sb3.VIMEVecEnv(DummyVecEnv([chain]), training=False, interval=20, **FEW)
    env.reset()
    for _ in range(30):
        env.step(np.ones(1, int))
    assert not env.bonus.replay.total


def discrete(cls, env, **settings):
    """An algorithm of actions as it takes them, tiny."""
    few: dict[str, Any] = {"learning_starts": 20, "batch_size": 8, "buffer_size": 200, "train_freq": 4}
    few = {"n_steps": 16, "batch_size": 16} if cls is PPO else few
    return cls("MlpPolicy", env, seed=0, device="cpu", policy_kwargs={"net_arch": [8]}, **few | settings)


@pytest.mark.parametrize(
    ("cls", "way", "normalised"),
    [
        (PPO, "callback", False), (PPO, "vector", True), (SAC, "buffer", True), (SAC, "vector", False),
        (DQN, "buffer", False), (DQN, "single", True),
    ],
)  # fmt: skip
def test_with_eta_zero_a_run_is_bit_for_bit_the_one_without_a_bonus(cls, way, normalised):
    settings: dict[str, Any] = {"eta": 0.0, **FEW} | ({} if way == "callback" else {"interval": 20})
    name = "Pendulum-v1" if cls is SAC else "CartPole-v1"

    def trained(bonus):
        inside = bonus and way == "single"
        env: Any = make_vec_env(
            name, 2, wrapper_class=VIME if inside else None, wrapper_kwargs=settings if inside else None
        )
        env = sb3.VIMEVecEnv(env, **settings) if bonus and way == "vector" else env
        env = VecNormalize(env, norm_reward=False) if normalised else env
        own: dict[str, Any] = {}
        if bonus and way == "buffer":
            own = {"replay_buffer_class": sb3.VIMEReplayBuffer, "replay_buffer_kwargs": settings}
        model = discrete(cls, env, **own)
        model.learn(96, sb3.VIMECallback(**settings) if bonus and way == "callback" else None)
        numpys: Any = np.random.get_state()
        return [*model.policy.state_dict().values(), torch.get_rng_state(), torch.tensor(numpys[1])]

    assert all(torch.equal(a, b) for a, b in zip(trained(True), trained(False), strict=True))


def test_an_encoder_leaves_the_numbers_of_the_space():
    env = Nested()
    env.observation_space.seed(3)
    expected = env.observation_space.sample()
    env.observation_space.seed(3)
    VIME(env, encoder=lambda batch: np.ones((len(batch), 2)), **FEW)
    assert env.observation_space.sample() == expected


class Nested(gym.Env):
    observation_space, action_space = gym.spaces.Discrete(1000), gym.spaces.Discrete(2)


@pytest.mark.parametrize("way", ["callback", "buffer", "vector"])
def test_the_algorithms_seed_is_the_bonuses(way):
    def seed(given, **own):
        settings = FEW | own
        env: Any = make_vec_env("CartPole-v1", 2)
        if way == "buffer":
            kwargs: Any = {"replay_buffer_class": sb3.VIMEReplayBuffer, "replay_buffer_kwargs": settings}
            dqn: Any = DQN("MlpPolicy", env, buffer_size=50, seed=given, device="cpu", **kwargs)
            return dqn.replay_buffer.bonus.rng.seed
        env = sb3.VIMEVecEnv(env, **settings) if way == "vector" else env
        model = PPO("MlpPolicy", env, n_steps=8, batch_size=16, seed=given, device="cpu")
        callback = sb3.VIMECallback(**settings) if way == "callback" else None
        model.learn(32, callback)
        return (env if callback is None else callback).bonus.rng.seed

    assert seed(5) == seed(5) != seed(6)
    assert seed(5, seed=7) == 7
    if way != "buffer":
        assert (seed(5), seed(None)) == (5, 0)


@pytest.mark.filterwarnings("ignore:the bonus was always 0")
@pytest.mark.parametrize("way", ["callback", "buffer", "vector", "single"])
def test_an_automatic_weight_follows_the_rewards_of_the_environment(way):
    def env():
        return gym.wrappers.TransformReward(chain(), lambda reward: 1000 * float(reward) - 7)

    settings = FEW | {"eta": "auto"}
    if way == "buffer":
        kwargs: Any = {"replay_buffer_class": sb3.VIMEReplayBuffer, "replay_buffer_kwargs": settings}
        dqn: Any = DQN("MlpPolicy", make_vec_env(env, 2), buffer_size=50, seed=0, device="cpu", **kwargs)
        dqn.learn(16)
        bonus = dqn.replay_buffer.bonus
    elif way == "callback":
        callback = sb3.VIMECallback(**settings)
        small(make_vec_env(env, 2)).learn(16, callback)
        bonus = callback.bonus
    else:
        wrapped: Any = sb3.monitored(env(), **settings)
        if way == "vector":
            wrapped = sb3.VIMEVecEnv(make_vec_env(env, 2), **settings)
        small(wrapped).learn(16)
        bonus = wrapped.bonus
    assert bonus.eta == pytest.approx(0.007)


def test_a_bonus_that_has_learnt_keeps_its_seed():
    env = sb3.VIMEVecEnv(make_vec_env(chain, 2), seed=None, interval=20, **FEW)
    assert env.seed(4) == [4, 5] and env.bonus.rng.seed == 4
    env.seed(9)
    assert env.bonus.rng.seed == 4
