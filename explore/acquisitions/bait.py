"""BAIT: lower the predictive variance of the pool, in units of the labels' information (Ash et al. 2021).

Gone Fishing: Neural Active Learning with Fisher Embeddings, Section 3. With a pool U, a batch B and a prior precision P

    min_B tr((P + sum_B I_x)^-1 sum_U I_x),   I_x the Fisher information of a label at x.

The paper uses the weights of a net's last layer, here z are the coordinates of S sampled nets: f = mean + F^T z with z
~ N(0, I_S), so that P = I. I_x = V V^T and V = F G; G G^T is the information about the output at its mean. Points are
chosen greedily forward; the paper's backward pass, which takes twice as many and drops half, is omitted.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from explore.acquisitions.base import Choice, Needs, View
from explore.acquisitions.conditioning import Numbers, greedy_given, root_of, signals
from explore.core.errors import Checked
from explore.execution import parallel


@Needs(spread=True, aims=True, costs=True)
@dataclass(frozen=True)
class BAIT(Checked):
    """The k points that lower the trace most; scores: the decrease, averaged over the pool (or `view.targets`)."""

    alike: float = 0.01  # points are, whose predictions differ by less than this share of their variance

    ranges: ClassVar[dict[str, str]] = {"alike": "[0, 1]"}

    def __call__(self, view: View, k: int) -> Choice:
        pool, labels = _pool(view), Numbers(partial(signals, view.likelihood, view.noise))

        def scores(precision: Tensor | None) -> Tensor:
            root = root_of(precision)
            return view.each(lambda out: _fall(labels.signals(out), root, pool))

        return greedy_given(view, k, None, scores, labels.condition, self.alike)


def _pool(view: View) -> Float[Tensor, "R S S"]:
    """Mean of V V^T over the points that matter."""
    (x, present), total = view.aims, view.uniform.new_zeros(())
    for part, out in view.predictor.outputs(x, only=parallel.share(x.shape[1])):
        v = (signals(view.likelihood, view.noise, out) * present[:, None, part, None]).flatten(2)
        total = total + v @ v.mT
    return parallel.mean(total) * parallel.world().processes / present.sum(1).view(-1, 1, 1)


def _fall(v: Float[Tensor, "R S b K"], root: Tensor | None, pool: Float[Tensor, "R S S"]) -> Float[Tensor, "R b"]:
    """Return tr((I + V^T P^-1 V)^-1 V^T P^-1 M P^-1 V), the fall of tr(P^-1 M); `root` is L^-1 with P = L L^T."""
    if root is not None:
        v, pool = torch.einsum("rzs,rsbk->rzbk", root, v), root @ pool @ root.mT
    gram = torch.einsum("rsbk,rsbl->rbkl", v, v)
    across = torch.einsum("rsbk,rsbl->rbkl", v, torch.einsum("rst,rtbl->rsbl", pool, v))
    eye = torch.eye(v.shape[3], dtype=v.dtype, device=v.device)
    return torch.linalg.solve(eye + gram, across).diagonal(dim1=2, dim2=3).sum(2)
