"""What opens and ends an update, for every posterior."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from explore.core import tree
from explore.core.shapes import Batch, Info, LayerTaps, NormTaps, State, Weights
from explore.execution import parallel
from explore.inference.base import Common, Predictive
from explore.inference.norms import advance_norms
from explore.inference.updates.sub_batches import forward_in_parts
from explore.nets.protocols import Layer, Noise, Pullback


class Pass(NamedTuple):
    """A forward pass over a batch in training mode, with which an update begins."""

    noise: Noise  # the likelihood's parameter at each sample
    out: Float[Tensor, "R S B O"]
    y: Tensor  # targets, with a sample axis of 1
    nll: Float[Tensor, " R"]  # E[-log p(y | x, W)] of an example, in nats
    taps: LayerTaps  # of the log-likelihood of these targets
    pullback: Pullback  # makes the taps of other targets


def train_pass(
    posterior: Predictive,
    state: State,
    weights: Sequence[Layer],
    noise: Noise,
    batch: Batch,
    forward: Callable[..., tuple[Tensor, Pullback]] | None = None,
) -> Pass:
    """What opens an update: the net at S samples of its weights and noise, and the log-likelihood's gradients.

    `forward` takes the place of `net.train_forward`.
    """
    out, pullback = (forward or posterior.net.train_forward)(posterior.layers(state, weights), batch.x)
    y = batch.y.unsqueeze(1)
    nll = parallel.mean(-posterior.likelihood.log_prob(noise, out, y).mean((1, 2)))
    return Pass(noise, out, y, nll, pullback(posterior.likelihood.score(noise, out, y)), pullback)


def train_nll(posterior: Predictive, state: State, weights: Weights, noise: Noise, batch: Batch) -> Float[Tensor, " R"]:
    """The `nll` of such a pass alone; each part of the batch that this process holds has S samples of its own."""
    layers, parts = posterior.layers(state, weights), parallel.world().held
    if parts == 1:
        out = posterior.net.train_output(layers, batch.x)[0]
    else:
        out = forward_in_parts(posterior.net, layers, batch.x, parts)[0]
    return parallel.mean(-posterior.likelihood.log_prob(noise, out, batch.y.unsqueeze(1)).mean((1, 2)))


def end_update(
    posterior: Predictive, seen: Pass, new: State, old: State, kl_weight: float | Tensor = 1.0, ok: Tensor | None = None
) -> tuple[State, Info]:
    """What ends an update: the new state, with a `common` that has learnt from the pass too, and numbers to log.

    `kl_weight` is lambda in the likelihood's own posterior. Replicas that failed, or are not `ok` [R], are frozen.
    """
    common = advance(old.common, posterior, seen.out, seen.y, seen.taps.norms, kl_weight)
    return settle(new._replace(common=common), old, ok), {"nll": seen.nll}


def advance(
    shared: Common,
    posterior: Predictive,
    out: Tensor,
    y: Tensor,
    norms: tuple[NormTaps, ...],
    kl_weight: float | Tensor,
) -> Common:
    """The shared part after one more update: noise and normalisations have seen the batch, and the step is counted."""
    noise = parallel.mean(posterior.likelihood.update(shared.noise, out, y, float(shared.n_data), kl_weight))
    taken, count = shared.taken + 1, (out.shape[1], out.shape[2])
    moved = advance_norms(shared.norms, posterior.net, norms, count, posterior.batch_norm_lr, taken)
    eta = shared.prior and shared.prior._replace(held=shared.prior.variance)
    return shared._replace(noise=noise, step=shared.step + 1, taken=taken, norms=moved, prior=eta)


def settle(new: State, old: State, ok: Tensor | None = None) -> State:
    """`new`, but with every replica that failed frozen at `old` and marked as not alive.

    A replica has failed where any number of its state is not finite.

    Args:
        new: the state after a step.
        old: the state before it.
        ok: [R] bool, what else decides.
    """
    alive = old.common.alive if ok is None else old.common.alive & ok
    before = {id(leaf) for leaf in tree.tensors(old)}
    # What stands in several places is looked at once.
    changed = {id(t): t for t in tree.tensors(new) if t.dim() and t.is_floating_point() and id(t) not in before}
    if changed:
        # A sum is finite only where all its terms are, and takes fewer small operations than a test of each.
        every = list(changed.values())
        if tree.bundled(every) and len({t.dtype for t in every}) == 1:
            total = tree.side_by_side(every).sum(1)
        else:
            total = torch.stack([t.sum(tuple(range(1, t.dim()))) if t.dim() > 1 else t for t in every]).sum(0)
        alive = alive & (total.abs() < math.inf)
    kept = tree.where(alive, new, old)
    return kept._replace(common=kept.common._replace(alive=alive))
