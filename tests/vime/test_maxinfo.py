"""SAC with a learned weight of the bonus."""

from typing import Any

import gymnasium as gym
import pytest
import torch
from stable_baselines3.common.buffers import ReplayBuffer

from explore.core.errors import InputError
from explore.vime.sb3 import MaxInfoSAC, VIMEReplayBuffer

BONUS = {"posterior": "noisy-adam", "updates": 2, "minimum": 10, "hidden": (4,), "interval": 20, "eta": 0.5}


def made(bonus="variance", buffer: Any = VIMEReplayBuffer, env="Pendulum-v1", **more) -> Any:
    settings = BONUS | {"bonus": bonus} if buffer is VIMEReplayBuffer else {}
    return MaxInfoSAC(
        "MlpPolicy", env, learning_starts=30, batch_size=8, buffer_size=200, policy_kwargs={"net_arch": [4]}, seed=0,
        replay_buffer_class=buffer, replay_buffer_kwargs=settings, device="cpu", **more,
    )  # fmt: skip


@pytest.mark.parametrize("bias", [3.0, -3.0])
def test_the_weight_falls_while_the_policy_seeks_more_than_before_and_rises_while_it_seeks_less(bias):
    model = made(learning_rate=0.01)
    model.learn(31)
    assert model.replay_buffer.bonus.eta == 0.5
    model.replay_buffer.bonus.score = lambda transitions: (transitions.actions[:, 0] > 0).astype(float)
    for actor, value in ((model.actor, bias), (model.policy.actor_average, -bias)):
        actor.mu.bias.data.fill_(value)
    before = model.log_alpha.item()
    model.train(1, 64)
    assert (model.log_alpha.item() - before) * bias < 0
    model.train(1, 64)
    assert model.replay_buffer.bonus.eta != 0.5


def test_the_average_follows_the_policy():
    model = made(tau=0.5)
    model.learn(40)
    pairs = zip(model.actor.parameters(), model.policy.actor_average.parameters(), strict=True)
    distances = [(a - b).abs().max().item() for a, b in pairs]
    assert 0 < max(distances) < 0.01
    assert not any(p.requires_grad for p in model.policy.actor_average.parameters())


def test_a_saved_model_goes_on_with_its_temperature(tmp_path):
    model = made()
    model.learn(40)
    model.save(tmp_path / "model")
    loaded: Any = MaxInfoSAC.load(tmp_path / "model", env=gym.make("Pendulum-v1"))
    assert torch.equal(loaded.log_alpha, model.log_alpha) and loaded.log_alpha.item() != 0
    assert loaded.alpha_optimizer.state_dict()["state"][0]["step"] == 10


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bonus": "kl"}, "MaxInfoSAC needs the bonus of an action before its outcome; use expected-gain or variance"),
        ({"buffer": ReplayBuffer}, "MaxInfoSAC needs a bonus for Box observations: replay_buffer_class="),
    ],
)
def test_what_it_cannot_do_is_refused(settings, message):
    with pytest.raises(InputError, match=message):
        made(**settings)
