"""VOGN: a factorised Gaussian over the weights, fitted by natural gradient with squared per-example gradients.

Khan et al.: Fast and Scalable Bayesian Deep Learning by Weight-Perturbation in Adam (2018); Osawa et al.: Practical
Deep Learning with Bayesian Principles (2019), Algorithm 1.

With loss l = -log p(y|x,w), N the number of examples times the augmentation factor rho, and delta~ = tau delta / N:

    q(w): w ~ N(mu, (tau/N) / (s + delta~ + gamma))
    g = E[dl/dw],  h = E[(dl/dw)^2]                          over examples (with their targets) and K samples w ~ q
    m  <- beta1 m + (g + delta~ mu)                          no factor 1 - beta1: multiplies steps by 1 / (1 - beta1)
    s  <- (1 - beta2) s + beta2 h
    mu <- mu - alpha m / (s + delta~ + gamma)                no square root

delta is the prior precision. The weight tau of the KL rises to its full value at the start of training. gamma
also damps the posterior variance if `damped_density`, as in the paper. The paper's s <- (1 - tau beta2) s + beta2 h
has the fixed point h/tau, which maximises its ELBO only if tau is 1. The first gradients are taken at mu, and
initialise s = h, unless s starts at `initial_squares`.
Like workers in the paper, each of the `sub_batches` has separate weight samples and batch-norm statistics.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from explore.core.context import Number, Turn, numbers
from explore.core.errors import InputError
from explore.core.linalg import moved, over
from explore.core.rng import Rng
from explore.core.shapes import Batch, Info, Means
from explore.execution import parallel
from explore.inference.base import Common, common
from explore.inference.gaussian import PredictiveForm
from explore.inference.structures.base import Blocks, Diagonal, gradient_moments, mean_squares
from explore.inference.updates import natural, steps
from explore.inference.updates.damped import AS_PAPER


class VOGNState(NamedTuple):
    """The state of `VOGN`."""

    common: Common  # common.n_data is N = rho times the number of data
    mean: Means  # mu
    momentum: Means  # m
    squares: Means  # s
    tempering: Float[Tensor, " R"]  # tau


@dataclass(frozen=True, kw_only=True)
class VOGN(natural.NaturalPosterior):
    """VOGN; the defaults follow the paper for LeNet-5 on CIFAR-10, but with one worker. `momentum` is beta1."""

    epochs: int = 211
    batch_size: int = 128
    samples: int = 6  # K
    lr: float = 1e-4
    lr_decay: float = 1.0
    beta2: float = 0.999  # averaging rate of s
    damping: float = 1e-3  # gamma
    initial_squares: float = 0.0  # initial s; 0: s = h at the first step
    damped_density: bool = False  # whether the density has this damping too, as in the paper
    prior_variance: float = 0.01  # 1 / delta
    kl_start: float = 0.1  # initial tau, as a fraction of kl_weight ...
    kl_warmup: float = 0.142  # ... which rises to 1 over this fraction of training
    decay: float = 0.0  # p: step t also divides alpha and beta2 by 1 + t^p; 0: no such decay
    fisher: steps.Fisher = "empirical"
    predictive: PredictiveForm = "auto"
    sub_batches: int = 1  # equal parts of a batch, each with separate K samples; a remainder is not used

    ranges: ClassVar[dict[str, str]] = {
        "damping": "[0, inf)", "initial_squares": "[0, inf)", "kl_start": "(0, 1]", "kl_warmup": "[0, 1]"
    }  # fmt: skip

    def init(self, n_data: float, replicas: int, rng: Rng) -> VOGNState:
        shared = common(self, n_data, replicas, rng)
        mean = self.net.initial(replicas, rng)
        zeros = tuple(torch.zeros_like(m) for m in mean)
        squares = tuple(torch.full_like(m, self.initial_squares) for m in mean)
        tempering = torch.full((replicas,), self._tempering(0.0), dtype=rng.dtype, device=rng.device)
        return VOGNState(shared, mean, zeros, squares, tempering)

    def update(self, state: VOGNState, batch: Batch, rng: Rng, progress: float = 0.0) -> tuple[VOGNState, Info]:
        shared, examples = state.common, batch.x.shape[1]
        used = examples - examples % (self.sub_batches * parallel.world().held)
        if not used:
            split = f"split a batch of {examples} examples into {self.sub_batches} sub-batches"
            raise InputError(f"cannot {split}; use a larger batch_size or fewer sub_batches")
        step = int(shared.step) + 1
        lr, rate, tau = numbers(self.turn(step, progress))
        tempering = torch.zeros_like(state.tempering) + tau if self.rises else state.tempering
        decay = self.gamma(shared, self._weight(tempering))

        batch = Batch(batch.x[:, :used], batch.y[:, :used])
        _, forward = self.noisy_pass(state, batch, progress, rng, self.sub_batches)
        if self.fisher == "empirical":
            ascent, new = gradient_moments(forward.taps)
        else:
            fisher = steps.fisher_taps(self.fisher, self.likelihood, forward, parallel.apart(rng, step, 2))
            ascent, new = parallel.mean(natural.mean_gradient(forward.taps)), tuple(map(mean_squares, fisher))

        gradient = tuple(torch.sub(over(decay, mu) * mu, g) for mu, g in zip(state.mean, ascent, strict=True))
        average = tuple(torch.add(g, m, alpha=self.momentum) for m, g in zip(state.momentum, gradient, strict=True))
        squares = tuple(torch.lerp(s, h, over(rate, s)) for s, h in zip(state.squares, new, strict=True))
        moves = zip(state.mean, average, squares, strict=True)
        mean = tuple(moved(mu, m, -lr, s + over(decay + self.damping, s)) for mu, m, s in moves)

        new_state = VOGNState(shared, mean, average, squares, tempering)
        return steps.end_update(self, forward, new_state, state, self._weight(tempering))

    def is_noisy(self, state: VOGNState, progress: float) -> bool:
        return super().is_noisy(state, progress) and int(state.common.step) > 0

    def turn(self, step: int, progress: float) -> Turn:
        power = steps.power_decay(step, self.decay)
        rate = self.beta2 * power if step > 1 or self.initial_squares else 1.0
        lr = self.lr * power * self.schedule(progress)
        return Turn((progress >= self.warm_start and step > 1,), (lr, rate, self._tempering(progress)))

    def gaussian(self, state: VOGNState) -> tuple[Means, Blocks, float]:
        weight = self._weight(state.tempering)
        added = self.gamma(state.common, weight) + (self.damping if self.damped_density else 0.0)
        precision = tuple(s + over(added, s) for s in state.squares)
        if isinstance(weight, Tensor):  # then the precision includes it
            precision, weight = tuple(p / over(weight, p) for p in precision), 1.0
        return state.mean, Blocks(tuple(map(Diagonal, precision))), weight / float(state.common.n_data)

    @property
    def rises(self) -> bool:
        """Whether the weight tau of the KL rises during training."""
        return self.kl_start < 1 and self.kl_warmup > 0

    def _weight(self, tempering: Float[Tensor, " R"]) -> Number:
        """Return the weight tau of the KL: `tempering` if tau rises during training, otherwise `kl_weight`."""
        return tempering if self.rises else self.kl_weight

    def _tempering(self, progress: float) -> float:
        done = min(1.0, progress / self.kl_warmup) if self.kl_warmup else 1.0
        return self.kl_weight * (self.kl_start + (1 - self.kl_start) * done)


PRESETS: dict[str, dict[str, object]] = {
    # As in noisy K-FAC; experiments/table_defaults/others.py.
    "default": {
        "epochs": 120, "batch_size": 32, "samples": 2, "lr": 0.01, "lr_schedule": "linear", "lr_decay": 0.0,
        "lr_decay_at": 0.8, "beta2": 0.1, "damping": 1e-4, "warm_start": 0.7, "prior_variance": 1.0, "kl_start": 1.0,
        "kl_weight": 1.0,
    },
    # LeNet-5 on CIFAR-10 without augmentation: four workers with 32 examples and six samples each.
    "paper": AS_PAPER | {"sub_batches": 4},
    # Learning rate and damping: by active learning on Boston, on unpublished splits. The rest is as in noisy K-FAC.
    "small": {
        "epochs": 1000, "batch_size": 30, "samples": 5, "lr": 0.01, "beta2": 0.02, "damping": 0.1,
        "prior_variance": 0.3, "kl_weight": 0.35,
    },
    # The UCI sets: batches, samples and prior of other papers, and a tenth of their learning rate, as momentum here
    # multiplies steps by ten.
    "uci": AS_PAPER | {
        "epochs": 200, "batch_size": 10, "samples": 10, "lr": 0.001, "beta2": 0.01, "damping": 1e-4,
        "prior_variance": 1.0, "kl_start": 1.0,
    },
    # Image networks, from one epoch on: s averages about thirty batches, in the paper only one. Noise starts small, as
    # an AlexNet stayed at chance level with full initial noise. Chosen on validation sets of MNIST and CIFAR-10.
    "image": {
        "epochs": 160, "samples": 1, "lr": 0.0005, "lr_schedule": "linear", "lr_decay": 0.0, "lr_decay_at": 0.0,
        "beta2": 0.03, "prior_variance": 0.0025, "kl_weight": 0.05, "kl_start": 0.02, "kl_warmup": 0.3,
    },
    # ResNet-18 on CIFAR-10 with augmentation; the paper also decays alpha a second time at 0.75 of the epochs.
    "paper-image": AS_PAPER | {
        "epochs": 161, "batch_size": 256, "samples": 5, "prior_variance": 0.02, "kl_start": 1.0, "lr_decay": 0.1,
        "augmentation": 10.0,
    },
    # As in noisy K-FAC.
    "vime": AS_PAPER | {"prior_variance": 0.25, "kl_start": 1.0, "lr": 0.001, "beta2": 0.01, "damping": 1e-4},
}  # fmt: skip

# The squared gradients of a trained network are close to 0, so with s = h, q would at once be as wide as the prior.
TRAINED: dict[str, object] = {"initial_squares": 1.0, "beta2": 0.01, "lr": 0.001}
