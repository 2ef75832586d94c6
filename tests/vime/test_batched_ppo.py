"""PPO of several seeds at once, against stable-baselines3 one by one."""

import copy
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.callbacks import BaseCallback, StopTrainingOnMaxEpisodes
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import DummyVecEnv
from torch.nn.utils import parameters_to_vector

import explore.envs  # noqa: F401  (registers its environments)
from explore.cli.rl.model import load_state_dict, state_dict
from explore.core.errors import InputError
from explore.core.rng import Rng
from explore.vime.sb3 import BatchedPPO, SteadyPPO, VIMECallback
from explore.vime.sb3.batched_ppo import _Iteration
from explore.vime.sb3.steady import DECAY, FLOOR

STEPS, COPIES = 20, 3
LARGE = 1e3  # a deviation of advantages beside which all others are small
SETTINGS = [
    ("explore/Chain-v0", {"target_kl": 0.003, "ent_coef": 0.02}),
    ("Pendulum-v1", {"clip_range_vf": 0.1, "max_grad_norm": 0.01}),
    ("FrozenLake-v1", {"normalize_advantage": False, "gae_lambda": 0.9}),  # observations are numbers of states
]


def model(env, seed, kind=PPO, **settings) -> Any:
    settings = {"n_steps": STEPS, "batch_size": STEPS * COPIES, "n_epochs": 7, "learning_rate": 0.003} | settings
    own = kind("MlpPolicy", DummyVecEnv([partial(gym.make, env)] * COPIES), seed=seed, device="cpu", **settings)
    own.set_logger(Logger(None, []))
    return own


def weights(own):
    return parameters_to_vector(own.policy.parameters()).detach().clone()


@pytest.mark.parametrize(("env", "settings"), [*SETTINGS, ("explore/Chain-v0", {"kind": SteadyPPO})])
def test_steps_are_those_of_stable_baselines3(env, settings, monkeypatch):
    """One minibatch per epoch: their orders do not matter. Twice, for Adam's moments."""
    models = [model(env, seed, **settings) for seed in (1, 2, 3)]
    if "kind" in settings:
        models[0].spread = torch.tensor(LARGE)
    monkeypatch.setattr(_Iteration, "_collect", lambda *_: None)
    for _ in range(2):
        for own in models:
            _, callback = own._setup_learn(60, None, False)
            own.collect_rollouts(own.env, callback, own.rollout_buffer, STEPS)
        theirs = [copy.deepcopy((own.policy, own.rollout_buffer, own._n_updates)) for own in models]
        wanted, logs = [], []
        for own, before in zip(models, theirs, strict=True):
            own.train()
            wanted.append((weights(own), own._n_updates))
            logs.append(dict(own.logger.name_to_value))
            own.policy, own.rollout_buffer, own._n_updates = before
            if "kind" in settings:
                own.spread = own.spread / DECAY  # not twice
        _Iteration(models, [Rng(seed) for seed in (1, 2, 3)]).run([Kept([])] * 3, 10**6)
        for own, (expected, updates), log in zip(models, wanted, logs, strict=True):
            torch.testing.assert_close(weights(own), expected, atol=1e-5, rtol=0)
            assert own._n_updates == updates
            found = own.logger.name_to_value
            for name in ("entropy_loss", "policy_gradient_loss", "value_loss", "clip_fraction", "explained_variance"):
                assert found[f"train/{name}"] == pytest.approx(log[f"train/{name}"], rel=1e-3, abs=1e-6), name
    if "target_kl" in settings:
        assert len({updates for _, updates in wanted}) > 1, "no policy stopped before another"


def test_advantages_that_are_noise_stay_small():
    """Steps are those of PPO, until advantages are a thousandth of what they were; a copy of a model knows that."""
    plain, steady = (model("explore/Chain-v0", 1, kind).learn(STEPS * COPIES) for kind in (PPO, SteadyPPO))
    torch.testing.assert_close(weights(steady), weights(plain), atol=1e-5, rtol=0)
    assert steady.normalize_advantage and 0 < steady.spread < LARGE / 10
    noise = np.random.default_rng(0).normal(size=(STEPS, COPIES))
    for size, deviation in ((LARGE, 1.0), (1.0, 1 / (FLOOR * DECAY * LARGE))):
        steady.rollout_buffer.advantages = np.float32(3 + size * noise / noise.std(ddof=1))
        steady.normalise()
        found = steady.rollout_buffer.advantages
        assert found.mean() == pytest.approx(0, abs=1e-5) and found.std(ddof=1) == pytest.approx(deviation, rel=1e-3)
    kept, other = state_dict(steady), model("explore/Chain-v0", 2, SteadyPPO)
    load_state_dict(other, kept)
    assert other.spread == steady.spread == np.float32(DECAY * LARGE)


VIME: dict[str, Any] = {"minimum": 30, "updates": 2, "bonus": "kl", "posterior": "bbb"}


def learnt(env, seeds, steps, **settings):
    """Models and the buffers of the first one's rollouts, if trained together."""
    models, buffers = [model(env, seed, **settings) for seed in seeds], list[Any]()
    callbacks = [[VIMECallback(seed=seed, **VIME), Kept(buffers)] for seed in seeds]
    BatchedPPO(models, seeds).learn(steps, callbacks)
    return models, [buffer for name, buffer in buffers if name == models[0].seed]


class Kept(BaseCallback):
    """Keeps a copy of each rollout, with the bonus."""

    def __init__(self, buffers):
        super().__init__()
        self.buffers: Any = buffers

    def _on_step(self):
        return True

    def _on_rollout_end(self):
        model: Any = self.model
        self.buffers.append((model.seed, copy.deepcopy(model.rollout_buffer)))


@pytest.mark.parametrize("env", [env for env, _ in SETTINGS])
def test_rollouts_are_those_of_stable_baselines3(env, monkeypatch):
    """With a bonus, and episodes that end by time limits, if the actions are the same and nothing is learnt."""
    _, mine = learnt(env, (4, 5), 3 * STEPS * COPIES, learning_rate=0.0)
    theirs, buffers = model(env, 4, learning_rate=0.0), list[Any]()
    actions = iter([torch.as_tensor(a) for buffer in mine for a in buffer.actions])

    def forward(observations):
        chosen = next(actions)
        chosen = chosen[:, 0].long() if theirs.action_space.shape == () else chosen
        values, log_probs, _ = theirs.policy.evaluate_actions(observations, chosen)
        return chosen, values, log_probs

    monkeypatch.setattr(theirs.policy, "forward", forward)
    theirs.learn(3 * STEPS * COPIES, [VIMECallback(seed=4, **VIME), Kept(buffers)])
    assert len(mine) == len(buffers) == 3
    for own, (_, buffer) in zip(mine, buffers, strict=True):
        for name in ("observations", "rewards", "episode_starts", "values", "log_probs", "advantages", "returns"):
            found, wanted = getattr(own, name), getattr(buffer, name)
            np.testing.assert_allclose(found, wanted, atol=1e-5, rtol=1e-4, err_msg=name)


@pytest.mark.parametrize("env", ["explore/Chain-v0", "Pendulum-v1"])
def test_a_seed_does_not_depend_on_those_beside_it_or_on_when_they_began(env):
    steps = 2 * STEPS * COPIES
    (alone,), _ = learnt(env, (7,), steps, batch_size=15)
    late = [model(env, seed, batch_size=15) for seed in (8, 7)]
    BatchedPPO(late[:1], (8,)).learn(steps // 2, [[]])
    BatchedPPO(late, (8, 7)).learn(steps, [[], VIMECallback(seed=7, **VIME)])
    assert [own.num_timesteps for own in late] == [steps, steps]
    torch.testing.assert_close(weights(late[1]), weights(alone), atol=1e-5, rtol=0)
    assert not torch.equal(weights(late[0]), weights(alone))


def test_actions_follow_the_policy():
    """Of 40 copies, with noise of their own, actions are as frequent as the policy says."""
    own = PPO("MlpPolicy", DummyVecEnv([partial(gym.make, "explore/Chain-v0")] * 40), n_steps=64, seed=0, device="cpu")
    own.policy.action_net.bias.data = torch.tensor([1.0, 0.0])
    own.set_logger(Logger(None, []))
    buffers: list[Any] = []
    BatchedPPO([own], (3,)).learn(64 * 40, [Kept(buffers)])
    ((_, buffer),) = buffers
    chance = np.exp(buffer.log_probs)[buffer.actions[..., 0] == 1].mean()
    assert buffer.actions.mean() == pytest.approx(chance, abs=0.03) and chance == pytest.approx(0.27, abs=0.02)


@pytest.mark.parametrize(
    ("kind", "settings", "reason"),
    [
        (A2C, {"env": "CartPole-v1"}, "A2C is not PPO"),
        (PPO, {"env": "Pendulum-v1", "use_sde": True}, "use_sde is set"),
        (PPO, {"env": "CartPole-v1", "policy_kwargs": {"optimizer_class": torch.optim.SGD}}, "not a plain MlpPolicy"),
        (PPO, {"env": "CartPole-v1"}, None),
    ],
)
def test_what_cannot_be_trained_together_is_named(kind, settings, reason):
    made = kind("MlpPolicy", device="cpu", **settings)
    assert (reason in (BatchedPPO.refusal(made) or "")) if reason else BatchedPPO.refusal(made) is None
    if reason:
        with pytest.raises(InputError, match=reason):
            BatchedPPO([made], [0])


def test_models_must_be_alike_and_go_on_to_the_end():
    with pytest.raises(InputError, match="the models are of PPO and SteadyPPO"):
        BatchedPPO([model("CartPole-v1", 0), model("CartPole-v1", 1, SteadyPPO)], [0, 1])
    with pytest.raises(InputError, match="the models differ in gamma"):
        BatchedPPO([model("CartPole-v1", 0), model("CartPole-v1", 1, gamma=0.9)], [0, 1])
    with pytest.raises(InputError, match="a callback stopped a model"):
        BatchedPPO([model("CartPole-v1", 0)], [0]).learn(600, [StopTrainingOnMaxEpisodes(1)])
