"""Building blocks of updates: the training pass, Fisher gradients, step limits, and the final state."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from explore.core import tree
from explore.core.context import Number
from explore.core.linalg import over
from explore.core.rng import Rng
from explore.core.shapes import Batch, Info, LayerTaps, Means, NormTaps, State, Taps, Weights
from explore.execution import parallel
from explore.inference.base import Common, Predictive
from explore.inference.structures.base import dot
from explore.inference.updates.adam import advance_norms, advance_points
from explore.nets.protocols import Layer, Likelihood, Network, Noise, Pullback

Fisher = Literal["true", "empirical", "exact"]
"""Targets of the gradients in the Fisher matrix: sampled from the model, from the data, or the model's expectation.

"exact" is exact for all networks except those with batch norm, see `fisher_taps`.
"""
Schedule = Literal["step", "linear"]


class Pass(NamedTuple):
    """The results of the forward and backward pass in training mode at the start of an update."""

    noise: Noise  # noise parameter of the likelihood, per sample
    out: Float[Tensor, "R S B O"]
    y: Tensor  # targets, with a sample axis of 1
    nll: Float[Tensor, " R"]  # E[-log p(y | x, W)] per example, in nats
    taps: LayerTaps  # of the log-likelihood of these targets
    pullback: Pullback  # computes the taps for other output gradients


def train_pass(
    posterior: Predictive, state: State, weights: Sequence[Layer], noise: Noise, batch: Batch, parts: int = 1
) -> Pass:
    """Run the network in training mode at S weight samples for each part of the batch, and backpropagate."""
    layers, seed = posterior.layers(state, weights), int(state.common.step)
    out, pullback = forward_in_parts(posterior.net, layers, batch.x, parts, seed)
    y = batch.y.unsqueeze(1)
    nll = parallel.mean(-posterior.likelihood.log_prob(noise, out, y).mean((1, 2)))
    score = score_of(posterior.likelihood)(noise, out, y)
    if (factors := training_weights(posterior, noise, out)) is not None:
        score = factors * score
    return Pass(noise, out, y, nll, pullback(score), pullback)


def score_of(likelihood: Likelihood) -> Callable[[Noise, Tensor, Tensor], Float[Tensor, "R S B O"]]:
    """Return the likelihood's score for training; see `Heteroscedastic.training_score`."""
    return getattr(likelihood, "training_score", likelihood.score)


def training_weights(posterior: Predictive, noise: Noise, out: Tensor) -> Float[Tensor, "R S B O"] | None:
    """Return factors on the score in training, or None if there are none; see `Heteroscedastic.training_weights`.

    They are scaled so that the mean Fisher information about each output, which steps and prior relate to, is the same.
    """
    weigh = getattr(posterior.likelihood, "training_weights", None)
    if weigh is None or not posterior.weighs_gradients:
        return None
    weights, information = weigh(out), posterior.likelihood.fisher_root(noise, out).square().sum(0)
    mean, weighted = parallel.mean(tuple(i.mean((1, 2), keepdim=True) for i in (information, weights * information)))
    # Both are 0 if all log deviations of a batch are at their limit.
    return weights * (mean / weighted.clamp_min(torch.finfo(out.dtype).tiny))


def train_nll(posterior: Predictive, state: State, weights: Weights, noise: Noise, batch: Batch) -> Float[Tensor, " R"]:
    """Return only the `nll` of a training pass; `weights` has S samples for each part of the batch in this process."""
    layers, parts = posterior.layers(state, weights), parallel.world().held
    if parts == 1:
        out = posterior.net.train_output(layers, batch.x, seed=int(state.common.step))[0]
    else:
        out = forward_in_parts(posterior.net, layers, batch.x, parts, int(state.common.step))[0]
    return parallel.mean(-posterior.likelihood.log_prob(noise, out, batch.y.unsqueeze(1)).mean((1, 2)))


def forward_in_parts(
    net: Network, weights: Sequence[Any], x: Tensor, parts: int, seed: int
) -> tuple[Float[Tensor, "R K b O"], Pullback]:
    """Run a training pass with K samples per part of the batch; taps have parts * K samples of B / parts examples."""
    if parts == 1:
        return net.train_forward(weights, x, seed=seed)
    every = [w.expand(-1, parts, *w.shape[2:]) if w.shape[1] == 1 else w for w in weights]
    out, pullback = net.train_forward([_split(w, parts) for w in every], _split(x, parts), seed=seed)
    samples = out.shape[1]

    def joined(taps: Taps) -> Taps:
        def inputs(examples: slice) -> Tensor:
            return _join(taps.part(examples).inputs.expand(-1, samples, -1, -1, -1), parts)

        return Taps(inputs, _join(taps.grads, parts))

    def back(dout: Tensor) -> LayerTaps:
        separate = pullback(dout.unflatten(2, (parts, -1)).transpose(1, 2).flatten(0, 1))
        taps = LayerTaps(map(joined, separate))
        taps.norms = tuple(NormTaps(*(_join(t, parts) for t in norm)) for norm in separate.norms)
        taps.points = tuple(_join(t, parts) for t in separate.points)
        return taps

    return out.unflatten(0, (-1, parts)).transpose(1, 2).flatten(2, 3), back


def _split(x: Tensor, parts: int) -> Tensor:
    """Move parts to the replica axis: [R, (parts n), ...] -> [(R parts), n, ...]."""
    return x.unflatten(1, (parts, -1)).flatten(0, 1)


def _join(x: Tensor, parts: int) -> Tensor:
    """Invert `_split`: [(R parts), n, ...] -> [R, (parts n), ...]."""
    return x.unflatten(0, (-1, parts)).flatten(1, 2)


def fisher_taps(kind: Fisher, likelihood: Likelihood, forward: Pass, rng: Rng) -> tuple[Taps, ...]:
    """Return taps of gradients whose mean outer product over samples and examples is the Fisher matrix.

    For `kind`, see `Fisher`. "exact" uses one pullback per output and gives the generalised Gauss-Newton matrix.
    With batch norm, which couples the examples of a batch, random signs for each example keep the estimate unbiased.
    """
    noise, out = forward.noise, forward.out

    def measured(gradients: Tensor) -> Tensor:  # missing targets must add no curvature
        if not getattr(likelihood, "partial", False):
            return gradients
        return gradients.masked_fill(forward.y.isnan().repeat(1, 1, 1, out.shape[3] // forward.y.shape[3]), 0)

    if kind == "empirical":
        weighted = hasattr(likelihood, "training_weights")
        return forward.pullback(score_of(likelihood)(noise, out, forward.y)) if weighted else forward.taps
    if kind == "true":
        return forward.pullback(measured(score_of(likelihood)(noise, out, likelihood.sample(noise, out, rng))))
    roots = measured(likelihood.fisher_root(noise, out))
    if forward.taps.norms:
        heads = rng.uniform(*out.shape[:3], len(roots)) < 0.5
        roots = torch.where(heads.movedim(3, 0).unsqueeze(4), roots, -roots)
    # Roots are concatenated along the sample axis, over which structures average, hence the factor.
    parts = [forward.pullback(math.sqrt(len(roots)) * root) for root in roots]
    return parts[0] if len(parts) == 1 else tuple(map(_side_by_side, zip(*parts, strict=True)))


def _side_by_side(taps: tuple[Taps, ...]) -> Taps:
    def inputs(examples: slice) -> Tensor:
        a = taps[0].part(examples).inputs
        return a if a.shape[1] == 1 else a.repeat(1, len(taps), 1, 1, 1)

    grads, same = torch.cat([t.grads for t in taps], 1), taps[0]
    return Taps(inputs, grads, second_moment=same.second_moment, mean_inputs=same.mean_inputs)


def clipped(
    direction: Means, image: Means, lr: float, kl_clip: float | None, trust_region: float | None = None,
    scale: float = 1.0,
) -> Means:  # fmt: skip
    """Scale a direction d such that lr^2 d^T F d is at most `kl_clip` and 2 scale `trust_region`; `image` is F d.

    None: no limit. The first one is K-FAC's trust region (Ba, Grosse, Martens: Distributed second-order optimization
    using Kronecker-factored approximations, 2017, Section 5). To second order, lr^2 d^T F d is twice the KL per example
    between predictions before and after the step. The KL of a step in q is lr^2 d^T (F + gamma) d / (2 scale).
    """
    limits = [kl_clip, None if trust_region is None else 2 * scale * trust_region]
    limit = min((limit for limit in limits if limit is not None), default=None)
    if limit is None:
        return direction
    factor = (limit / (lr**2 * dot(direction, image))).sqrt().clamp_max(1.0)[:, None, None]
    return tuple(factor * d for d in direction)


def adapt(
    damping: Float[Tensor, " R"], overshoot: Float[Tensor, " R"]
) -> tuple[Float[Tensor, " R"], Bool[Tensor, " R"]]:
    """Return the adapted damping after a step (Levenberg-Marquardt), and which replicas accept the step.

    For a step d on a loss with gradient v and Hessian H, `overshoot` is the ratio of the curvature d^T H d to the
    descent -d^T v. `overshoot` replaces the reduction ratio in Martens and Grosse (2015, Section 6.5). A step to the
    minimum along the line has overshoot 1. If a step leaves the loss unchanged, its overshoot is 2.
    """
    accepted = overshoot < 2  # False for NaN
    factor = torch.ones_like(damping)
    factor[overshoot < 0.5] = 19 / 20
    factor[overshoot > 1] = 20 / 19
    factor[~accepted] = 2.0
    return damping * factor, accepted


def momentum(m: Means, gradient: Means, beta: float, correction: Number | Float[Tensor, " R"]) -> tuple[Means, Means]:
    """Return a gradient's new moving average, raw and divided by `correction`, which is 1 - beta^t after t steps."""
    new = tuple(torch.lerp(g, old, beta) for old, g in zip(m, gradient, strict=True))
    correction = over(correction, new[0])
    return new, tuple(x / correction for x in new)


def power_decay(step: int, power: float) -> float:
    """Return the factor 1 / (1 + t^p) on a rate at step t, counted from 1, with p = `power`; constant 1 if p is 0."""
    return 1 / (1 + step**power) if power else 1.0


def end_update(
    posterior: Predictive, forward: Pass, new: State, old: State, kl_weight: Number = 1.0, ok: Tensor | None = None
) -> tuple[State, Info]:
    """Update the `common` part of the state and freeze failed replicas. Return the new state and values to log."""
    common = advance(old.common, posterior, forward.out, forward.y, forward.taps, kl_weight)
    return settle(new._replace(common=common), old, ok), {"nll": forward.nll}


def advance(
    shared: Common, posterior: Predictive, out: Tensor, y: Tensor, taps: LayerTaps, kl_weight: Number
) -> Common:
    """Return the common state after one more update: new noise, batch norm and point estimates, and step counts."""
    noise = parallel.mean(posterior.likelihood.update(shared.noise, out, y, float(shared.n_data), kl_weight))
    taken, count = shared.taken + 1, (out.shape[1], out.shape[2])
    moved = advance_norms(shared.norms, posterior.net, taps.norms, count, posterior.batch_norm_lr, taken)
    points = advance_points(shared.points, taps.points, count, posterior.points_lr, taken)
    return shared._replace(noise=noise, step=shared.step + 1, taken=taken, norms=moved, points=points)


def settle(new: State, old: State, ok: Tensor | None = None) -> State:
    """Return `new`. Replicas with non-finite values or `ok` [R] False are frozen at `old` and no longer alive."""
    alive = old.common.alive if ok is None else old.common.alive & ok
    before = {id(leaf) for leaf in tree.tensors(old)}
    # A tensor that occurs several times is checked once.
    changed = {id(t): t for t in tree.tensors(new) if t.dim() and t.is_floating_point() and id(t) not in before}
    if changed:
        # A sum is finite only if all its terms are, and takes fewer small operations than testing each term.
        every = list(changed.values())
        if tree.bundled(every) and len({t.dtype for t in every}) == 1:
            total = tree.side_by_side(every).sum(1)
        else:
            total = torch.stack([t.sum(tuple(range(1, t.dim()))) if t.dim() > 1 else t for t in every]).sum(0)
        alive = alive & (total.abs() < math.inf)
    settled = tree.where(alive, new, old)
    return settled._replace(common=settled.common._replace(alive=alive))
