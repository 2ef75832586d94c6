"""Bayesian logistic regression without Monte Carlo: the best Gaussian and the best factorised one, and their scores.

Under q(w) = N(mu, Sigma) the logit of an example, times its label y in {-1, 1}, is a scalar Gaussian

    z = y x^T w ~ N(m, v),   m = y x^T mu,   v = x^T Sigma x

so that the bound E_q[log p(y|x,w)] - KL(q || p), its derivatives and the predictive probability are one-dimensional
integrals. Where the bound is largest (P0: the prior's precision, diagonal; Opper and Archambeau 2009)

    P0 mu = sum_i E[sigma(-z_i)] y_i x_i       Sigma^-1 = P0 + sum_i E[sigma(z_i) sigma(-z_i)] x_i x_i^T

for a factorised q with the diagonal of Sigma^-1 alone. Splits are replicas [R, N, W] of one batch, in double precision.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

NODES, REACH = 400, 8.0  # of the quadrature, and how many standard deviations it covers


class Normal(NamedTuple):
    """A Gaussian over the weights of each replica."""

    mean: Float[Tensor, "R W"]
    covariance: Float[Tensor, "R W W"]


class Problem(NamedTuple):
    """The training examples of each replica, and the prior they share."""

    x: Float[Tensor, "R N W"]  # with the constant 1 as the last column
    y: Float[Tensor, "R N"]  # -1 or 1
    prior: Float[Tensor, " W"]  # precision of the prior of each weight


def expect(f: Callable[[Tensor], Tensor], m: Float[Tensor, "R N"], v: Float[Tensor, "R N"]) -> Float[Tensor, "R N"]:
    """E[f(z)] for z ~ N(m, v) and a smooth f of the logistic function, by the trapezoidal rule.

    With nodes h apart its error falls as exp(-2 pi^2 / h), since such f are analytic up to poles at i pi: below 1e-8
    for deviations up to 25. Gauss-Hermite needs far more nodes where the Gaussian is wide.
    """
    t = torch.linspace(-REACH, REACH, NODES, dtype=m.dtype)
    weights = torch.exp(-0.5 * t.square())
    return f(m.unsqueeze(-1) + v.sqrt().unsqueeze(-1) * t) @ (weights / weights.sum())


def logits(q: Normal, x: Tensor, y: Tensor) -> tuple[Float[Tensor, "R N"], Float[Tensor, "R N"]]:
    """Mean m and variance v of y x^T w for every example."""
    return y * (x @ q.mean.unsqueeze(-1)).squeeze(-1), ((x @ q.covariance) * x).sum(-1)


def elbo(q: Normal, problem: Problem) -> Float[Tensor, " R"]:
    """The evidence lower bound, in nats."""
    squares = (problem.prior * (q.mean.square() + q.covariance.diagonal(dim1=1, dim2=2))).sum(1)
    logdet = problem.prior.log().sum() + torch.linalg.cholesky(q.covariance).diagonal(dim1=1, dim2=2).log().sum(1) * 2
    divergence = 0.5 * (squares - logdet - len(problem.prior))
    return expect(F.logsigmoid, *logits(q, problem.x, problem.y)).sum(1) - divergence


def negative_log_likelihood(q: Normal, x: Tensor, y: Tensor) -> Float[Tensor, " R"]:
    """Mean of -log E_q[p(y|x,w)] over examples, in nats."""
    return -expect(torch.sigmoid, *logits(q, x, y)).log().mean(1)


def symmetric_kl(a: Normal, b: Normal) -> Float[Tensor, " R"]:
    """(KL(a || b) + KL(b || a)) / 2, in nats: the logarithms of the determinants cancel."""
    d = (a.mean - b.mean).unsqueeze(-1)
    total = -2.0 * d.shape[1] + torch.zeros(len(d), dtype=d.dtype)
    for p, q in ((a, b), (b, a)):
        root = torch.linalg.cholesky(q.covariance)
        total += torch.cholesky_solve(p.covariance, root).diagonal(dim1=1, dim2=2).sum(1)
        total += (d * torch.cholesky_solve(d, root)).sum((1, 2))
    return total / 4


def conditions(q: Normal, problem: Problem) -> tuple[Float[Tensor, "R W"], Float[Tensor, "R W W"]]:
    """(gradient of the bound in mu, the precision that the second equation asks for)."""
    m, v = logits(q, problem.x, problem.y)
    slope = expect(lambda z: torch.sigmoid(-z), m, v) * problem.y
    curvature = expect(lambda z: torch.sigmoid(z) * torch.sigmoid(-z), m, v)
    gradient = (slope.unsqueeze(1) @ problem.x).squeeze(1) - problem.prior * q.mean
    return gradient, problem.x.mT @ (curvature.unsqueeze(-1) * problem.x) + problem.prior.diag()


def residual(q: Normal, problem: Problem, factorised: bool = False) -> Float[Tensor, " R"]:
    """How far the two equations are from holding, in units of q's own deviations; 0 at the optimum."""
    gradient, precision = conditions(q, problem)
    root = torch.linalg.cholesky(q.covariance)
    if factorised:
        precision = torch.diag_embed(precision.diagonal(dim1=1, dim2=2))
    white = root.mT @ precision @ root - torch.eye(root.shape[1], dtype=root.dtype)
    step = root.mT @ gradient.unsqueeze(-1)
    return torch.maximum(white.abs().amax((1, 2)), step.abs().amax((1, 2)))


def optimum(problem: Problem, factorised: bool = False) -> Normal:
    """The Gaussian, or the factorised Gaussian, with the largest bound, by L-BFGS.

    Scales differ too much in the weights themselves, so the variables (the mean, and a Cholesky factor or the
    logarithms of the deviations) are those in which the precision with the largest curvature, 1/4, is white.
    """
    replicas, _, w = problem.x.shape
    precision = problem.x.mT @ problem.x / 4 + problem.prior.diag()
    root, deviation = torch.linalg.cholesky(precision.inverse()), precision.diagonal(dim1=1, dim2=2).rsqrt()
    variables = torch.zeros(replicas, 2 * w + (0 if factorised else w * w), dtype=root.dtype, requires_grad=True)

    def gaussian() -> Normal:
        shift, log_scale, lower = variables[:, :w], variables[:, w : 2 * w], variables[:, 2 * w :]
        mean = (root @ shift.unsqueeze(-1)).squeeze(-1)
        if factorised:
            return Normal(mean, torch.diag_embed((deviation * log_scale.exp()).square()))
        factor = root @ (lower.view(replicas, w, w).tril(-1) + torch.diag_embed(log_scale.exp()))
        return Normal(mean, factor @ factor.mT)

    solver = torch.optim.LBFGS(
        [variables], max_iter=1000, history_size=50, tolerance_grad=1e-9, tolerance_change=0,
        line_search_fn="strong_wolfe",
    )  # fmt: skip

    def loss() -> Tensor:
        solver.zero_grad()
        value = -elbo(gaussian(), problem).sum()
        value.backward()
        return value

    solver.step(loss)
    with torch.no_grad():
        return gaussian()
