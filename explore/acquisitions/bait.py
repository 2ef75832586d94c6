"""BAIT: minimise the predictive variance of the pool, weighted by Fisher information (Ash et al. 2021).

Gone Fishing: Neural Active Learning with Fisher Embeddings, Section 3. For a pool U, a batch B and a prior precision P,

    min_B tr((P + sum_B I_x)^-1 sum_U I_x),   I_x the Fisher information of a label at x.

The paper uses the last-layer weights. Here, the parameters are the coordinates z of S sampled nets: f = mean + F^T z
with z ~ N(0, I_S), so that P = I. Then I_x = V V^T with V = F G, where G G^T is the Fisher information of a label about
the output, at the mean. Points are chosen by forward greedy selection. The paper selects 2k points, then removes k.
"""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from explore.acquisitions.base import Choice, Needs, View
from explore.acquisitions.conditioning import Numbers, greedy_given, root_of, signals
from explore.core.errors import Checked
from explore.core.linalg import identity


@Needs(spread=True, aims=True, costs=True)
@dataclass(frozen=True)
class BAIT(Checked):
    """A rule for the k points that reduce the mean weighted predictive variance most; scores are these reductions."""

    alike: float = 0.01  # near-duplicates: their predictions' difference has less than this share of the variance

    ranges: ClassVar[dict[str, str]] = {"alike": "[0, 1]"}

    def __call__(self, view: View, k: int) -> Choice:
        pool, labels = self._pool(view), Numbers(partial(signals, view.likelihood, view.noise))

        def scores(view: View, precision: Tensor | None) -> Tensor:
            root = root_of(precision)
            return view.each(lambda out: _fall(labels.signals(out), root, pool))

        return greedy_given(view, k, None, scores, labels.condition, self.alike)

    def spread(self, view: View, out: Float[Tensor, "R S b O"]) -> Float[Tensor, "R S b K"]:
        """Return V at target inputs, from their outputs."""
        return signals(view.likelihood, view.noise, out)

    def _pool(self, view: View) -> Float[Tensor, "R S S"]:
        """Return the mean of V V^T over the target inputs, which are the candidates by default."""
        (x, present), total = view.aims, view.uniform.new_zeros(())
        for part, out in view.predictor.outputs(x):
            v = (self.spread(view, out) * present[:, None, part, None]).flatten(2)
            total = total + v @ v.mT
        return total / present.sum(1).view(-1, 1, 1)


def _fall(v: Float[Tensor, "R S b K"], root: Tensor | None, pool: Float[Tensor, "R S S"]) -> Float[Tensor, "R b"]:
    """Return the drop in tr(P^-1 M), tr((I + V^T P^-1 V)^-1 V^T P^-1 M P^-1 V); M: `pool`, P^-1: `root`^T `root`."""
    if root is not None:
        v, pool = torch.einsum("rzs,rsbk->rzbk", root, v), root @ pool @ root.mT
    gram = torch.einsum("rsbk,rsbl->rbkl", v, v)
    across = torch.einsum("rsbk,rsbl->rbkl", v, torch.einsum("rst,rtbl->rsbl", pool, v))
    return torch.linalg.solve(identity(v.shape[3], v) + gram, across).diagonal(dim1=2, dim2=3).sum(2)
