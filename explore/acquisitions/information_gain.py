"""Mutual information between the label and the weights (MacKay 1992; BALD, Houlsby et al. 2011).

Regression, with f Gaussian over the weights and noise precision tau: I = 1/2 log det(I + tau Cov_f), for several
points jointly. It is greedy: with S centred samples F of f, K = F^T F / (S - 1), i.e. f = F^T z / sqrt(S - 1) with
z ~ N(0, I), so that labelling a point only changes the precision of z, an [S, S] matrix, and the next point is scored
given the ones before it (BatchBALD for regression; Kirsch et al. 2019).
Classification: H[E_q p] - E_q H[p] for each point by itself; several at once are the k largest.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from explore.acquisitions.base import Choice, View, best, by_spread
from explore.linalg import inverse_root


@by_spread(alone="classes")
def information_gain(view: View, k: int) -> Choice:
    """The k points whose labels tell most about the weights; scores in nats."""
    if hasattr(view.likelihood, "probabilities"):
        each = [_mutual_information(view.likelihood.probabilities(out)) for out in view.chunks()]
        return best(torch.cat(each, 1), view.mask, k)
    tau = view.noise.view(-1, 1, 1)
    precision: Tensor | None = None  # of z, [R, S, S]
    mask, chosen = view.mask, []
    for _ in range(k):
        root = None if precision is None else inverse_root(precision)[0]
        scores = torch.cat([joint_gain(centred(out), root, tau) for out in view.chunks()], 1)
        chosen.append(best(scores, mask, 1))
        mask = mask.scatter(1, chosen[-1].indices, False)
        f = centred(view.draws(chosen[-1].indices)).squeeze(2)  # [R, S, O]
        if precision is None:
            precision = torch.eye(f.shape[1], dtype=f.dtype, device=f.device)
        precision = precision + tau * (f @ f.mT)
    return Choice(torch.cat([c.indices for c in chosen], 1), torch.cat([c.scores for c in chosen], 1))


def centred(out: Float[Tensor, "R S b O"]) -> Float[Tensor, "R S b O"]:
    """Outputs as deviations from their mean over samples, F / sqrt(S - 1): their products add up to the covariance."""
    return (out - out.mean(1, keepdim=True)) / (out.shape[1] - 1) ** 0.5


def joint_gain(f: Float[Tensor, "R S b O"], root: Tensor | None, tau: Tensor) -> Float[Tensor, "R b"]:
    """1/2 log det(I + tau Cov_f) of each point, in nats.

    Args:
        f: `centred` outputs.
        root: L^-1 where z has the precision L L^T, [R, S, S]; None: it is N(0, I).
        tau: noise precision, [R, 1, 1].
    """
    if root is not None:
        f = torch.einsum("rzs,rsbo->rzbo", root, f)
    covariance = torch.einsum("rsbo,rsbp->rbop", f, f)
    eye = torch.eye(covariance.shape[-1], dtype=f.dtype, device=f.device)
    return 0.5 * torch.logdet(eye + tau.unsqueeze(-1) * covariance)


def _mutual_information(p: Float[Tensor, "R S b C"]) -> Float[Tensor, "R b"]:
    entropy = torch.special.entr
    return entropy(p.mean(1)).sum(-1) - entropy(p).sum(-1).mean(1)
