"""Noisy Adam: a factorised Gaussian over the weights, fitted by natural gradient with Adam's mean step.

Zhang, Sun, Duvenaud, Grosse: Noisy Natural Gradient as Variational Inference (2017), Algorithm 1.

    q(w): w ~ N(mu, (lambda/N) / (f + gamma))                                 gamma = lambda / (N eta)
    v  = E[d log p(y|x,w) / dw] - gamma w                                     w ~ q, averaged over S samples
    m  <- beta1 m + (1 - beta1) v,     m~ = m / (1 - beta1^k)                 at step k
    f  <- (1 - beta) f + beta E[(d log p(y|x,w) / dw)^2]                      targets drawn from the model
    mu <- mu + alpha m~ / (f^1/2 + gamma')                                    gamma' = gamma + extrinsic damping

f is a running average of squared per-example gradients; eta is the prior variance, lambda the weight of the KL, N the
number of examples; beta = 1 - beta2. The variance uses f itself: the square root of f, or squared mini-batch gradients,
would not yield a posterior approximation. f starts at 1, so the initial weights have a standard deviation of about
(lambda/N)^1/2, as in noisy K-FAC.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch

from explore.core.context import Turn, numbers
from explore.core.linalg import moved, over
from explore.core.rng import Rng
from explore.core.shapes import Batch, Info, Means, State
from explore.execution import parallel
from explore.inference.base import Common, common
from explore.inference.structures.base import Blocks, Diagonal, mean_squares
from explore.inference.updates import natural, steps


class NoisyAdamState(NamedTuple):
    """The state of `NoisyAdam`."""

    common: Common
    mean: Means  # mu
    momentum: Means  # m
    squares: Means  # f


@dataclass(frozen=True, kw_only=True)
class NoisyAdam(natural.NaturalPosterior):
    """Noisy Adam; the paper gives no settings, so the defaults are those of noisy K-FAC. `momentum` is beta1."""

    beta: float = 0.001  # averaging rate of f
    extrinsic_damping: float = 0.0  # gamma' - gamma: in the mean step, never in the sampling variance
    kl_clip: float | None = None  # limit on the change in predictions per step, see `steps.clipped`
    trust_region: float | None = None  # limit on the change in q per step: a KL in nats, see `steps.clipped`
    fisher: steps.Fisher = "true"

    def init(self, n_data: float, replicas: int, rng: Rng) -> NoisyAdamState:
        shared = common(self, n_data, replicas, rng)
        mean = self.net.initial(replicas, rng)
        zeros, ones = (tuple(map(like, mean)) for like in (torch.zeros_like, torch.ones_like))
        return NoisyAdamState(shared, mean, zeros, ones)

    def update(self, state: NoisyAdamState, batch: Batch, rng: Rng, progress: float = 0.0) -> tuple[State, Info]:
        shared = state.common
        step = int(shared.step) + 1
        lr, schedule, correction = numbers(self.turn(step, progress))
        weights, forward = self.noisy_pass(state, batch, progress, rng)
        fisher = steps.fisher_taps(self.fisher, self.likelihood, forward, parallel.apart(rng, step, 2))

        gamma = self.gamma(shared)
        gradient = parallel.mean(natural.regularised_gradient(natural.mean_gradient(forward.taps), weights, gamma))
        average, corrected = steps.momentum(state.momentum, gradient, self.momentum, correction)
        rate, new = self.beta * schedule, map(mean_squares, fisher)
        squares = tuple(torch.lerp(f, s, over(rate, f)) for f, s in zip(state.squares, new, strict=True))
        damping = gamma + self.extrinsic_damping
        direction = tuple(m / (f.sqrt() + over(damping, f)) for m, f in zip(corrected, squares, strict=True))
        image = tuple((f + over(damping, f)) * d for f, d in zip(squares, direction, strict=True))
        scale = self.kl_weight / float(shared.n_data)
        direction = steps.clipped(direction, image, self.lr, self.kl_clip, self.trust_region, scale)
        mean = tuple(moved(mu, d, lr) for mu, d in zip(state.mean, direction, strict=True))

        return steps.end_update(self, forward, NoisyAdamState(shared, mean, average, squares), state, self.kl_weight)

    def turn(self, step: int, progress: float) -> Turn:
        schedule = self.schedule(progress)
        return Turn((progress >= self.warm_start,), (self.lr * schedule, schedule, 1 - self.momentum**step))

    def gaussian(self, state: NoisyAdamState) -> tuple[Means, Blocks, float]:
        gamma = self.gamma(state.common)
        precision = Blocks(tuple(Diagonal(f + over(gamma, f)) for f in state.squares))
        return state.mean, precision, self.kl_weight / float(state.common.n_data)


PRESETS: dict[str, dict[str, object]] = {
    # As in noisy K-FAC; experiments/table_defaults/others.py.
    "default": {
        "epochs": 120, "batch_size": 32, "samples": 2, "lr": 0.1, "lr_schedule": "linear", "lr_decay": 0.0,
        "lr_decay_at": 0.8, "beta": 0.01, "trust_region": 2.0, "warm_start": 0.7, "kl_weight": 0.2,
    },
    # The learning rate was chosen by the test error of active learning on Boston, on splits not used in published
    # results. A fifth of it underfits there.
    "small": natural.SMALL | {"lr": 0.05},
    # As in noisy K-FAC; the rates were chosen on a validation set of MNIST (LeNet-5, three epochs).
    "image": {
        "epochs": 150, "batch_size": 128, "samples": 1, "lr": 0.1, "lr_schedule": "linear", "lr_decay": 0.0,
        "lr_decay_at": 0.0, "beta": 0.04, "prior_variance": 0.0025, "kl_weight": 0.1,
    },
    "vime": {},
}  # fmt: skip

TRAINED: dict[str, object] = {"lr": 0.02}
