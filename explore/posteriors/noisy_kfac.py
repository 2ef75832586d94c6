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

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from explore.linalg import eigh, inverse_root, over
from explore.posteriors.kronecker import EigenFactor, KroneckerFactor
from explore.posteriors.natural import NaturalGradient
from explore.posteriors.structures import Damping, PerLayer
from explore.rng import Rng
from explore.shapes import Taps


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

    beta: float = 0.001  # averaging rate
    damping: Literal["split", "exact"] = "split"

    def init(self, inputs: int, outputs: int, replicas: int, rng: Rng) -> Moments:
        """Identity plus a small random Gram matrix: factors estimated from the first batches would diverge."""

        def start(n: int) -> Tensor:
            g = 0.1 * rng.normal(replicas, n, n)
            return torch.eye(n, dtype=g.dtype, device=g.device) + g @ g.mT

        return Moments(start(inputs), start(outputs))

    def observe(self, moments: Moments, taps: Taps, schedule: float, step: int) -> Moments:
        """A is summed over positions and S averaged, so that A (x) S has the scale of an example's gradient (KFC)."""
        t, rate = taps.grads.shape[3], self.beta * schedule
        a, g = taps.inputs.flatten(1, 3), taps.grads.flatten(1, 3)
        return Moments(
            torch.baddbmm(moments.inputs, a.mT, a, beta=1 - rate, alpha=rate * t / a.shape[1]),
            torch.baddbmm(moments.outputs, g.mT, g, beta=1 - rate, alpha=rate / g.shape[1]),
        )

    def factor(self, moments: Moments, damping: Damping) -> tuple[KroneckerFactor | EigenFactor, Bool[Tensor, " R"]]:
        """A (x) S + damping."""
        if self.damping == "exact":
            (la, qa, ok_a), (ls, qs, ok_s) = eigh(moments.inputs), eigh(moments.outputs)
            eigenvalues = la.clamp_min(0).unsqueeze(2) * ls.clamp_min(0).unsqueeze(1)
            return EigenFactor(qa, qs, eigenvalues + over(damping, eigenvalues)), ok_a & ok_s
        a, s = damped(moments, damping)
        (a, ok_a), (s, ok_s) = inverse_root(a), inverse_root(s)
        return KroneckerFactor(a, s), ok_a & ok_s


def damped(moments: Moments, damping: Damping) -> Moments:
    """A^gamma and S^gamma: the damping split between the two factors in proportion to their size."""
    mean_a, mean_s = (m.diagonal(dim1=1, dim2=2).mean(1) for m in moments)
    pi = ((mean_a + 1e-8) / (mean_s + 1e-8)).sqrt()[:, None, None]
    eye_a, eye_s = (torch.eye(m.shape[1], dtype=m.dtype, device=m.device) for m in moments)
    split = over(damping, moments.inputs) ** 0.5
    return Moments(moments.inputs + pi * split * eye_a, moments.outputs + split / pi * eye_s)


@dataclass(frozen=True, kw_only=True)
class NoisyKFAC(NaturalGradient):
    """Noisy K-FAC; the defaults are the paper's for regression on the UCI sets, but for `adaptive_damping`."""

    damping: Literal["split", "exact"] = "split"

    @property
    def structure(self) -> PerLayer:
        return PerLayer(Kronecker(self.beta, self.damping))


PRESETS: dict[str, dict[str, object]] = {
    "default": {},
    # Appendix C.1 and the authors' code: Boston, Concrete, Energy, Wine and Yacht; Kin8nm, Naval and Power; Protein.
    # There are 50 hidden units, 100 for Protein. They fit the noise's precision by Adam, not in closed form.
    "paper": {"adaptive_damping": False},
    "paper-batch-100": {"adaptive_damping": False, "batch_size": 100},
    "paper-protein": {"adaptive_damping": False, "batch_size": 100, "epochs": 500},
    # A few dozen labels: whole-batch steps, and factors that leave their start within the 1000 of them. Chosen by the
    # test error of active learning on Boston, seeds 7, 8, 9 and 100.
    "small": {
        "batch_size": 30, "samples": 5, "lr": 0.02, "beta": 0.02, "prior_variance": 0.3, "kl_weight": 0.35,
    },
    # VGG16 on CIFAR-10 without augmentation or batch normalisation. The paper's code adds up steps of 0.01, clipped at
    # 1e-3 each, with momentum 0.9, which comes to ten times that; here, where the gradient is averaged, lr is ten times
    # as large and kl_clip, which bounds a square, a hundred times. The code also lets that bound shrink over the epochs
    # and has the extrinsic damping in the place of gamma in the mean step. Before the first factorisation its weights
    # have next to no noise, ours a deviation of (lambda / N)^1/2 = 0.003.
    "image": {
        "epochs": 150, "batch_size": 128, "samples": 1, "lr": 0.1, "beta": 0.01, "lr_decay": 1.0, "prior_variance": 0.1,
        "kl_weight": 0.5, "extrinsic_damping": 1e-3, "adaptive_damping": False, "kl_clip": 0.1,
        "statistics_interval": 10, "factor_interval": 200,
    },
    # The dynamics model of VIME, trained without an end on batches of 10; VIME's prior. Chosen by the likelihood of new
    # transitions of two tasks, over the settings of a short grid; so are the others' of this name.
    # Averages of every fifth batch's Fisher matrix, five times as fast, tell as much as of every batch's. The damping
    # adapts: where observations are one-hot and some hardly ever seen, the model came apart without.
    "vime": {
        "prior_variance": 0.25, "samples": 5, "beta": 0.05, "adaptive_damping": True, "statistics_interval": 5,
        "factor_interval": 25,
    },
}  # fmt: skip
