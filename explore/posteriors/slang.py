"""SLANG: one Gaussian over all weights whose precision is low-rank plus diagonal, fitted by natural gradient.

Mishkin, Kunstner, Nielsen, Schmidt, Khan: SLANG: Fast Structured Covariance Approximations for Bayesian Deep Learning
with Natural Gradient (2018), Algorithm 1. With all weights of all layers in one vector w and g = d log p(y|x,w) / dw of
one example, at the targets in the data,

    q(w) = N(mu, (U U^T + diag(d))^-1),  U [W, L]
    U+ U+^T = the leading L eigenpairs of X = (1 - beta) U U^T + beta (N / lambda) E[g g^T]
    d+  = (1 - beta) d + beta / eta + diag(X - U+ U+^T)
    mu+ = mu + alpha (U+ U+^T + diag(d+))^-1 [(N / lambda) m^ - mu / eta]

E averages over S samples w ~ q and the M examples of a batch; m^ is the bias-corrected moving average of E[g]; eta is
the prior variance (optionally separate for biases), lambda the weight of the KL, N the number of examples. If a decay p
is set, both alpha and beta are divided by 1 + t^p at step t. The algorithm printed in the paper differs in a sign, in
scales and in the sampler; the authors' code follows the equations above.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from explore.core.linalg import moved
from explore.core.rng import Rng
from explore.core.shapes import Batch, Info, Means
from explore.inference.base import Common, Rows, common
from explore.inference.structures.base import gradient_moments
from explore.inference.structures.low_rank import LowRankFactor, leading
from explore.inference.updates import natural, steps


class SLANGState(NamedTuple):
    """The state of `SLANG`."""

    common: Common
    mean: Means  # mu
    momentum: Means  # of the log-likelihood gradient
    precision: LowRankFactor  # U, d


@dataclass(frozen=True, kw_only=True)
class SLANG(natural.NaturalPosterior):
    """SLANG; the default samples and rates follow the paper for regression on most UCI sets, see the preset `uci`."""

    samples: int = 4
    lr_decay: float = 1.0
    rank: int = 1  # L; capped at the number of weights
    beta: float = 0.01  # averaging rate of the precision
    decay: float = 0.0  # p; 0: constant alpha and beta
    trust_region: float | None = None  # limit on the change in q per step, before alpha decays: a KL in nats
    initial_precision: float = 1.0  # initial value of d
    bias_prior_variance: float | None = None  # prior variance of biases, then fixed; None: as for weights
    power_iterations: int = 4  # of the randomised eigendecomposition

    weighs_gradients: ClassVar[bool] = False  # squared gradients are the curvature

    def init(self, n_data: float, replicas: int, rng: Rng) -> SLANGState:
        shared = common(self, n_data, replicas, rng)
        mean = self.net.initial(replicas, rng)
        zeros = tuple(torch.zeros_like(m) for m in mean)
        columns = tuple(z.unsqueeze(1).repeat(1, min(self.rank, self.net.weights), 1, 1) for z in zeros)
        diagonal = tuple(torch.full_like(m, self.initial_precision) for m in mean)
        return SLANGState(shared, mean, zeros, LowRankFactor(columns, diagonal))

    def update(self, state: SLANGState, batch: Batch, rng: Rng, progress: float = 0.0) -> tuple[SLANGState, Info]:
        shared = state.common
        n_data, step = float(shared.n_data), int(shared.step) + 1
        schedule = self.schedule(progress) * steps.power_decay(step, self.decay)
        beta, count = self.beta * schedule, n_data / self.kl_weight

        _, forward = self.noisy_pass(state, batch, progress, rng)

        prior = tuple(1 / eta for eta in self.variances(state))
        old = state.precision
        columns, ok = leading(old.columns, forward.taps, 1 - beta, beta * count, self.power_iterations, rng)
        gradient, squares = gradient_moments(forward.taps)
        diagonal = []
        for u, new, d, h, p in zip(old.columns, columns, old.diagonal, squares, prior, strict=True):
            exact = torch.add((1 - beta) * u.square().sum(1), h, alpha=beta * count)
            # Diagonal lost by the projection; negative only through rounding.
            lost = (exact - new.square().sum(1)).clamp_min(0)
            diagonal.append(torch.add(lost, d, alpha=1 - beta) + beta * p)
        precision = LowRankFactor(columns, tuple(diagonal))

        average, corrected = steps.momentum(state.momentum, gradient, self.momentum, 1 - self.momentum**step)
        ascent = tuple(
            torch.addcmul(count * v, p, m, value=-1) if isinstance(p, Tensor) else torch.add(count * v, m, alpha=-p)
            for v, p, m in zip(corrected, prior, state.mean, strict=True)
        )
        direction = tuple(d.squeeze(1) for d in precision.solve(tuple(v.unsqueeze(1) for v in ascent)))
        direction = steps.clipped(direction, ascent, self.lr, None, self.trust_region)
        mean = tuple(moved(m, d, self.lr * schedule) for m, d in zip(state.mean, direction, strict=True))

        return steps.end_update(self, forward, SLANGState(shared, mean, average, precision), state, self.kl_weight, ok)

    def gaussian(self, state: SLANGState) -> tuple[Means, LowRankFactor, float]:
        return state.mean, state.precision, 1.0

    def variances(self, state: SLANGState) -> tuple[Rows, ...]:
        if self.bias_prior_variance is None:
            return super().variances(state)
        rows = []
        for m, bias in zip(state.mean, self.net.biases, strict=True):
            rows.append(torch.full_like(m[:, :, :1], self.prior_variance))
            if bias:
                rows[-1][:, -1] = self.bias_prior_variance
        return tuple(rows)


PRESETS: dict[str, dict[str, object]] = {
    # As in noisy K-FAC; experiments/table_defaults/others.py.
    "default": {
        "epochs": 120, "batch_size": 64, "min_batches": 16, "samples": 2, "warm_start": 0.5, "lr": 0.3,
        "lr_schedule": "linear", "lr_decay": 0.0, "lr_decay_at": 0.7, "trust_region": 0.25, "initial_precision": 50.0,
        "rank": 8, "beta": 0.005, "prior_variance": 2.0,
    },
    # As in the paper for Boston, Energy, Kin8nm and Naval. The paper tunes prior and noise variances on every split.
    "uci": {"epochs": 120, "bias_prior_variance": 1e6},
    # With an initial standard deviation of 1, most of the thousand steps would be spent on shrinking it.
    "small": natural.SMALL | {"rank": 8, "initial_precision": 200.0},
    # Logistic regression on the Breast Cancer set.
    "logistic": {
        "epochs": 10000, "batch_size": 32, "samples": 12, "lr": 0.05, "beta": 0.05, "decay": 0.51,
        "bias_prior_variance": 1e5,
    },
    "mnist": {
        "epochs": 400, "batch_size": 200, "rank": 8, "lr": 0.1, "beta": 0.1, "decay": 0.6,
        "prior_variance": 1 / 54.6, "bias_prior_variance": 1e6,
    },
    # As in noisy K-FAC; the rates and the start were chosen on a validation set of MNIST (LeNet-5, three epochs).
    "image": {
        "epochs": 150, "batch_size": 128, "samples": 1, "lr": 0.2, "lr_schedule": "linear", "lr_decay": 0.0,
        "lr_decay_at": 0.0, "beta": 0.02, "initial_precision": 1e5, "prior_variance": 0.0025, "kl_weight": 0.1,
    },
    # As in noisy K-FAC. With more samples, eigenpairs of a small batch take twice the time for little improvement.
    "vime": {"prior_variance": 0.25, "samples": 2, "initial_precision": 50.0, "lr": 0.03},
}  # fmt: skip

# The initial deviation of 0.01 keeps the function of a trained network; the averaged precision then widens it.
TRAINED: dict[str, object] = {"initial_precision": 1e4, "lr": 0.03}
