"""SAC whose bonus has a temperature of its own.

Sukhija, Coros, Krause, Abbeel, Sferrazza: MaxInfoRL, Boosting exploration in reinforcement learning through information
gain maximization (2024). SAC learns the weight of the policy's entropy, and this the weight alpha of the bonus I, too:

    log alpha = log alpha - lr * E[I(s, a) - I(s, a')],    a ~ policy,    a' ~ Polyak average of earlier policies

so the weight falls while the policy seeks more information than it did before, and rises while it seeks less.
"""

import copy
from typing import Any, cast

import numpy as np
import torch
from stable_baselines3 import SAC
from stable_baselines3.common.utils import obs_as_tensor, polyak_update
from stable_baselines3.sac.policies import Actor

from explore.core.errors import InputError
from explore.vime.sb3.replay_buffer import VIMEReplayBuffer

EXPECTED = ("expected-gain", "variance")  # bonuses of an action before its outcome is known


class MaxInfoSAC(SAC):
    """SAC with `replay_buffer_class=VIMEReplayBuffer`, whose weight `eta` is multiplied by a learned temperature."""

    def _setup_model(self) -> None:
        super()._setup_model()
        if type(self.replay_buffer) is not VIMEReplayBuffer:
            raise InputError("MaxInfoSAC needs a bonus for Box observations: replay_buffer_class=VIMEReplayBuffer")
        if self.replay_buffer.bonus.settings.bonus not in EXPECTED:
            raise InputError(f"MaxInfoSAC needs the bonus of an action before its outcome; use {' or '.join(EXPECTED)}")
        cast(Any, self.policy).actor_average = copy.deepcopy(self.actor).requires_grad_(False)  # there it is saved
        self.log_alpha = torch.zeros(1, device=self.device, requires_grad=True)
        self.alpha_optimizer = torch.optim.Adam([self.log_alpha], lr=self.lr_schedule(1))

    @property
    def _average(self) -> Actor:
        return cast(Actor, self.policy.actor_average)

    def train(self, gradient_steps: int, batch_size: int = 64) -> None:
        """Take steps of SAC with the current temperature, and then as many steps of the temperature."""
        bonus = cast(VIMEReplayBuffer, self.replay_buffer).bonus
        bonus.temperature = self.log_alpha.exp().item()
        self._update_learning_rate(self.alpha_optimizer)
        super().train(gradient_steps, batch_size)
        for _ in range(gradient_steps):
            loss = self.log_alpha * self._excess(batch_size)
            self.alpha_optimizer.zero_grad()
            loss.backward()
            self.alpha_optimizer.step()
            polyak_update(self.actor.parameters(), self._average.parameters(), self.tau)
        self.logger.record("train/bonus_temperature", self.log_alpha.exp().item())

    def _excess(self, batch_size: int) -> float:
        """Return the mean bonus of the policy's actions over that of its average's, in units of the divisor."""
        buffer = cast(VIMEReplayBuffer, self.replay_buffer)
        where = np.random.randint(0, buffer.size(), batch_size), np.random.randint(0, buffer.n_envs, batch_size)
        normalised = buffer._normalize_obs(cast(Any, buffer.observations[where]), self._vec_normalize_env)
        observations, stored = obs_as_tensor(normalised, self.device), buffer.stored(where)
        means = []
        for actor in (self.actor, self._average):
            with torch.no_grad():
                actions = actor(observations).cpu().numpy()
            means.append(buffer.bonus.multiples(buffer.bonus.score(stored._replace(actions=actions))).mean())
        return float(means[0] - means[1])

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        objects, variables = super()._get_torch_save_params()
        return [*objects, "alpha_optimizer"], [*variables, "log_alpha"]
