"""PPO of stable-baselines3 for several seeds at once.

Schulman, Wolski, Dhariwal, Radford, Klimov: Proximal policy optimization algorithms (2017). A small policy leaves most
of a processor idle. Here the networks of N policies are stacked, and a batched product replaces N small ones. Losses,
order of the updates and logs are those of stable-baselines3; each policy has its own environments, callback and random
numbers, which do not depend on the others.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.preprocessing import preprocess_obs
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.common.utils import explained_variance
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution, Independent, Normal
from torch.func import functional_call, vmap
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from explore.core.errors import InputError
from explore.core.rng import Rng
from explore.vime.sb3.steady import SteadyPPO
from explore.vime.spaces import Array

MOMENTS = ("exp_avg", "exp_avg_sq")  # of Adam
SHARED = (
    "n_envs", "n_steps", "batch_size", "n_epochs", "gamma", "gae_lambda", "ent_coef", "vf_coef", "max_grad_norm",
    "target_kl", "normalize_advantage", "observation_space", "action_space",
)  # fmt: skip
LOGGED = ("entropy_loss", "policy_gradient_loss", "value_loss", "approx_kl", "clip_fraction", "loss")


class BatchedPPO:
    """Trains PPO models that differ only in their seeds, environments and callbacks.

    Args:
        models: of PPO or SteadyPPO. Raise InputError if one has a `refusal`, or if class or settings differ.
        seeds: a root of random numbers for each; the noise of its iterations depends on it and `num_timesteps` alone.
    """

    def __init__(self, models: Sequence[PPO], seeds: Sequence[int]):
        self.models, self._seeds = list(models), list(seeds)
        for model in models:
            if reason := self.refusal(model):
                raise InputError(f"BatchedPPO cannot train this model: {reason}")
            if type(model) is not type(models[0]):
                raise InputError("the models are of PPO and SteadyPPO; BatchedPPO needs the same class in all")
            if different := [name for name in SHARED if getattr(model, name) != getattr(models[0], name)]:
                raise InputError(f"the models differ in {different[0]}; BatchedPPO needs the same settings in all")

    @staticmethod
    def refusal(model: BaseAlgorithm) -> str | None:
        """Return why a model cannot be trained with others, or None if it can."""
        if type(model) not in (PPO, SteadyPPO):
            return f"{type(model).__name__} is not PPO"
        if not isinstance(model.policy.features_extractor, FlattenExtractor):
            return "observations are images or a Dict"
        if not isinstance(model.action_space, spaces.Discrete | spaces.Box):
            return f"actions are of type {type(model.action_space).__name__}"
        if type(model.policy) is not ActorCriticPolicy or type(model.policy.optimizer) is not torch.optim.Adam:
            return "the policy is not a plain MlpPolicy with Adam"
        return "use_sde is set" if model.use_sde else None

    def learn(self, timesteps: int, callbacks: Sequence[BaseCallback | list[BaseCallback]]) -> None:
        """Train each model until it has taken `timesteps` steps in all; those that have taken fewest come first."""
        every = []
        for model, callback in zip(self.models, callbacks, strict=True):
            _, each = model._setup_learn(timesteps - model.num_timesteps, callback, False)
            each.on_training_start({"self": model}, {})  # not locals(), a dictionary that all would share
            every.append(each)
        while (fewest := min(model.num_timesteps for model in self.models)) < timesteps:
            chosen = [i for i, model in enumerate(self.models) if model.num_timesteps == fewest]
            rngs = [Rng(self._seeds[i], self.models[0].device).stream("policy", fewest) for i in chosen]
            _Iteration([self.models[i] for i in chosen], rngs).run([every[i] for i in chosen], timesteps)
        for each in every:
            each.on_training_end()


class _Heads(nn.Module):
    """A policy's network as a function of preprocessed observations."""

    def __init__(self, policy: ActorCriticPolicy):
        super().__init__()
        self.policy = policy

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        actor, critic = self.policy.mlp_extractor(observations)
        return self.policy.action_net(actor), self.policy.value_net(critic)[:, 0]


class _Batch(NamedTuple):
    """Steps of N policies, [N, B, ...]; the last four as in `RolloutBuffer`."""

    observations: Tensor
    actions: Tensor
    values: Tensor
    log_probs: Tensor
    advantages: Tensor
    returns: Tensor


class _Iteration:
    """A rollout of N models with equal settings and the updates that follow. `flat` [N, P] has their parameters."""

    def __init__(self, models: list[Any], rngs: list[Rng]):
        self.models, self.rngs, self.first = models, rngs, models[0]
        self.where = torch.arange(len(models), device=self.first.device)[:, None]
        self.discrete = isinstance(self.first.action_space, spaces.Discrete)
        heads = _Heads(self.first.policy)
        self.shapes = {name: p.shape for name, p in heads.named_parameters()}
        self.network = vmap(lambda parameters, observations: functional_call(heads, parameters, (observations,)))
        self.flat = torch.stack([parameters_to_vector(m.policy.parameters()).detach() for m in models])
        self.running = torch.ones(len(models), dtype=torch.bool, device=self.first.device)  # until the KL is too large
        states: list[Any] = [[m.policy.optimizer.state.get(p) for p in m.policy.parameters()] for m in models]
        self.moments = torch.zeros(2, *self.flat.shape, device=self.flat.device)
        self.steps = self.flat.new_zeros(len(models), 1)
        for i, state in enumerate(states):
            if state[0]:  # Adam has taken a step
                self.steps[i] = state[0]["step"]
                for k, name in enumerate(MOMENTS):
                    self.moments[k, i] = parameters_to_vector([moments[name] for moments in state])

    def run(self, callbacks: list[BaseCallback], timesteps: int) -> None:
        """Play and learn; `timesteps` is the number of steps at which the training ends."""
        self._collect(callbacks)
        for model in self.models:
            model._update_current_progress_remaining(model.num_timesteps, timesteps)
            model._update_learning_rate(model.policy.optimizer)
        means = self._train()
        for model, flat, step, moments in zip(self.models, self.flat, self.steps, self.moments.unbind(1), strict=True):
            vector_to_parameters(flat.clone(), model.policy.parameters())
            parts = [_split(vector, list(self.shapes.values())) for vector in moments.clone()]
            for p, *each in zip(model.policy.parameters(), *parts, strict=True):
                model.policy.optimizer.state[p] = {"step": step[0].clone()} | dict(zip(MOMENTS, each, strict=True))
        self._log(means)

    def _collect(self, callbacks: list[BaseCallback]) -> None:
        for model, callback in zip(self.models, callbacks, strict=True):
            model.policy.set_training_mode(False)
            model.rollout_buffer.reset()
            callback.on_rollout_start()
        for noise in self._noise():
            for model, callback, *own in zip(self.models, callbacks, *self._act(noise), strict=True):
                _step(model, callback, *own)
        for model, callback, values in zip(self.models, callbacks, self._act(noise)[1], strict=True):
            model.rollout_buffer.compute_returns_and_advantage(values, model._last_episode_starts)
            callback.on_rollout_end()

    @torch.no_grad()
    def _act(self, noise: Tensor) -> tuple[Array, Tensor, Tensor]:
        """Return actions for the current observations, and their values and log probabilities, [N, E, ...] each."""
        policies, values = self._predict(self.flat, self._vectors(np.stack([m._last_obs for m in self.models])))
        if isinstance(policies, Categorical):
            below = policies.probs.cumsum(-1) <= noise[..., None]
            actions = below.sum(-1).clamp_max(policies.probs.shape[-1] - 1)
        else:
            actions = policies.mean + policies.stddev * noise
        return actions.cpu().numpy(), values, policies.log_prob(actions)

    def _noise(self) -> Tensor:
        """Return the random numbers of the actions, [T, N, E, ...]: uniform if they are discrete, else normal."""
        shape = (self.first.n_steps, self.first.n_envs)
        if self.discrete:
            return torch.stack([rng.uniform(*shape) for rng in self.rngs], 1)
        return torch.stack([rng.normal(*shape, *self.first.action_space.shape).flatten(2) for rng in self.rngs], 1)

    def _vectors(self, observations: Array) -> Tensor:
        """Return observations [N, B, ...] in the form that the networks take, [N, B, F]."""
        tensor = torch.as_tensor(observations, device=self.first.device)
        rows = cast(Tensor, preprocess_obs(tensor.flatten(0, 1), self.first.observation_space))
        return rows.view(*tensor.shape[:2], -1)

    def _predict(self, flat: Tensor, observations: Tensor) -> tuple[Distribution, Tensor]:
        """Return the policies' distributions of actions for observations [N, B, F], and the critics' values [N, B]."""
        parameters = dict(zip(self.shapes, _split(flat, list(self.shapes.values())), strict=True))
        actor, values = self.network(parameters, observations)
        if self.discrete:
            return Categorical(logits=actor, validate_args=False), values
        std = parameters["policy.log_std"].exp()[:, None].expand_as(actor)
        return Independent(Normal(actor, std, validate_args=False), 1, validate_args=False), values

    def _train(self) -> Tensor:
        """Take the steps of all epochs, and return the mean of each number in LOGGED, [6, N]."""
        whole, logged = self._rollout(), []
        for rows in self._minibatches(whole.values.shape[1]):
            flat = self.flat.detach().requires_grad_()
            losses = self._losses(flat, _Batch(*(values[self.where, rows] for values in whole)))
            logged.append(torch.where(self.running, losses.detach(), torch.nan))
            if self.first.target_kl is not None:
                self.running = self.running & ~(losses[LOGGED.index("approx_kl")] > 1.5 * self.first.target_kl)
                if not self.running.any():
                    break
            (gradient,) = torch.autograd.grad(losses[LOGGED.index("loss")].sum(), flat)
            self._adam(gradient)
        return torch.stack(logged).nanmean(0)

    def _minibatches(self, n: int) -> Iterator[Tensor]:
        """Yield the rows of each step, [N, B]."""
        for _ in range(self.first.n_epochs):
            for model, runs in zip(self.models, self.running.tolist(), strict=True):
                model._n_updates += runs
            yield from torch.cat([rng.permutation(1, n) for rng in self.rngs]).split(self.first.batch_size, 1)

    def _rollout(self) -> _Batch:
        """Return the steps in the buffers of the models."""
        for model in self.models:
            if isinstance(model, SteadyPPO):
                model.normalise()

        def stacked(name: str) -> Array:
            arrays = [getattr(model.rollout_buffer, name) for model in self.models]
            return np.stack([array.reshape(-1, *array.shape[2:]) for array in arrays])

        numbers = ("actions", "values", "log_probs", "advantages", "returns")
        actions, *rest = (torch.as_tensor(stacked(name), device=self.first.device) for name in numbers)
        actions = actions[..., 0].long() if self.discrete else actions
        return _Batch(self._vectors(stacked("observations")), actions, *rest)

    def _losses(self, flat: Tensor, batch: _Batch) -> Tensor:
        """Return the numbers in LOGGED, [6, N]."""
        first, progress = self.first, self.first._current_progress_remaining
        clip, clip_vf = first.clip_range(progress), first.clip_range_vf and first.clip_range_vf(progress)
        policies, values = self._predict(flat, batch.observations)
        advantages = batch.advantages
        if first.normalize_advantage and advantages.shape[1] > 1 and not isinstance(first, SteadyPPO):
            centred = advantages - advantages.mean(1, keepdim=True)
            advantages = centred / (advantages.std(1, keepdim=True) + 1e-8)
        difference = policies.log_prob(batch.actions) - batch.log_probs
        ratio = difference.exp()
        gain = torch.min(advantages * ratio, advantages * ratio.clamp(1 - clip, 1 + clip)).mean(1)
        if clip_vf is not None:
            values = batch.values + (values - batch.values).clamp(-clip_vf, clip_vf)
        error, entropy = (batch.returns - values).square().mean(1), policies.entropy().mean(1)
        loss = -gain - first.ent_coef * entropy + first.vf_coef * error
        kl, clipped = (ratio - 1 - difference).mean(1), ((ratio - 1).abs() > clip).float().mean(1)
        return torch.stack([-entropy, -gain, error, kl, clipped, loss])

    def _adam(self, gradient: Tensor) -> None:
        """Take a step of Adam where `running`, on gradients [N, P] clipped by norm."""
        group, runs = self.first.policy.optimizer.param_groups[0], self.running[:, None].float()
        small, large = group["betas"]
        most = self.first.max_grad_norm / (gradient.norm(dim=1, keepdim=True) + 1e-6)
        gradient = gradient * most.clamp_max(1)
        self.steps += runs
        self.moments[0].lerp_(gradient, (1 - small) * runs)
        self.moments[1].lerp_(gradient.square(), (1 - large) * runs)
        scale = (self.moments[1] / (1 - large**self.steps)).sqrt() + group["eps"]
        self.flat = self.flat - group["lr"] * runs / (1 - small**self.steps) * self.moments[0] / scale

    def _log(self, means: Tensor) -> None:
        for model, own in zip(self.models, means.unbind(1), strict=True):
            for name, value in zip(LOGGED, own.tolist(), strict=True):
                model.logger.record(f"train/{name}", value)
            values, returns = model.rollout_buffer.values.flatten(), model.rollout_buffer.returns.flatten()
            model.logger.record("train/explained_variance", explained_variance(values, returns))
            model.logger.record("train/clip_range", model.clip_range(model._current_progress_remaining))
            if not self.discrete:
                model.logger.record("train/std", model.policy.log_std.exp().mean().item())
            model.logger.record("train/n_updates", model._n_updates, exclude="tensorboard")


def _split(vectors: Tensor, shapes: list[torch.Size]) -> list[Tensor]:
    """Split vectors [..., P] into views of these shapes, [..., *shape] each."""
    parts = vectors.split([shape.numel() for shape in shapes], -1)
    return [part.view(*vectors.shape[:-1], *shape) for part, shape in zip(parts, shapes, strict=True)]


def _step(model: Any, callback: BaseCallback, actions: Array, values: Tensor, log_probs: Tensor) -> None:
    """Take a step in all environments of a model; the names of variables are those that callbacks read."""
    env, rollout_buffer, space = model.env, model.rollout_buffer, model.action_space
    actions = actions.reshape(model.n_envs, *space.shape)
    clipped_actions = np.clip(actions, space.low, space.high) if isinstance(space, spaces.Box) else actions
    new_obs, rewards, dones, infos = env.step(clipped_actions)
    model.num_timesteps += model.n_envs
    callback.update_locals(locals())
    if not callback.on_step():
        raise InputError("a callback stopped a model, but BatchedPPO trains all of them to the end; leave it out")
    model._update_info_buffer(infos, dones)
    if cut := [i for i in np.flatnonzero(dones) if infos[i].get("TimeLimit.truncated", False)]:
        last = model.policy.obs_to_tensor(np.stack([infos[i]["terminal_observation"] for i in cut]))[0]
        rewards[cut] += model.gamma * model.policy.predict_values(last)[:, 0].detach().cpu().numpy()
    rollout_buffer.add(model._last_obs, actions, rewards, model._last_episode_starts, values, log_probs)
    model._last_obs, model._last_episode_starts = new_obs, dones
