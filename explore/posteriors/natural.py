"""Natural-gradient variational inference: the steps as pure functions, and the order that several papers share.

The posteriors that differ from noisy K-FAC in the structure of the Fisher matrix alone are `NaturalGradient` with
another `Structure`; those that order the steps in another way write an `update` of their own.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from explore.posteriors.base import Common, advance, common, settle
from explore.posteriors.gaussian import GaussianPosterior
from explore.posteriors.structures import Factor, Statistics, Structure
from explore.rng import Rng
from explore.shapes import Batch, Info, Means, Taps, Weights


def mean_gradient(taps: tuple[Taps, ...]) -> Means:
    """The gradient of the mean log-likelihood over samples and examples, a tuple of [R, I, O]."""
    return tuple(_sum_outer(t) / (t.grads.shape[1] * t.grads.shape[2]) for t in taps)


def regularised_gradient(taps: tuple[Taps, ...], weights: Weights, gamma: float) -> Means:
    """V = E[g] - gamma W: the mean gradient with the prior's, at the samples W and averaged over them."""
    return tuple(torch.sub(g, w.mean(1), alpha=gamma) for g, w in zip(mean_gradient(taps), weights, strict=True))


def _sum_outer(t: Taps) -> Tensor:
    a, g = t.inputs, t.grads
    if a.shape[1] == 1:
        g = g.sum(1, keepdim=True)
    a, g = a.flatten(1, 3), g.flatten(1, 3)
    return a.mT @ g if a.shape[2] < g.shape[2] else (g.mT @ a).mT  # a batched product is fast when it is wide


def momentum(m: Means, gradient: Means, beta: float, step: int) -> tuple[Means, Means]:
    """The moving average of a gradient, and its bias-corrected value (step counts from 1)."""
    new = tuple(torch.lerp(g, old, beta) for old, g in zip(m, gradient, strict=True))
    correction = 1 - beta**step
    return new, tuple(x / correction for x in new)


def decay(progress: float, at: float, factor: float) -> float:
    """A step schedule: 1 before `at`, `factor` from there on."""
    return 1.0 if progress < at else factor


class NaturalState(NamedTuple):
    """The state of `NaturalGradient`."""

    common: Common
    mean: Means  # M
    momentum: Means
    statistics: Statistics  # of F, the Fisher matrix
    sampling: Factor  # F + gamma: the posterior's precision, times lambda / N
    step_factor: Factor  # F + gamma': what the mean step is preconditioned with


@dataclass(frozen=True, kw_only=True)
class NaturalGradient(GaussianPosterior):
    """q = N(M, (lambda/N) (F + gamma)^-1) with a structured Fisher matrix F (Zhang et al. 2017, eqs 6 to 9).

    gamma = lambda / (N eta);  F <- (1 - beta) F + beta E[g g^T];  V = E[g] - gamma W, averaged over W ~ q;
    M <- M + alpha (F + gamma')^-1 V~, V~ the bias-corrected moving average of V. The defaults are the paper's.
    """

    samples: int = 10  # S, weight samples a step
    lr: float = 0.01  # alpha
    beta: float = 0.001  # averaging rate of the Fisher matrix
    lr_decay: float = 0.1  # what alpha and the averaging rates are multiplied with ...
    lr_decay_at: float = 0.5  # ... after this part of the training
    momentum: float = 0.9  # of the gradient, before preconditioning
    extrinsic_damping: float = 0.0  # gamma' - gamma: in the mean step, never in the sampling variance
    factor_interval: int = 1  # T_inv: steps between factorisations
    fisher: Literal["true", "empirical"] = "true"  # targets drawn from the model, or the data's

    ranges: ClassVar[dict[str, str]] = {
        "beta": "(0, 1]",
        "lr_decay": "(0, 1]",
        "lr_decay_at": "[0, 1]",
        "momentum": "[0, 1)",
        "extrinsic_damping": "[0, inf)",
    }

    @property
    @abstractmethod
    def structure(self) -> Structure:
        """How the Fisher matrix is approximated."""

    def init(self, n_data: float, replicas: int, rng: Rng) -> NaturalState:
        shared = common(n_data, replicas, self.likelihood, rng)
        mean = self.net.glorot(replicas, rng)
        statistics = self.structure.init(self.net.shapes, replicas, rng)
        sampling, step_factor, _ = self._factor(statistics, float(shared.n_data))
        zeros = tuple(torch.zeros_like(m) for m in mean)
        return NaturalState(shared, mean, zeros, statistics, sampling, step_factor)

    def update(self, state: NaturalState, batch: Batch, rng: Rng, progress: float = 0.0) -> tuple[NaturalState, Info]:
        shared, y = state.common, batch.y.unsqueeze(1)
        n_data, step = float(shared.n_data), int(shared.step) + 1
        schedule = decay(progress, self.lr_decay_at, self.lr_decay)

        weights = self.sample(state, self.samples, rng)
        noise = self.likelihood.draw(shared.noise, self.samples, rng)
        out, pullback = self.net.forward(weights, batch.x)
        taps = pullback(self.likelihood.score(noise, out, y))
        fisher = taps
        if self.fisher == "true":
            fisher = pullback(self.likelihood.score(noise, out, self.likelihood.sample(noise, out, rng)))

        statistics = self.structure.observe(state.statistics, fisher, schedule, step)
        sampling, step_factor, ok = state.sampling, state.step_factor, None
        if step % self.factor_interval == 0:
            sampling, step_factor, ok = self._factor(statistics, n_data)

        gamma = self.kl_weight / (n_data * self.prior_variance)
        gradient = regularised_gradient(taps, weights, gamma)
        average, corrected = momentum(state.momentum, gradient, self.momentum, step)
        direction = step_factor.solve(tuple(v.unsqueeze(1) for v in corrected))
        mean = tuple(
            torch.add(m, d.squeeze(1), alpha=self.lr * schedule) for m, d in zip(state.mean, direction, strict=True)
        )

        shared = advance(shared, self.likelihood, out, y, self.kl_weight)
        new = NaturalState(shared, mean, average, statistics, sampling, step_factor)
        info = {"nll": -self.likelihood.log_prob(noise, out, y).mean((1, 2))}
        return settle(new, state, mean, ok), info

    def gaussian(self, state: NaturalState) -> tuple[Means, Factor, float]:
        return state.mean, state.sampling, self.kl_weight / float(state.common.n_data)

    def _factor(self, statistics: Statistics, n_data: float) -> tuple[Factor, Factor, Tensor]:
        gamma = self.kl_weight / (n_data * self.prior_variance)
        sampling, ok = self.structure.factor(statistics, gamma)
        if self.extrinsic_damping == 0:
            return sampling, sampling, ok
        step_factor, ok_step = self.structure.factor(statistics, gamma + self.extrinsic_damping)
        return sampling, step_factor, ok & ok_step
