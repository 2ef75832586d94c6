"""Gaussian processes: covariances, densities, drawn functions, and noise that depends on the input.

The prior covariance of f is s k(r) + b x.x' / D, with r^2 = sum_d (x_d - x'_d)^2 / l_d^2. Hyperparameters h are the
logarithms of l_1 to l_D, b, s and v, the level of the noise.

Draws of f are functions that can be evaluated anywhere (Wilson et al.: Efficiently Sampling Functions from Gaussian
Process Posteriors, 2020). With the covariance K of the targets y at the examples X, Fourier features phi (Rahimi and
Recht: Random Features for Large-Scale Kernel Machines, 2007), w ~ N(0, I) and a draw e of the noise,

    f(x) = k(x, X) K^-1 y +- [phi(x) w - k(x, X) K^-1 (phi(X) w + e)]

in pairs with both signs, so that their mean is exact.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from explore.core.linalg import identity
from explore.core.rng import Rng

Kernel = Literal["matern", "rbf"]
"""k(r): "matern" of order 5/2, (1 + d + d^2 / 3) exp(-d) with d = sqrt(5) r; or "rbf", exp(-r^2 / 2)."""
HELD = 2**24  # numbers in the covariances that are computed at once
STEPS = 10  # towards the mode of a noise process


class Paths(NamedTuple):
    """Pairs of drawn functions, the same number for each of K draws of h, as vectors over N = R M K."""

    x: Float[Tensor, "R n D"]
    h: Float[Tensor, "R M K H"]
    frequencies: Float[Tensor, "R M K F D"]
    w: Float[Tensor, "R M K P 2*F+D"]  # of the P pairs for each draw of h
    mean: Float[Tensor, "R M K n 1"]  # K^-1 y
    change: Float[Tensor, "R M K n P"]  # K^-1 (phi(X) w + e)

    @property
    def samples(self) -> int:
        return 2 * self.change.shape[2] * self.change.shape[4]

    @property
    def width(self) -> int:
        """The number of values per example and function."""
        features, examples = self.w[0, :, :, 0].numel(), self.mean[0].numel()
        return -(-(features + examples) // self.samples) + self.h.shape[1]

    def at(self, kernel: Kernel, x: Float[Tensor, "R B D"]) -> Float[Tensor, "R S B M"]:
        precise = x.to(self.h)[:, None, None]
        covariances = covariance(kernel, self.h, precise, self.x[:, None, None])
        change = prior_draws(self.h, self.frequencies, self.w, precise) - covariances @ self.change
        mean = covariances @ self.mean
        every = torch.stack([mean + change, mean - change], 5)  # [R, M, K, B, P, 2]
        return every.permute(0, 2, 4, 5, 3, 1).flatten(1, 3).to(x)


class PathsNet(NamedTuple):
    """A network whose layers are `Paths`, in place of a `Net` in predictions: outputs of all layers, side by side."""

    kernel: Kernel
    width: int

    def output(self, layers: Sequence[Any], x: Tensor) -> Float[Tensor, "R S B O"]:
        return torch.cat([paths.at(self.kernel, x) for paths in layers], 3)


def draw_paths(
    kernel: Kernel,
    h: Float[Tensor, "R M K H"],
    x: Float[Tensor, "R n D"],
    pairs: int,
    frequencies: int,
    observed: Callable[[Tensor], Float[Tensor, "R M K n T"]],
    rng: Rng,
) -> Paths:
    """Draw functions, for K draws of h.

    `observed` takes draws phi(X)^T w of the prior at the examples, [R, M, K, n, P]. It returns K^-1 y, followed by
    K^-1 (phi(X)^T w + e).
    """
    shape = (*h.shape[:3], frequencies, x.shape[2])
    drawn = student(rng, 5.0, *shape) if kernel == "matern" else rng.normal(*shape).double()
    w = rng.normal(*h.shape[:3], pairs, 2 * frequencies + x.shape[2]).double()
    solved = observed(prior_draws(h, drawn, w, x[:, None, None]))
    return Paths(x, h, drawn, w, *solved.tensor_split([1], 4))


def covariance(
    kernel: Kernel, h: Float[Tensor, "*N H"], a: Float[Tensor, "*_N B D"], b: Float[Tensor, "*_N n D"]
) -> Float[Tensor, "*N B n"]:
    """Return the prior covariances s k(r) + b a.b / D of f at inputs a with f at inputs b."""
    return _covariance(kernel, h, a, b)[0].add_(linear(h) * a @ b.mT)


def linear(h: Float[Tensor, "*N H"]) -> Float[Tensor, "*N 1 1"]:
    """Return b / D: the prior variance of the slopes of the linear part."""
    return (h[..., -3] - math.log(h.shape[-1] - 3)).exp()[..., None, None]


def _covariance(kernel: Kernel, h: Tensor, a: Tensor, b: Tensor, slope: bool = False) -> tuple[Tensor, Tensor]:
    """Return s k(r) and, if `slope`, -2 ds k(r) / dr^2; in place, since large temporaries take most of the time."""
    lengths, variance = h[..., None, :-3].exp(), h[..., -2].exp()[..., None, None]
    a, b = a / lengths, b / lengths
    ends = a.square().sum(-1, keepdim=True) + b.square().sum(-1).unsqueeze(-2)
    squares = (ends - 2 * a @ b.mT).clamp_min_(1e-12)
    if kernel == "rbf":
        value = squares.mul_(-0.5).exp_().mul_(variance)
        return value, value.clone() if slope else value
    d = squares.mul_(5).sqrt_()
    decay = d.neg().exp_().mul_(variance)
    value = d.div(3).add_(1).mul_(d).add_(1).mul_(decay)
    return value, decay.mul_(d.add_(1)).mul_(5 / 3) if slope else value


def evidence(
    kernel: Kernel, h: Tensor, x: Float[Tensor, "N n D"], y: Float[Tensor, "N n"], noise: Tensor, jitter: float,
    slope: bool = True,
) -> tuple[Float[Tensor, " N"], Float[Tensor, "N H"]]:  # fmt: skip
    """Return log N(y | 0, K) and, if `slope`, its gradient (Rasmussen and Williams, equations 5.8 and 5.9).

    K is the prior covariance of f plus `noise` [N, n], which is proportional to v, and `jitter` s on the diagonal.
    """
    of_f, fall = _covariance(kernel, h, x, x, slope)
    variance = h[:, -2:-1].exp()
    slopes = linear(h)
    root = torch.linalg.cholesky_ex((slopes * x @ x.mT).add_(of_f) + torch.diag_embed(noise + jitter * variance)).L
    solved = torch.cholesky_solve(y.unsqueeze(2), root)
    half = root.diagonal(dim1=1, dim2=2).log().sum(1)
    value = -0.5 * (y * solved.squeeze(2)).sum(1) - half - 0.5 * math.log(2 * math.pi) * y.shape[1]
    if not slope:
        return value, torch.zeros_like(h)
    by_k = torch.cholesky_inverse(root).neg_().baddbmm_(solved, solved.mT).mul_(0.5)  # d value / d K
    trace = by_k.diagonal(dim1=1, dim2=2)
    of_s = of_f.mul_(by_k).sum((1, 2)) + jitter * variance[:, 0] * trace.sum(1)
    a, weights = x / h[:, None, :-3].exp(), fall.mul_(by_k)  # sum_ij weights_ij (a_i - a_j)^2 for each dimension:
    of_lengths = 2 * ((a * weights.sum(2, keepdim=True) - weights @ a) * a).sum(1)
    of_slopes = slopes[:, 0, 0] * (by_k @ x * x).sum((1, 2))
    return value, torch.cat([of_lengths, torch.stack([of_slopes, of_s, (trace * noise).sum(1)], 1)], 1)


def prior_draws(
    h: Float[Tensor, "*N H"], frequencies: Float[Tensor, "*N F D"], w: Float[Tensor, "*N P 2*F+D"], x: Tensor
) -> Float[Tensor, "*N B P"]:
    """Return draws phi(x)^T w of the prior at x [*N, B, D]."""
    # In single precision: most of the time of predictions goes here.
    phases = (x / h[..., None, :-3].exp()).float() @ frequencies.float().mT
    features = torch.cat([phases.cos(), phases.sin_()], -1)
    of_features, slopes = w.split([features.shape[-1], x.shape[-1]], -1)
    scale = (h[..., -2].exp() / frequencies.shape[-2]).sqrt()[..., None, None]
    return scale * (features @ of_features.float().mT) + linear(h).sqrt() * x @ slopes.mT


class NoiseMode(NamedTuple):
    """A Laplace approximation of a process g at n examples: as if z were observed with noise of variance 1 / weight.

    With its prior covariance C, the mode is C a.
    """

    mode: Float[Tensor, "*N n"]  # of g
    pull: Float[Tensor, "*N n"]  # a
    weight: Float[Tensor, "*N n"]
    evidence: Float[Tensor, "*N"]


def noise_solved(
    prior: Float[Tensor, "*N n n"], weight: Float[Tensor, "*N n"], targets: Float[Tensor, "*N n T"]
) -> Float[Tensor, "*N n T"]:
    """Multiply targets by (C + 1 / weight)^-1, for the prior covariance C and the weights of a `NoiseMode`."""
    return _solved(prior, weight.sqrt().unsqueeze(-1), targets)[0]


def noise_mode(
    prior: Float[Tensor, "*N n n"], squares: Float[Tensor, "*_N n"], fixed: Tensor, level: Tensor, rate: float
) -> NoiseMode:
    """Find the most probable g, with prior N(0, `prior`), given squared residuals (fixed + level exp(rate g)) chi^2_1.

    `fixed` [*N, n] is the part of the variance that is not noise, and `level` [*N, 1] the common part of the noise.
    Newton's method (Rasmussen and Williams, algorithm 3.1) with the larger of the observed and the expected curvature,
    so that it does not overshoot. The evidence has the expected one.
    """
    g = pull = prior.new_zeros(torch.broadcast_shapes(prior.shape[:-1], squares.shape))
    for _ in range(STEPS):
        total, share = _shares(g, fixed, level, rate)
        excess = squares / total - 1
        observed = (2 * share - 1) * excess + share  # relative; the expected curvature is `share`
        root = (0.5 * rate**2 * share * torch.maximum(observed, share)).sqrt().unsqueeze(-1)
        b = (root.squeeze(-1).square() * g + 0.5 * rate * share * excess).unsqueeze(-1)
        pull = (b - _solved(prior, root, prior @ b)[0]).squeeze(-1)
        g = g + ((prior @ pull.unsqueeze(-1)).squeeze(-1) - g).clamp(-2 / rate, 2 / rate)
    total, share = _shares(g, fixed, level, rate)
    weight = 0.5 * (rate * share).square()
    half = _solved(prior, weight.sqrt().unsqueeze(-1), g.unsqueeze(-1))[1]
    return NoiseMode(g, pull, weight, -0.5 * (total.log() + squares / total + pull * g).sum(-1) - half)


def _shares(g: Tensor, fixed: Tensor, level: Tensor, rate: float) -> tuple[Tensor, Tensor]:
    """Return the variance of residuals, and the share of the noise in it."""
    noise = level * (rate * g).exp()
    return fixed + noise, (noise / (fixed + noise)).clamp_min(1e-3)


def _solved(prior: Tensor, root: Float[Tensor, "*N n 1"], targets: Tensor) -> tuple[Tensor, Tensor]:
    """Multiply targets by (C + root^-2)^-1; also return half the log determinant of I + root C root."""
    factor = torch.linalg.cholesky_ex(root * prior * root.mT + identity(prior.shape[-1], prior)).L
    half = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return root * torch.cholesky_solve(root * targets, factor), half


def student(rng: Rng, freedom: float, *shape: int) -> Float[Tensor, "..."]:
    """Draw from Student's t distributions, multivariate in the last axis, with these degrees of freedom."""
    z = rng.normal(*shape)
    return z.double() * (freedom / 2 / rng.gamma(torch.full_like(z[..., :1], freedom / 2)).double()).sqrt()


def resampled(log_weights: Float[Tensor, "N C"], count: int, rng: Rng) -> Tensor:
    """Return the indices of `count` systematic draws by importance weights, truncated at sqrt(C) times their mean."""
    candidates = log_weights.shape[1]
    most = log_weights.logsumexp(1, keepdim=True) - 0.5 * math.log(candidates)
    shares = torch.minimum(log_weights, most).softmax(1).cumsum(1)
    at = (torch.arange(count, device=shares.device) + rng.uniform(len(shares), 1).to(shares)) / count
    return torch.searchsorted(shares, at.contiguous()).clamp_max(candidates - 1)


def climbed(
    of: Callable[[Tensor], Sequence[Tensor]], best: Tensor, value: Tensor, slope: Tensor, inverse: Tensor, step: Tensor
) -> tuple[Tensor, ...]:
    """Try one step of BFGS towards a maximum of `of`, with backtracking (Nocedal and Wright, chapters 3 and 6)."""
    ahead = (inverse @ slope.unsqueeze(-1)).squeeze(-1)
    move = (step / ahead.abs().amax(-1).clamp_min(1)).unsqueeze(-1) * ahead  # of at most 1
    new_value, new_slope = of(best + move)
    climbs = new_value >= value + 1e-4 * (move * slope).sum(-1)
    bend = slope - new_slope
    along = (move * bend).sum(-1)[..., None, None]
    rate = torch.where(climbs[..., None, None] & (along > 1e-10), 1 / along, 0.0)
    turn = identity(best.shape[-1], best) - rate * move.unsqueeze(-1) * bend.unsqueeze(-2)
    inverse = turn @ inverse @ turn.mT + rate * move.unsqueeze(-1) * move.unsqueeze(-2)
    best, slope = (torch.where(climbs.unsqueeze(-1), b, a) for a, b in ((best, best + move), (slope, new_slope)))
    return best, torch.where(climbs, new_value, value), slope, inverse, torch.where(climbs, 1.0, 0.4 * step)


def in_parts(
    of: Callable[..., tuple[Tensor, ...]], lead: Sequence[int], examples: int, *tensors: Tensor
) -> tuple[Tensor, ...]:
    """Apply a function to tensors with the first axes `lead` flattened, in parts: all covariances take gigabytes."""
    flat = (t.double().expand(*lead, *t.shape[len(lead) :]).flatten(0, len(lead) - 1) for t in tensors)
    parts = zip(*(t.split(max(1, HELD // examples**2)) for t in flat), strict=True)
    whole = (torch.cat(values) for values in zip(*(of(*part) for part in parts), strict=True))
    return tuple(t.unflatten(0, lead) for t in whole)
