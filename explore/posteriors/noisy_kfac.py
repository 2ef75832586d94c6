"""Noisy K-FAC: a matrix-variate Gaussian per layer, fitted by natural gradient.

Zhang, Sun, Duvenaud, Grosse: Noisy Natural Gradient as Variational Inference (2017), Algorithm 2 and Section 3.3.

For one layer with W [I, O], the bias its last row, inputs a with a constant 1 last, g = d log p(y|x,W) / d(a W):

    q(W) = MN(M; (lambda/N) [A^gamma]^-1, [S^gamma]^-1)                      gamma = lambda / (N eta)
    A <- (1 - beta) A + beta E[a a^T],  S <- (1 - beta) S + beta E[g g^T]    targets drawn from the model
    V  = E[d log p(y|x,W) / dW] - gamma W                                    W ~ q, averaged over S samples
    M <- M + alpha [A^gamma']^-1 V~ [S^gamma']^-1                            gamma' = gamma + extrinsic damping

with A^gamma = A + pi sqrt(gamma) I, S^gamma = S + sqrt(gamma)/pi I, pi^2 = (tr A / I) / (tr S / O), and V~ the
bias-corrected moving average of V. eta is the prior's variance, lambda the weight of the KL, N the number of data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from explore.linalg import eigh, inverse_root
from explore.posteriors import natural
from explore.posteriors.base import Common, common, settle
from explore.posteriors.gaussian import GaussianPosterior
from explore.posteriors.kronecker import EigenFactor, KroneckerFactor
from explore.posteriors.structures import Blocks, PerLayer
from explore.rng import Rng
from explore.shapes import Batch, Info, Means, Taps


class Moments(NamedTuple):
    """Running second moments of one layer."""

    inputs: Float[Tensor, "R I I"]  # A
    outputs: Float[Tensor, "R O O"]  # S


@dataclass(frozen=True)
class Kronecker:
    """The rule for one layer: F = A (x) S.

    damping="split" adds pi sqrt(gamma) to A and sqrt(gamma)/pi to S, as the papers do, which over-damps by a cross
    term; "exact" is A (x) S + gamma I, by eigendecomposition.
    """

    damping: Literal["split", "exact"] = "split"

    def init(self, inputs: int, outputs: int, replicas: int, rng: Rng) -> Moments:
        """Identity plus a small random Gram matrix: factors estimated from the first batches would diverge."""

        def start(n: int) -> Tensor:
            g = 0.1 * rng.normal(replicas, n, n)
            return torch.eye(n, dtype=g.dtype, device=g.device) + g @ g.mT

        return Moments(start(inputs), start(outputs))

    def observe(self, moments: Moments, taps: Taps, rate: float) -> Moments:
        """A is summed over positions and S averaged, so that A (x) S has the scale of an example's gradient (KFC)."""
        t = taps.grads.shape[3]
        a, g = taps.inputs.flatten(1, 3), taps.grads.flatten(1, 3)
        return Moments(
            torch.baddbmm(moments.inputs, a.mT, a, beta=1 - rate, alpha=rate * t / a.shape[1]),
            torch.baddbmm(moments.outputs, g.mT, g, beta=1 - rate, alpha=rate / g.shape[1]),
        )

    def factor(self, moments: Moments, damping: float) -> tuple[KroneckerFactor | EigenFactor, Bool[Tensor, " R"]]:
        """A (x) S + damping."""
        if self.damping == "exact":
            (la, qa, ok_a), (ls, qs, ok_s) = eigh(moments.inputs), eigh(moments.outputs)
            eigenvalues = la.clamp_min(0).unsqueeze(2) * ls.clamp_min(0).unsqueeze(1)
            return EigenFactor(qa, qs, eigenvalues + damping), ok_a & ok_s
        mean_a, mean_s = (m.diagonal(dim1=1, dim2=2).mean(1) for m in moments)
        pi = ((mean_a + 1e-8) / (mean_s + 1e-8)).sqrt()[:, None, None]
        eye_a, eye_s = (torch.eye(m.shape[1], dtype=m.dtype, device=m.device) for m in moments)
        a, ok_a = inverse_root(moments.inputs + pi * math.sqrt(damping) * eye_a)
        s, ok_s = inverse_root(moments.outputs + math.sqrt(damping) / pi * eye_s)
        return KroneckerFactor(a, s), ok_a & ok_s


class NoisyKFACState(NamedTuple):
    """The state of `NoisyKFAC`."""

    common: Common
    mean: Means  # M
    momentum: Means
    moments: tuple[Moments, ...]  # A, S
    sampling: Blocks  # F + gamma: the posterior's precision, times lambda / N
    step_factor: Blocks  # F + gamma': what the mean step is preconditioned with


@dataclass(frozen=True, kw_only=True)
class NoisyKFAC(GaussianPosterior):
    """Noisy K-FAC; the defaults are the paper's for regression on the UCI sets."""

    samples: int = 10  # S, weight samples a step
    lr: float = 0.01  # alpha
    beta: float = 0.001  # averaging rate of A and S
    lr_decay: float = 0.1  # what alpha and beta are multiplied with ...
    lr_decay_at: float = 0.5  # ... after this part of the training
    momentum: float = 0.9  # of the gradient, before preconditioning
    damping: Literal["split", "exact"] = "split"
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
    def structure(self) -> PerLayer:
        """How the Fisher matrix is approximated."""
        return PerLayer(Kronecker(self.damping))

    def init(self, n_data: float, replicas: int, rng: Rng) -> NoisyKFACState:
        shared = common(n_data, replicas, self.likelihood, rng)
        mean = self.net.glorot(replicas, rng)
        moments = self.structure.init(self.net.shapes, replicas, rng)
        sampling, step_factor, _ = self._factor(moments, float(shared.n_data))
        zeros = tuple(torch.zeros_like(m) for m in mean)
        return NoisyKFACState(shared, mean, zeros, moments, sampling, step_factor)

    def update(
        self, state: NoisyKFACState, batch: Batch, rng: Rng, progress: float = 0.0
    ) -> tuple[NoisyKFACState, Info]:
        shared, y = state.common, batch.y.unsqueeze(1)
        n_data, step = float(shared.n_data), int(shared.step) + 1
        schedule = natural.decay(progress, self.lr_decay_at, self.lr_decay)

        weights = self.sample(state, self.samples, rng)
        noise = self.likelihood.draw(shared.noise, self.samples, rng)
        out, pullback = self.net.forward(weights, batch.x)
        taps = pullback(self.likelihood.score(noise, out, y))
        fisher = taps
        if self.fisher == "true":
            fisher = pullback(self.likelihood.score(noise, out, self.likelihood.sample(noise, out, rng)))

        moments = self.structure.observe(state.moments, fisher, self.beta * schedule)
        sampling, step_factor, ok = state.sampling, state.step_factor, None
        if step % self.factor_interval == 0:
            sampling, step_factor, ok = self._factor(moments, n_data)

        gamma = self.kl_weight / (n_data * self.prior_variance)
        gradient = tuple(
            torch.sub(g, w.mean(1), alpha=gamma) for g, w in zip(natural.mean_gradient(taps), weights, strict=True)
        )
        average, corrected = natural.momentum(state.momentum, gradient, self.momentum, step)
        direction = step_factor.solve(tuple(v.unsqueeze(1) for v in corrected))
        mean = tuple(
            torch.add(m, d.squeeze(1), alpha=self.lr * schedule) for m, d in zip(state.mean, direction, strict=True)
        )

        shared = shared._replace(
            noise=self.likelihood.update(shared.noise, out, y, n_data, self.kl_weight),
            step=torch.tensor(step),
        )
        new = NoisyKFACState(shared, mean, average, moments, sampling, step_factor)
        info = {"nll": -self.likelihood.log_prob(noise, out, y).mean((1, 2))}
        return settle(new, state, mean, ok), info

    def gaussian(self, state: NoisyKFACState) -> tuple[Means, Blocks, float]:
        return state.mean, state.sampling, self.kl_weight / float(state.common.n_data)

    def _factor(self, moments: tuple[Moments, ...], n_data: float) -> tuple[Blocks, Blocks, Tensor]:
        gamma = self.kl_weight / (n_data * self.prior_variance)
        sampling, ok = self.structure.factor(moments, gamma)
        if self.extrinsic_damping == 0:
            return sampling, sampling, ok
        step_factor, ok_step = self.structure.factor(moments, gamma + self.extrinsic_damping)
        return sampling, step_factor, ok & ok_step


PRESETS: dict[str, dict[str, object]] = {
    "paper": {},
    # A few dozen labels: whole-batch steps, and factors that leave their start within the 1000 of them. Chosen by the
    # test error of active learning on Boston, on other splits than the published ones.
    "small": {
        "batch_size": 30, "samples": 5, "lr": 0.02, "beta": 0.02, "prior_variance": 0.3, "kl_weight": 0.35,
    },
}  # fmt: skip
