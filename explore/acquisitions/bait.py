"""What leaves least of the pool's predictive variance, in units of the labels' information: BAIT (Ash et al. 2021).

Gone Fishing: Neural Active Learning with Fisher Embeddings, Section 3: with a pool U, a batch B and a prior precision P

    min_B tr((P + sum_B I_x)^-1 sum_U I_x),   I_x the Fisher information of a label at x.

The paper takes the weights of a net's last layer; here z are the coordinates of S sampled nets: f = mean + F^T z with
z ~ N(0, I_S), so that P = I, which the labelled points have shaped already, and nothing is larger than [S, S].
I_x = V V^T, V = F G, and G G^T is the information about the output at its mean: the precision tau of each for numbers,
so that the trace is tau times the variance, summed over outputs and pool (the variance form), and diag(p) - p p^T for
classes, as in a generalised linear model.

Greedy forward, each point given those before it and the pending ones; the paper's backward pass, which takes twice as
many and drops half, is left out. Many near-duplicates weigh much in the sum over the pool, and a second label of them
could be worth most: candidates whose predictions vary with those of a chosen or pending point come after all others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from explore.acquisitions.base import Choice, Needs, View
from explore.acquisitions.conditioning import alike, greedy_given, precision_given, signals
from explore.core.errors import check_fields
from explore.core.linalg import inverse_root
from explore.execution import parallel


class Carry(NamedTuple):
    """What is known of a batch."""

    precision: Float[Tensor, "R S S"] | None  # of z; None: I
    alike: Bool[Tensor, "R C"]  # candidates that are nearly one of its points


@Needs(spread=True, aims=True, costs=True)
@dataclass(frozen=True)
class BAIT:
    """The k points that lower the trace most; scores by how much, a mean over the pool (or over `view.targets`)."""

    alike: float = 0.01  # points are, whose predictions differ by less than this share of their variance

    def __post_init__(self) -> None:
        check_fields(self, {"alike": "[0, 1]"})

    def __call__(self, view: View, k: int) -> Choice:
        pool = _pool(view)

        def scores(known: Carry) -> Tensor:
            root = None if known.precision is None else inverse_root(known.precision)[0]
            return view.each(lambda out: _fall(signals(view.likelihood, view.noise, out), root, pool))

        def given(known: Carry, out: Tensor) -> Carry:
            precision = precision_given(known.precision, signals(view.likelihood, view.noise, out))
            return Carry(precision, known.alike | alike(view, out, self.alike))

        start = Carry(None, torch.zeros_like(view.mask))
        return greedy_given(view, k, start, scores, given, lambda known: known.alike, view.cost)


def _pool(view: View) -> Float[Tensor, "R S S"]:
    """Mean of V V^T over the points that matter."""
    (x, there), total = view.aims, view.uniform.new_zeros(())
    for part, out in view.predictor.outputs(x, only=parallel.share(x.shape[1])):
        v = (signals(view.likelihood, view.noise, out) * there[:, None, part, None]).flatten(2)
        total = total + v @ v.mT
    return parallel.mean(total) * parallel.world().processes / there.sum(1).view(-1, 1, 1)


def _fall(v: Float[Tensor, "R S b K"], root: Tensor | None, pool: Float[Tensor, "R S S"]) -> Float[Tensor, "R b"]:
    """Tr(P^-1 M) - tr((P + V V^T)^-1 M) = tr((I + V^T P^-1 V)^-1 V^T P^-1 M P^-1 V), M of the pool, P = L L^T.

    Args:
        v: of each point.
        root: L^-1; None: P = I.
        pool: M.
    """
    if root is not None:
        v, pool = torch.einsum("rzs,rsbk->rzbk", root, v), root @ pool @ root.mT
    own = torch.einsum("rsbk,rsbl->rbkl", v, v)
    across = torch.einsum("rsbk,rsbl->rbkl", v, torch.einsum("rst,rtbl->rsbl", pool, v))
    eye = torch.eye(v.shape[3], dtype=v.dtype, device=v.device)
    return torch.linalg.solve(eye + own, across).diagonal(dim1=2, dim2=3).sum(2)
