"""Natural-gradient variational inference: its gradients as pure functions, and the order that several papers share.

The posteriors that differ from noisy K-FAC in the structure of the Fisher matrix alone are `NaturalGradient` with
another `Structure`; those that order things in another way write an `update` of their own. How far steps go is in
`explore.inference.updates.step_rules`.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from explore.core import tree
from explore.core.linalg import moved, over
from explore.core.rng import Rng
from explore.core.shapes import Batch, Info, Means, State, Taps, Weights
from explore.execution import parallel
from explore.execution.turns import Number, Turn, numbers
from explore.inference.base import Common, common
from explore.inference.gaussian import GaussianPosterior
from explore.inference.structures.base import Dampings, Factor, Statistics, Structure, each_layer, mean_outer
from explore.inference.updates import step_rules
from explore.inference.updates.steps import Pass, advance, settle, train_nll, train_pass
from explore.inference.updates.sub_batches import forward_in_parts
from explore.nets.protocols import Likelihood


def noisy_pass(
    posterior: GaussianPosterior,
    state: State,
    batch: Batch,
    samples: int,
    weight_noise: bool,
    rng: Rng,
    parts: int = 1,
) -> tuple[Weights, Pass]:
    """The weights W that an update takes gradients at, and its opening with them: samples of q, or its mean alone.

    With `parts` of this process's part of the batch there are as many samples for each.
    """
    parts *= parallel.world().held
    if weight_noise:
        own = parallel.apart(rng, int(state.common.step) + 1, 1)
        weights = posterior.sample_coordinates(state, parts * samples, own)
    else:
        weights, samples = tuple(m.unsqueeze(1) for m in posterior.gaussian(state)[0]), 1
    noise = posterior.likelihood.sample_noise(state.common.noise, samples, rng)
    forward = partial(forward_in_parts, posterior.net, parts=parts)
    return weights, train_pass(posterior, state, weights, noise, batch, forward)


def mean_gradient(taps: tuple[Taps, ...]) -> Means:
    """The gradient of the mean log-likelihood over samples and examples of this process, a tuple of [R, I, O]."""
    return tuple(mean_outer(t) for t in taps)


def regularised_gradient(gradient: Means, weights: Weights, gamma: Dampings) -> Means:
    """V = E[g] - gamma W: the mean gradient with the prior's, at the samples W and averaged over them."""
    layers = zip(gradient, weights, each_layer(gamma, len(gradient)), strict=True)
    return tuple(
        torch.addcmul(g, c, w.mean(1), value=-1) if isinstance(c, Tensor) else torch.sub(g, w.mean(1), alpha=c)
        for g, w, c in layers
    )


Fisher = Literal["true", "empirical", "exact"]
"""Targets of the gradients in a Fisher matrix: one drawn from the model, the data's, or the model's expectation.

The expectation is exact but for nets with batch normalisations, see `fisher_taps`.
"""


def fisher_taps(kind: Fisher, likelihood: Likelihood, seen: Pass, rng: Rng) -> tuple[Taps, ...]:
    """Gradients whose mean outer product over samples and examples is the Fisher matrix.

    Args:
        kind: whose targets they are of. The expectation takes as many pullbacks as there are outputs, and is the
            generalised Gauss-Newton matrix: the Hessian, where the net is linear in its weights. Where examples meet
            in batch normalisations, it is an unbiased estimate: each example's roots have random signs, else the
            roots of different examples, which are independent under the model, would add up and cancel.
        likelihood: of the targets.
        seen: the pass over the batch.
        rng: for drawn targets and signs; "exact" draws nothing in a net without batch normalisations.
    """
    if kind == "empirical":
        return seen.taps
    partial = getattr(likelihood, "partial", False)  # then no curvature is counted where no target is measured
    if kind == "true":
        score = likelihood.score(seen.noise, seen.out, likelihood.sample(seen.noise, seen.out, rng))
        return seen.pullback(score.masked_fill(seen.y.isnan(), 0) if partial else score)
    roots = likelihood.fisher_root(seen.noise, seen.out)
    roots = roots.masked_fill(seen.y.isnan(), 0) if partial else roots
    if seen.taps.norms:
        heads = rng.uniform(*seen.out.shape[:3], len(roots)) < 0.5
        roots = torch.where(heads.movedim(3, 0).unsqueeze(4), roots, -roots)
    # They are laid along the sample axis, over which a structure averages; hence the factor.
    parts = [seen.pullback(math.sqrt(len(roots)) * root) for root in roots]
    return parts[0] if len(parts) == 1 else tuple(map(_side_by_side, zip(*parts, strict=True)))


def _side_by_side(taps: tuple[Taps, ...]) -> Taps:
    def inputs(examples: slice) -> Tensor:
        a = taps[0].part(examples).inputs
        return a if a.shape[1] == 1 else a.repeat(1, len(taps), 1, 1, 1)

    grads, same = torch.cat([t.grads for t in taps], 1), taps[0]
    return Taps(inputs, grads, second_moment=same.second_moment, mean_inputs=same.mean_inputs)


class NaturalState(NamedTuple):
    """The state of `NaturalGradient`."""

    common: Common
    mean: Means  # M
    momentum: Means
    statistics: Statistics  # of F, the Fisher matrix
    damping: Float[Tensor, " R"]  # gamma' - gamma
    sampling: Factor  # F + gamma: the posterior's precision, times lambda / N
    step_factor: Factor  # F + gamma': what the mean step is preconditioned with


@dataclass(frozen=True, kw_only=True)
class NaturalGradient(GaussianPosterior):
    """q = N(M, (lambda/N) (F + gamma)^-1) with a structured Fisher matrix F (Zhang et al. 2017, eqs 6 to 9).

    gamma = lambda / (N eta);  F <- (1 - beta) F + beta E[g g^T];  V = E[g] - gamma W, averaged over W ~ q;
    M <- M + alpha (F + gamma')^-1 V~, V~ the bias-corrected moving average of V. The defaults are the paper's for
    regression, but for `adaptive_damping`.
    """

    samples: int = 10  # S, weight samples a step
    weight_noise: bool = True  # False: one gradient, at the mean (plain K-FAC, OGN, ...); the density stays
    warm_start: float = 0.0  # gradients are taken at the mean, too, up to this part of the training
    lr: float = 0.01  # alpha
    beta: float = 0.001  # averaging rate of the Fisher matrix
    lr_decay: float = 0.1  # what alpha and the averaging rates are multiplied with ...
    lr_decay_at: float = 0.5  # ... after this part of the training
    lr_schedule: step_rules.Schedule = "step"  # or "linear": in a straight line from there to the end
    decay: float = 0.0  # p: at step t alpha and the averaging rates are also divided by 1 + t^p; 0: they are not
    momentum: float = 0.9  # of the gradient, before preconditioning
    extrinsic_damping: float = 0.0  # gamma' - gamma: in the mean step, never in the sampling variance
    adaptive_damping: bool = True  # whether gamma' rises above that where steps overshoot; not in the papers
    statistics_interval: int = 1  # steps between updates of the Fisher matrix, in all its parts
    factor_interval: int = 1  # T_inv: steps between factorisations
    kl_clip: float | None = None  # how far a step may change the predictions before alpha decays, see `clipped`
    trust_region: float | None = None  # how far it may move q: a KL divergence in nats, see `step_limit`
    fisher: Fisher = "true"

    ranges: ClassVar[dict[str, str]] = {
        "beta": "(0, 1]",
        "decay": "[0, inf)",
        "lr_decay": "[0, 1]",
        "lr_decay_at": "[0, 1]",
        "momentum": "[0, 1)",
        "extrinsic_damping": "[0, inf)",
        "warm_start": "[0, 1]",
    }
    by_replica = frozenset({"lr", "beta", "lr_decay", "prior_variance", "kl_weight", "trust_region"})

    @property
    def own_bias_variance(self) -> tuple[bool, ...] | None:
        return (False,) * len(self.coordinates)

    @property
    @abstractmethod
    def structure(self) -> Structure:
        """How the Fisher matrix is approximated."""

    @property
    def decomposes(self) -> bool:
        """Whether factors are made by eigendecompositions, for which the host waits."""
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
        gamma, noisy = self.gamma(state.common), self.weight_noise and progress >= self.warm_start
        weights, seen = noisy_pass(self, state, batch, self.samples, noisy, rng)
        statistics, sampling, step_factor, ok = self._curvature(state, seen, schedule, progress, rng)

        gradient = mean_gradient(seen.taps)
        regularised = parallel.mean(regularised_gradient(gradient, weights, gamma))
        common = advance(state.common, self, seen.out, seen.y, seen.taps.norms, self.kl_weight)
        correction = 1 - self.momentum ** common.taken.double()
        average, corrected = step_rules.momentum(state.momentum, regularised, self.momentum, correction)
        direction = tuple(d.squeeze(1) for d in step_factor.solve(tuple(v.unsqueeze(1) for v in corrected)))
        limit = step_rules.step_limit(self.kl_clip, self.trust_region, self.kl_weight / float(state.common.n_data))
        direction = step_rules.clipped(direction, corrected, self.lr, limit)
        mean = tuple(moved(m, d, lr) for m, d in zip(state.mean, direction, strict=True))

        new = NaturalState(common, mean, average, statistics, state.damping, sampling, step_factor)
        if self.adaptive_damping:
            change = tuple(over(lr, d) * d for d in direction)
            there = tuple(w + c.unsqueeze(1) for w, c in zip(weights, change, strict=True))
            gained = seen.nll - train_nll(self, state, there, seen.noise, batch)
            pull = tuple(c * d for c, d in zip(each_layer(gamma, len(change)), change, strict=True))
            along, descent = (step_rules.inner(v, change) for v in (parallel.mean(gradient), corrected))
            curvature = 2 * (along - gained) + step_rules.inner(pull, change)
            new, ok = self._judged(new, state, curvature / descent, seen.nll.isfinite(), ok)
        return settle(new, state, ok), {"nll": seen.nll, "damping": self._mean_gamma(state) + new.damping}

    def turn(self, step: int, progress: float) -> Turn:
        schedule = step_rules.decay(progress, self.lr_decay_at, self.lr_decay, self.lr_schedule)
        schedule *= step_rules.power_decay(step, self.decay)
        observed = step % self.statistics_interval == 0
        factored, next_factored = ((t % self.factor_interval) == 0 for t in (step, step + 1))
        kind = (progress >= self.warm_start, observed, factored, next_factored)
        renewed = self.adaptive_damping and not next_factored  # where a step was taken back, see `_judged`
        waits = self.decomposes and (factored or renewed)
        return Turn(None if waits else kind, (self.lr * schedule, schedule))

    def once_factored(self, statistics: Statistics, state: NaturalState, progress: float) -> Statistics:
        """What the statistics become once the factors of the step after `state` are made of them."""
        return statistics

    def initial_curvature_share(self, state: NaturalState) -> Float[Tensor, " R"]:
        """How much of the Fisher matrix's diagonal is still its start: of the layer with the most of it, at least.

        The rest of an average with the rate beta after k steps, (1 - beta)^k, is not little where gradients are.
        """
        k = int(state.common.step) // self.statistics_interval
        return ((1 - self.beta) ** k * self.structure.start_share(state.statistics)).clamp_max(1.0)

    def gaussian(self, state: NaturalState) -> tuple[Means, Factor, Number]:
        return state.mean, state.sampling, self.kl_weight / float(state.common.n_data)

    def _curvature(
        self, state: NaturalState, seen: Pass, schedule: Number, progress: float, rng: Rng
    ) -> tuple[Statistics, Factor, Factor, Tensor]:
        """F after the batch, F + gamma and F + gamma' where this step is one to make them, and whether that worked."""
        step, statistics = int(state.common.step) + 1, state.statistics
        if step % self.statistics_interval == 0:
            taps = fisher_taps(self.fisher, self.likelihood, seen, parallel.apart(rng, step, 2))
            statistics = self.structure.observe(statistics, taps, schedule, step)
        factors = state.sampling, state.step_factor, state.common.alive
        if step % self.factor_interval == 0:
            factors = self._factor(statistics, state.damping, self.gamma(state.common))
        return self.once_factored(statistics, state, progress), *factors

    def _factor(
        self, statistics: Statistics, damping: Float[Tensor, " R"], gamma: Dampings
    ) -> tuple[Factor, Factor, Tensor]:
        """F + gamma, F + gamma', and the replicas for which both succeeded."""
        sampling, ok = self.structure.factor(statistics, gamma)
        if not (self.adaptive_damping or self.extrinsic_damping):
            return sampling, sampling, ok
        raised = damping > 0
        if not self.extrinsic_damping and tree.surely(~raised):
            return sampling, sampling, ok
        step_factor, ok_step = self.structure.factor(statistics, _raised(gamma, damping))
        # Each replica's bits are the same whether or not another one's damping is raised.
        return sampling, tree.where(raised, step_factor, sampling), ok & ok_step

    def _judged(
        self, new: NaturalState, old: NaturalState, overshoot: Tensor, finite: Tensor, ok: Tensor
    ) -> tuple[NaturalState, Tensor]:
        """The step, taken back where it overshot, with the damping for the next one; and which replicas are well."""
        gamma = self._mean_gamma(old)
        damping, accepted = step_rules.adapt(gamma + old.damping, overshoot)
        accepted |= ~finite  # no damping helps there, and the replica fails
        new = tree.where(accepted, new, old)._replace(damping=(damping - gamma).clamp_min(self.extrinsic_damping))
        ok = ok | ~accepted
        if tree.surely(accepted) or (int(old.common.step) + 2) % self.factor_interval == 0:
            return new, ok
        # With factors of the old damping the same step would come again, and the damping would double without end.
        raised = _raised(self.gamma(new.common), new.damping)
        renewed, ok_renewed = self.structure.factor(new.statistics, raised)
        return new._replace(step_factor=tree.where(accepted, new.step_factor, renewed)), ok & (ok_renewed | accepted)

    def _mean_gamma(self, state: NaturalState) -> float | Float[Tensor, " R"]:
        """Gamma, or its mean over all weights where it is not the same for all."""
        gamma = self.gamma(state.common)
        if not isinstance(gamma, tuple):
            return gamma
        every = [(c * torch.ones_like(m)).sum((1, 2)) for c, m in zip(gamma, state.mean, strict=True)]
        return torch.stack(every).sum(0) / self.dimension


def _raised(gamma: Dampings, damping: Float[Tensor, " R"]) -> Dampings:
    """Gamma'."""
    if not isinstance(gamma, tuple):
        return gamma + damping
    return tuple(c + over(damping, c) if isinstance(c, Tensor) else c + damping for c in gamma)
