"""Natural-gradient variational inference: gradients, the update shared by several papers, and presets.

Subclass `NaturalGradient` for a new structure of the Fisher matrix, and `NaturalPosterior` for a different update.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from explore.core import tree
from explore.core.context import Number, Turn, numbers
from explore.core.linalg import moved, over
from explore.core.rng import Rng
from explore.core.shapes import Batch, Info, Means, State, Taps, Weights
from explore.execution import parallel
from explore.inference.base import Common, common
from explore.inference.gaussian import Density, GaussianPosterior, drawn
from explore.inference.structures.base import Factor, Statistics, Structure, dot, mean_outer
from explore.inference.updates import steps
from explore.inference.updates.steps import Fisher, Pass, Schedule
from explore.nets.protocols import Noise


def mean_gradient(taps: tuple[Taps, ...]) -> Means:
    """Return the log-likelihood gradient, averaged over samples and examples of this process: a tuple of [R, I, O]."""
    return tuple(mean_outer(t) for t in taps)


def regularised_gradient(gradient: Means, weights: Weights, gamma: Number) -> Means:
    """Return V = E[g] - gamma W, the gradient of log-likelihood plus weighted log prior, averaged over samples W."""
    return tuple(moved(g, w.mean(1), -gamma) for g, w in zip(gradient, weights, strict=True))


@dataclass(frozen=True, kw_only=True)
class NaturalPosterior(GaussianPosterior):
    """A Gaussian over weights, fitted by natural gradients at weight samples, with the settings of all such methods."""

    samples: int = 10  # S, weight samples per step
    weight_noise: bool = True  # False: one gradient, at the mean (plain K-FAC, OGN, ...); q keeps its covariance
    warm_start: float = 0.0  # initial fraction of training with gradients at the mean
    lr: float = 0.01  # alpha
    lr_decay: float = 0.1  # factor for alpha (and averaging rates, except in VOGN) ...
    lr_decay_at: float = 0.5  # ... after this fraction of training
    lr_schedule: Schedule = "step"  # or "linear": decay linearly from `lr_decay_at` to the end
    momentum: float = 0.9  # of the gradient, before preconditioning

    ranges: ClassVar[dict[str, str]] = {
        "lr_decay": "[0, 1]", "lr_decay_at": "[0, 1]", "momentum": "[0, 1)", "warm_start": "[0, 1]",
        "beta": "(0, 1]", "beta2": "(0, 1]", "decay": "[0, inf)", "extrinsic_damping": "[0, inf)",
        "noisy_trust": "(0, 1]",
    }  # fmt: skip

    def schedule(self, progress: float) -> float:
        """Return the factor on the learning rate at `progress`, the completed fraction of training."""
        at = self.lr_decay_at
        if progress < at or at == 1:
            return 1.0
        return self.lr_decay if self.lr_schedule == "step" else 1 - (1 - self.lr_decay) * (progress - at) / (1 - at)

    def training_density(self, state: State) -> Density:
        """Return the Gaussian from which updates draw weights; it may be narrower than `gaussian`."""
        return self.gaussian(state)

    def is_noisy(self, state: State, progress: float) -> bool:
        """Return whether gradients are taken at weight samples, not at the mean, at this progress of training."""
        return self.weight_noise and progress >= self.warm_start

    def noisy_weights(self, state: State, progress: float, rng: Rng, parts: int = 1) -> tuple[Weights, Noise]:
        """Return the weights of a training pass, the mean or samples of q for each of `parts`, and noise parameters."""
        if self.is_noisy(state, progress):
            stream = parallel.apart(rng, int(state.common.step) + 1, 1)
            weights, samples = drawn(self.training_density(state), parts * self.samples, stream), self.samples
        else:
            weights, samples = tuple(m.unsqueeze(1) for m in self.training_density(state)[0]), 1
        return weights, self.likelihood.sample_noise(state.common.noise, samples, rng)

    def noisy_pass(self, state: State, batch: Batch, progress: float, rng: Rng, parts: int = 1) -> tuple[Weights, Pass]:
        """Return the `noisy_weights` W of this progress of training, and the training pass at W."""
        parts *= parallel.world().held
        weights, noise = self.noisy_weights(state, progress, rng, parts)
        return weights, steps.train_pass(self, state, weights, noise, batch, parts)


class NaturalState(NamedTuple):
    """The state of `NaturalGradient`."""

    common: Common
    mean: Means  # M
    momentum: Means
    statistics: Statistics  # running statistics of the Fisher matrix F
    damping: Float[Tensor, " R"]  # gamma' - gamma
    sampling: Factor  # F + gamma: the posterior precision times lambda / N
    step_factor: Factor  # F + gamma': preconditions the mean step


@dataclass(frozen=True, kw_only=True)
class NaturalGradient(NaturalPosterior):
    """A Gaussian q = N(M, (lambda/N) (F + gamma)^-1), F a structured Fisher matrix (Zhang et al. 2017, eqs 6 to 9).

    F <- (1 - beta) F + beta E[g g^T];  V = E[g] - gamma W, averaged over W ~ q;  M <- M + alpha (F + gamma')^-1 V~

    Here gamma = lambda / (N eta), with KL weight lambda, N examples and prior variance eta. gamma' is gamma plus
    further damping of the mean step. V~ is the bias-corrected moving average (momentum) of V.
    """

    beta: float = 0.001  # averaging rate of the Fisher matrix
    decay: float = 0.0  # p: step t also divides alpha and averaging rates by 1 + t^p; 0: no such decay
    extrinsic_damping: float = 0.0  # gamma' - gamma: in the mean step, never in the sampling variance
    adaptive_damping: bool = True  # whether gamma' increases further if steps overshoot; not in the papers
    statistics_interval: int = 1  # steps between updates of the Fisher matrix
    factor_interval: int = 1  # T_inv: steps between factorisations
    kl_clip: float | None = None  # limit on the change in predictions per step, before alpha decays, see `clipped`
    trust_region: float | None = None  # limit on the change in q per step: a KL in nats, see `clipped`
    noisy_trust: float = 1.0  # factor on `trust_region` once gradients are at weight samples
    fisher: Fisher = "true"

    @property
    @abstractmethod
    def structure(self) -> Structure:
        """The structure that approximates the Fisher matrix."""

    @property
    def decomposes(self) -> bool:
        """Whether factorisation needs eigendecompositions, which make the CPU wait for the GPU."""
        return False

    def init(self, n_data: float, replicas: int, rng: Rng) -> NaturalState:
        shared = common(self, n_data, replicas, rng)
        mean = self.net.initial(replicas, rng)
        statistics = self.structure.init(self.net.shapes, replicas, rng)
        damping = torch.full((replicas,), self.extrinsic_damping, dtype=rng.dtype, device=rng.device)
        sampling, step_factor, _ = self._factor(statistics, damping, self.gamma(shared))
        zeros = tuple(torch.zeros_like(m) for m in mean)
        return NaturalState(shared, mean, zeros, statistics, damping, sampling, step_factor)

    def update(self, state: NaturalState, batch: Batch, rng: Rng, progress: float = 0.0) -> tuple[NaturalState, Info]:
        lr, schedule = numbers(self.turn(int(state.common.step) + 1, progress))
        gamma = self.gamma(state.common)
        weights, forward = self.noisy_pass(state, batch, progress, rng)
        statistics, sampling, step_factor, ok = self._curvature(state, forward, schedule, progress, rng)

        gradient = mean_gradient(forward.taps)
        regularised = parallel.mean(regularised_gradient(gradient, weights, gamma))
        common = steps.advance(state.common, self, forward.out, forward.y, forward.taps, self.kl_weight)
        correction = 1 - self.momentum ** common.taken.double()
        average, corrected = steps.momentum(state.momentum, regularised, self.momentum, correction)
        direction = tuple(d.squeeze(1) for d in step_factor.solve(tuple(v.unsqueeze(1) for v in corrected)))
        trust = self.trust_region
        if trust is not None and self.is_noisy(state, progress):
            trust = self.noisy_trust * trust
        scale = self.kl_weight / float(state.common.n_data)
        direction = steps.clipped(direction, corrected, self.lr, self.kl_clip, trust, scale)
        mean = tuple(moved(m, d, lr) for m, d in zip(state.mean, direction, strict=True))

        new = NaturalState(common, mean, average, statistics, state.damping, sampling, step_factor)
        if self.adaptive_damping:
            change = tuple(over(lr, d) * d for d in direction)
            ahead = tuple(w + c.unsqueeze(1) for w, c in zip(weights, change, strict=True))
            gained = forward.nll - steps.train_nll(self, state, ahead, forward.noise, batch)
            pull = tuple(over(gamma, d) * d for d in change)
            along, descent = (dot(v, change) for v in (parallel.mean(gradient), corrected))
            curvature = 2 * (along - gained) + dot(pull, change)
            new, ok = self._judged(new, state, curvature / descent, forward.nll.isfinite(), ok)
        return steps.settle(new, state, ok), {"nll": forward.nll, "damping": gamma + new.damping}

    def turn(self, step: int, progress: float) -> Turn:
        schedule = self.schedule(progress) * steps.power_decay(step, self.decay)
        observed = step % self.statistics_interval == 0
        factored, next_factored = ((t % self.factor_interval) == 0 for t in (step, step + 1))
        kind = (progress >= self.warm_start, observed, factored, next_factored)
        renewed = self.adaptive_damping and not next_factored  # if a step is rejected, see `_judged`
        waits = self.decomposes and (factored or renewed)
        return Turn(None if waits else kind, (self.lr * schedule, schedule))

    def started(self, state: NaturalState, mean: Means, statistics: Statistics) -> NaturalState:
        """Return an initial state with this mean and these statistics of the Fisher matrix."""
        sampling, step_factor, ok = self._factor(statistics, state.damping, self.gamma(state.common))
        new = state._replace(mean=mean, statistics=statistics, sampling=sampling, step_factor=step_factor)
        return steps.settle(new, state, ok)

    def once_factored(self, statistics: Statistics, state: NaturalState, progress: float) -> Statistics:
        """Return the statistics to store after the factors of a step were computed; unchanged by default."""
        return statistics

    def initial_curvature_share(self, state: NaturalState) -> Float[Tensor, " R"]:
        """Return the share of the Fisher diagonal that still comes from initialisation, the maximum over layers."""
        k = int(state.common.step) // self.statistics_interval
        return ((1 - self.beta) ** k * self.structure.start_share(state.statistics)).clamp_max(1.0)

    def gaussian(self, state: NaturalState) -> Density:
        return self.training_density(state)

    def training_density(self, state: NaturalState) -> Density:
        return state.mean, state.sampling, self.kl_weight / float(state.common.n_data)

    def _curvature(
        self, state: NaturalState, forward: Pass, schedule: Number, progress: float, rng: Rng
    ) -> tuple[Statistics, Factor, Factor, Tensor]:
        """Return F and the factors of F + gamma and F + gamma', each updated if due, and which replicas succeeded."""
        step, statistics = int(state.common.step) + 1, state.statistics
        if step % self.statistics_interval == 0:
            taps = steps.fisher_taps(self.fisher, self.likelihood, forward, parallel.apart(rng, step, 2))
            statistics = self.structure.observe(statistics, taps, schedule, step)
        factors = state.sampling, state.step_factor, state.common.alive
        if step % self.factor_interval == 0:
            factors = self._factor(statistics, state.damping, self.gamma(state.common))
        return self.once_factored(statistics, state, progress), *factors

    def _factor(
        self, statistics: Statistics, damping: Float[Tensor, " R"], gamma: Number
    ) -> tuple[Factor, Factor, Tensor]:
        """Factorise F + gamma and F + gamma'; also return for which replicas both succeeded."""
        sampling, ok = self.structure.factor(statistics, gamma)
        if not (self.adaptive_damping or self.extrinsic_damping):
            return sampling, sampling, ok
        raised = damping > 0
        if not self.extrinsic_damping and tree.known_all_true(~raised):
            return sampling, sampling, ok
        step_factor, ok_step = self.structure.factor(statistics, gamma + damping)
        # The result of a replica is bit-identical whether or not other replicas have raised damping.
        return sampling, tree.where(raised, step_factor, sampling), ok & ok_step

    def _judged(
        self, new: NaturalState, old: NaturalState, overshoot: Tensor, finite: Tensor, ok: Tensor
    ) -> tuple[NaturalState, Tensor]:
        """Reject steps that overshot, and adapt the damping. Return the state, and which replicas remain valid."""
        gamma = self.gamma(old.common)
        damping, accepted = steps.adapt(gamma + old.damping, overshoot)
        accepted |= ~finite  # more damping would not help; the replica fails
        new = tree.where(accepted, new, old)._replace(damping=(damping - gamma).clamp_min(self.extrinsic_damping))
        ok = ok | ~accepted
        if tree.known_all_true(accepted) or (int(old.common.step) + 2) % self.factor_interval == 0:
            return new, ok
        # With the old factors, the same step would be rejected again, and the damping would double indefinitely.
        renewed, ok_renewed = self.structure.factor(new.statistics, self.gamma(new.common) + new.damping)
        return new._replace(step_factor=tree.where(accepted, new.step_factor, renewed)), ok & (ok_renewed | accepted)


SMALL: dict[str, object] = {
    "batch_size": 30, "samples": 5, "lr": 0.02, "beta": 0.02, "prior_variance": 0.3, "kl_weight": 0.35,
}  # fmt: skip
"""The preset `small`, for a few dozen labels; chosen by active learning with noisy K-FAC on Boston Housing."""

TABLE: dict[str, object] = {
    "epochs": 120, "batch_size": 64, "min_batches": 16, "samples": 2, "lr": 1.0, "lr_schedule": "linear",
    "lr_decay": 0.0, "lr_decay_at": 0.7, "beta": 0.1, "statistics_interval": 5, "factor_interval": 5,
    "adaptive_damping": False, "extrinsic_damping": 0.0, "trust_region": 0.25, "noisy_trust": 1.0, "warm_start": 0.5,
    "prior_variance": 2.0, "kl_weight": 1.0,
}  # fmt: skip
"""The preset `default` of posteriors with Kronecker factors, for tables with at least a few hundred rows.

Chosen for noisy K-FAC on validation sets of splits not used in reported results: experiments/table_defaults. The prior
variance is twice that of the papers: predictions are as accurate, and less confident away from the data.
"""

_FEW: dict[str, object] = TABLE | {"epochs": 300, "min_batches": 8, "prior_variance": 1.0}
# Steps grow with the rows, so that each example may move the same distance; once gradients are at samples, whose first
# ones are far from the mean, by a quarter. Chosen on eight tables: experiments/large_tables.
_STEPS: dict[str, object] = {
    "batch_size": 128, "samples": 2, "lr": 0.3, "beta": 0.03, "extrinsic_damping": 0.01, "noisy_trust": 0.25,
    "warm_start": 0.5, "factor_interval": 5,
}  # fmt: skip
_ONE: dict[str, object] = _STEPS | {"samples": 1, "warm_start": 0.3}
_MORE: dict[str, object] = _ONE | {"beta": 0.04, "factor_interval": 20}
_MANY: dict[int, dict[str, object]] = {
    1000: _STEPS | {"epochs": 200, "trust_region": 4.0},
    3000: _MORE | {"epochs": 110, "trust_region": 16.0},
    5000: _MORE | {"epochs": 75, "trust_region": 24.0},
    16000: _MORE | {"epochs": 45, "trust_region": 64.0},
    64000: _MORE | {"epochs": 32, "trust_region": 64.0},
}
TABLE_BY_ROWS: dict[int, dict[int, dict[str, object]]] = {
    10: {20: _FEW | {"prior_variance": 0.5, "kl_weight": 0.6}, 60: _FEW, 250: TABLE},
    50: {
        20: _FEW | {"prior_variance": 0.1, "kl_weight": 0.5},
        60: _FEW | {"prior_variance": 0.2, "kl_weight": 0.6},
        250: TABLE,
        500: TABLE | {"extrinsic_damping": 1e-4},  # not 0, from which nothing is interpolated
        **{rows: TABLE | {"prior_variance": 1.0} | settings for rows, settings in _MANY.items()},
    },
}
"""Settings by hidden units and rows (`recommended_settings`), chosen on UCI sets. More units need a narrower prior."""

INPUT_NOISE: dict[int, dict[str, object]] = {
    100: {key: TABLE[key] for key in _STEPS} | {"epochs": 1000, "trust_region": 0.25, "extrinsic_damping": 1e-4},
    250: _ONE | {"epochs": 210, "trust_region": 1.0},
    **_MANY,
    1000: _MANY[1000] | {"epochs": 400},
}
"""Settings for noise that depends on the input, by rows. With few rows, large steps overfit."""

BY_COLUMNS = {16: {"prior_variance": 1.0}, 128: {"prior_variance": 0.044}}
"""Factors on settings for many columns, whose weights add up: (16 / columns)^1.5. From experiments/large_tables."""

HUNDREDS = TABLE | {"prior_variance": 0.3}
"""The former preset for 64 to 250 rows, superseded by `TABLE_BY_ROWS`."""

CLASSES = TABLE | {"lr_decay_at": 0.8, "warm_start": 0.7, "prior_variance": 1.0}
"""The preset `classes`: better than `TABLE` on average over eleven validation sets, and less confident when wrong."""

IMAGE: dict[str, object] = {
    "epochs": 150, "batch_size": 128, "samples": 1, "lr": 0.3, "lr_schedule": "linear", "lr_decay": 0.0,
    "lr_decay_at": 0.0, "beta": 0.2, "statistics_interval": 5, "adaptive_damping": False,
    "extrinsic_damping": 0.03, "kl_clip": 0.01, "prior_variance": 0.0025, "kl_weight": 0.1, "weight_sharing": "expand",
}  # fmt: skip
"""The preset `image` of posteriors with Kronecker factors, for image networks, usable from one epoch on.

Running averages lose their initial value within a few hundred steps (in `paper-image` within thousands). Steps and
noise are smaller than in the paper. Chosen on validation sets of MNIST (LeNet-5) and CIFAR-10 (LeNet-5, narrow VGG16s).
A prior twice as wide is slightly better for VGG16s, but makes LeNet-5 strongly overconfident.
"""
