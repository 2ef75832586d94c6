"""Gaussian process with a length scale for each input; its hyperparameters are averaged over.

Rasmussen and Williams: Gaussian Processes for Machine Learning (2006). For standardised inputs x in D dimensions and
each target,

    y = f(x) + e,    f ~ GP(0, s k(r)),    r^2 = sum_d (x_d - x'_d)^2 / l_d^2,    e ~ N(0, v)

Let h be the logarithms of l_1 to l_D, s and v, with the prior log l_d ~ N(sqrt(2) + log(D) / 2, 3) (Hvarfner, Hellsten,
Nardi: Vanilla Bayesian Optimization Performs Great in High Dimensions, 2024), log s ~ N(0, 1), log v ~ N(-3, 2^2).
BFGS climbs log p(y | h) + log p(h) (equation 5.8), from two starts, since the evidence often has a maximum at which all
is noise. With few examples, a maximum is far too certain. So at the end of a fit `draws` values of h are drawn from
Laplace approximations at both, with the tails of Student's t, and with truncated importance weights (Ionides: Truncated
Importance Sampling, 2008). Predictions are the mixture of these.

Draws of f are functions that can be evaluated anywhere (Wilson et al.: Efficiently Sampling Functions from Gaussian
Process Posteriors, 2020). With the covariance K of the examples X plus v I, Fourier features phi, w ~ N(0, I) and e,

    f(x) = k(x, X) K^-1 y +- [phi(x) w - k(x, X) K^-1 (phi(X) w + e)]

in pairs with both signs, so that their mean is exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from explore.core.errors import InputError
from explore.core.rng import Rng
from explore.core.shapes import Batch, Info
from explore.inference.base import Common, Predictive, common
from explore.inference.updates.steps import settle
from explore.nets.likelihoods.gaussian import Gamma, Gaussian
from explore.nets.protocols import Noise

Kernel = Literal["matern", "rbf"]
"""k(r): "matern" of order 5/2, (1 + d + d^2 / 3) exp(-d) with d = sqrt(5) r; or "rbf", exp(-r^2 / 2)."""
MOST = 2000  # examples
JITTER = 1e-6  # variance added to that of the noise, relative to s
PROPOSED, TAILS, NUDGE = 4, 5.0, 1e-3  # proposals for each draw of h, degrees of freedom, step of a difference
BOUND = 14.0  # of the absolute logarithms of hyperparameters
LOWEST = 1e30  # minus the evidence before any data
HELD = 2**24  # numbers in the covariances that are computed at once


class GPState(NamedTuple):
    """The state of `GP`."""

    common: Common
    x: Float[Tensor, "R n D"]  # the examples
    y: Float[Tensor, "R n M"]
    best: Float[Tensor, "R M J H"]  # h, on the way from each start to a maximum
    evidence: Float[Tensor, "R M J"]  # log p(y | h) + log p(h) there, ...
    slope: Float[Tensor, "R M J H"]  # ... its gradient, ...
    inverse: Float[Tensor, "R M J H H"]  # ... and an estimate of the inverse of its negative Hessian
    step: Float[Tensor, "R M J"]  # size of the next step
    draws: Float[Tensor, "R M K H"]  # of h; before the end of a fit, the best one


class Paths(NamedTuple):
    """Pairs of drawn functions, the same number for each of K draws of h, as vectors over N = R M K."""

    x: Float[Tensor, "R n D"]
    h: Float[Tensor, "R M K H"]
    frequencies: Float[Tensor, "R M K P F D"]  # of the P pairs for each draw of h
    w: Float[Tensor, "R M K P 2*F"]
    mean: Float[Tensor, "R M K n 1"]  # K^-1 y
    change: Float[Tensor, "R M K n P"]  # K^-1 (phi(X) w + e)

    @property
    def samples(self) -> int:
        """The number of functions, S."""
        return 2 * self.change.shape[2] * self.change.shape[4]


class PathsNet:
    """A network whose only layer is `Paths`, in place of a `Net` in predictions."""

    width = 1

    def __init__(self, kernel: Kernel):
        self.kernel = kernel

    def output(self, layers: Sequence[Any], x: Tensor) -> Float[Tensor, "R S B M"]:
        """Return the values of the functions at x [R, B, D]."""
        paths: Paths = layers[0]
        precise = x.to(paths.h)[:, None, None]
        self.width = -(-(paths.w[0].numel() + paths.mean[0].numel()) // paths.samples)
        covariances = covariance(self.kernel, paths.h, precise, paths.x[:, None, None])
        change = prior_draws(paths.h, paths.frequencies, paths.w, precise) - covariances @ paths.change
        mean = covariances @ paths.mean
        every = torch.stack([mean + change, mean - change], 5)  # [R, M, K, B, P, 2]
        return every.permute(0, 2, 4, 5, 3, 1).flatten(1, 3).to(x)


@dataclass(frozen=True, kw_only=True)
class GP(Predictive):
    """A Gaussian process for numbers, in double precision; of the network, only inputs and targets count."""

    epochs: int = 30  # steps towards the maxima
    batch_size: int = 2**31
    kernel: Kernel = "matern"
    draws: int = 16  # K: draws of h; 1: the maximum
    hyperprior: bool = True  # whether h has a prior
    frequencies: int = 100  # F: of the Fourier features of each drawn function

    whole: ClassVar[bool] = True
    partial: ClassVar[bool] = False
    classifies: ClassVar[bool] = False
    of_weights: ClassVar[bool] = False
    ranges: ClassVar[dict[str, str]] = {"epochs": "[1, 1e6]", "draws": "[1, 1e4]", "frequencies": "[1, 1e6]"}
    mixture_error: ClassVar[str] = "a Gaussian process has a single solution; leave out members"
    pretrained_error: ClassVar[str] = "a Gaussian process has no weights to start from"

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.likelihood) is not Gaussian:
            raise InputError(f"gp does not support the likelihood {type(self.likelihood).__name__}; use Gaussian")
        if any(self.net.convolutions) or self.net.norms:
            raise InputError("gp does not support convolutions or batch norm; use a network of dense layers")

    def init(self, n_data: float, replicas: int, rng: Rng) -> GPState:
        count, targets, inputs = int(n_data), self.net.outputs, self.net.shapes[0][0] - self.net.biases[0]
        if count > MOST:
            raise InputError(f"gp supports at most {MOST} examples; got {count}")
        centre = prior(inputs, rng.normal(0))[0]
        starts = torch.stack([centre, centre - (torch.arange(len(centre)) < inputs).to(centre)])
        best, zero = starts.repeat(replicas, targets, 1, 1), starts.new_zeros(replicas, targets, len(starts))
        x, y = (best.new_zeros(replicas, count, size) for size in (inputs, targets))
        inverse = (torch.eye(len(centre)).to(best) * 2 / max(count, 1)).repeat(replicas, targets, len(starts), 1, 1)
        draws = best[:, :, :1].repeat(1, 1, self.draws, 1)
        shared = common(self, n_data, replicas, rng)
        return GPState(shared, x, y, best, zero - LOWEST, torch.zeros_like(best), inverse, zero, draws)

    def update(self, state: GPState, batch: Batch, rng: Rng, progress: float = 0.0) -> tuple[GPState, Info]:
        """Try a step of BFGS from each start; if it does not climb far enough, the next one is shorter."""
        old = (state.best, state.evidence, state.slope, state.inverse, state.step)
        best, evidence, slope, inverse, step = _climbed(lambda h: self._evidences(h, batch), *old)
        top = best.take_along_dim(evidence.argmax(2)[..., None, None], 2)
        half = torch.full_like(top[:, :, 0, 0], 0.5 * batch.x.shape[1])
        noise = Gamma(half, half * self._noise(top[:, :, 0]))
        shared = state.common._replace(step=state.common.step + 1, taken=state.common.taken + 1, noise=noise)
        new = GPState(shared, batch.x, batch.y, best, evidence, slope, inverse, step, top.repeat(1, 1, self.draws, 1))
        return settle(new, state), {"nll": -evidence.amax(2).sum(1) / batch.x.shape[1]}

    def finish(self, state: GPState, batches: Any, rng: Rng) -> GPState:
        """Draw h from an approximation of its posterior around all maxima."""
        if self.draws == 1:
            return state
        data, best, size = Batch(state.x, state.y), state.best.double(), state.best.shape[3]
        nudged = best.unsqueeze(3) + NUDGE * torch.eye(size).to(best)
        slopes = self._evidences(nudged.flatten(2, 3), data)[1].view_as(nudged)
        hessian = ((slopes - self._evidences(best, data)[1].unsqueeze(3)) / NUDGE).flatten(0, 1)
        curvature, axes = torch.linalg.eigh(-(hessian + hessian.mT) / 2)
        best, scale = best.flatten(0, 1), curvature.clamp_min(1 / 3).rsqrt().unsqueeze(2)  # no wider than the prior's
        z = student(rng, TAILS, *best.shape[:2], PROPOSED * self.draws // best.shape[1], size)
        proposed = (best.unsqueeze(2) + (z * scale) @ axes.mT).flatten(1, 2).clamp(-BOUND, BOUND)
        apart = ((proposed.unsqueeze(1) - best.unsqueeze(2)) @ axes / scale).square().sum(3)
        each = -0.5 * (TAILS + size) * (1 + apart / TAILS).log() - scale.log().sum((2, 3)).unsqueeze(2)
        density = self._evidences(proposed.view(*state.best.shape[:2], -1, size), data, False)[0]
        chosen = resampled(density.flatten(0, 1) - each.logsumexp(1), self.draws, rng).unsqueeze(2)
        draws = proposed.take_along_dim(chosen, 1).view_as(state.draws).to(state.draws)
        return settle(state._replace(draws=draws), state)

    def sample(self, state: GPState, n: int, rng: Rng) -> tuple[Any, ...]:
        """Return about n functions as `Paths`: the same number of pairs for each draw of h, or one for the first."""
        h, x = state.draws[:, :, : -(-n // 2)].double(), state.x.double()
        pairs = max(1, n // (2 * h.shape[2]))
        shape = (*h.shape[:3], pairs, self.frequencies, x.shape[2])
        frequencies = student(rng, 5.0, *shape) if self.kernel == "matern" else rng.normal(*shape).double()
        w = rng.normal(*h.shape[:3], pairs, 2 * self.frequencies).double()
        noise = self._noise(h)[..., None, None].sqrt() * rng.normal(*h.shape[:3], x.shape[1], pairs).double()
        change = prior_draws(h, frequencies, w, x[:, None, None]) + noise
        y = state.y.double().mT[:, :, None, :, None].expand(-1, -1, h.shape[2], -1, -1)
        solved = self._solved(h, x, torch.cat([y, change], 4))
        return (Paths(x, h, frequencies, w, *solved.tensor_split([1], 4)),)

    def functions(self, state: GPState, n: int, rng: Rng) -> tuple[Any, tuple[Any, ...], Noise]:
        paths = self.sample(state, n, rng)[0]
        noise = 1 / self._noise(paths.h).mT.repeat_interleave(paths.samples // paths.h.shape[2], 1)
        return PathsNet(self.kernel), (paths,), noise.to(state.best)

    def _evidences(self, h: Float[Tensor, "R M J H"], data: Batch, slope: bool = True) -> Sequence[Tensor]:
        """Return log p(y | h) + log p(h) and its gradient for many h, [R, M, J] and [R, M, J, H]."""
        x, y = data.x[:, None, None].expand(*h.shape[:3], -1, -1), data.y.mT.unsqueeze(2).expand(*h.shape[:3], -1)
        h_flat, x, y = (t.double().flatten(0, 2) for t in (h, x, y))
        value, gradient = self._evidence(h_flat, x, y, slope)
        return value.view(h.shape[:3]).to(h), gradient.view(h.shape).to(h)

    def _evidence(self, h: Tensor, x: Tensor, y: Tensor, slope: bool = True) -> Sequence[Tensor]:
        """Return log p(y | h) + log p(h) for h [N, H], x [N, n, D], y [N, n], and its gradient, [N] and [N, H]."""

        def of(h: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            with torch.set_grad_enabled(slope):
                free = h.detach().requires_grad_(slope)
                value = _LogDensity.apply(self._of_targets(free, x), y)
                if self.hyperprior:
                    mean, deviation = prior(x.shape[2], x)
                    value = value - 0.5 * ((free - mean) / deviation).square().sum(1)
            return value.detach(), torch.autograd.grad(value.sum(), free)[0] if slope else h

        return _in_parts(of, x.shape[1], h, x, y)

    def _solved(self, h: Tensor, x: Tensor, targets: Tensor) -> Tensor:
        """Multiply targets [R, M, K, n, T] by K^-1."""

        def of(h: Tensor, x: Tensor, targets: Tensor) -> tuple[Tensor]:
            return (torch.cholesky_solve(targets, torch.linalg.cholesky_ex(self._of_targets(h, x)).L),)

        each = x[:, None, None].expand(*h.shape[:3], -1, -1)
        return _in_parts(of, x.shape[1], *(t.flatten(0, 2) for t in (h, each, targets)))[0].view_as(targets)

    def _of_targets(self, h: Float[Tensor, "N H"], x: Float[Tensor, "N n D"]) -> Float[Tensor, "N n n"]:
        """Return the prior covariance of the targets."""
        shift = (self._noise(h) + JITTER * h[:, -2].exp())[:, None, None]
        return covariance(self.kernel, h, x, x) + shift * torch.eye(x.shape[1], dtype=x.dtype, device=x.device)

    def _noise(self, h: Float[Tensor, "*N H"]) -> Float[Tensor, "*N"]:
        noise_std: float | None = self.likelihood.noise_std  # type: ignore[attr-defined]
        return h[..., -1].exp() if noise_std is None else torch.full_like(h[..., -1], noise_std**2)


class _LogDensity(torch.autograd.Function):
    """log N(y | 0, K) for covariances K [N, n, n] and targets y [N, n]; the gradient is with respect to K."""

    @staticmethod
    def forward(ctx: Any, covariance: Tensor, y: Tensor) -> Tensor:
        root = torch.linalg.cholesky_ex(covariance).L
        solved = torch.cholesky_solve(y.unsqueeze(2), root)
        ctx.save_for_backward(root, solved)
        half = root.diagonal(dim1=1, dim2=2).log().sum(1)
        return -0.5 * (y * solved.squeeze(2)).sum(1) - half - 0.5 * math.log(2 * math.pi) * y.shape[1]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        root, solved = ctx.saved_tensors
        return 0.5 * gradient[:, None, None] * (solved @ solved.mT - torch.cholesky_inverse(root)), None


def prior(inputs: int, like: Tensor) -> tuple[Float[Tensor, " H"], Float[Tensor, " H"]]:
    """Return the prior means and deviations of h."""
    length = math.sqrt(2) + math.log(inputs) / 2
    return like.new_tensor([length] * inputs + [0.0, -3.0]), like.new_tensor([math.sqrt(3)] * inputs + [1.0, 2.0])


def covariance(
    kernel: Kernel, h: Float[Tensor, "*N H"], a: Float[Tensor, "*_N B D"], b: Float[Tensor, "*_N n D"]
) -> Float[Tensor, "*N B n"]:
    """Return the prior covariances s k(r) of f at inputs a with f at inputs b."""
    lengths, variance = h[..., None, :-2].exp(), h[..., -2].exp()[..., None, None]
    a, b = a / lengths, b / lengths
    squares = a.square().sum(-1, keepdim=True) + b.square().sum(-1).unsqueeze(-2) - 2 * a @ b.mT
    if kernel == "rbf":
        return variance * (-0.5 * squares).exp()
    d = (5 * squares.clamp_min(1e-12)).sqrt()
    return variance * (1 + d + d.square() / 3) * (-d).exp()


def prior_draws(
    h: Float[Tensor, "*N H"], frequencies: Float[Tensor, "*N P F D"], w: Float[Tensor, "*N P 2*F"], x: Tensor
) -> Float[Tensor, "*N B P"]:
    """Return draws phi(x)^T w of the prior at x [*N, B, D], with Fourier features phi (Rahimi and Recht 2007)."""
    pairs, count = frequencies.shape[-3:-1]
    phases = ((x / h[..., None, :-2].exp()) @ frequencies.flatten(-3, -2).mT).unflatten(-1, (pairs, count))
    cosines, sines = w.unsqueeze(-3).split(count, -1)
    total = (phases.cos() * cosines).sum(-1) + (phases.sin() * sines).sum(-1)
    return (h[..., -2].exp() / count).sqrt()[..., None, None] * total


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


def _climbed(
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
    turn = torch.eye(best.shape[-1]).to(best) - rate * move.unsqueeze(-1) * bend.unsqueeze(-2)
    inverse = turn @ inverse @ turn.mT + rate * move.unsqueeze(-1) * move.unsqueeze(-2)
    best, slope = (torch.where(climbs.unsqueeze(-1), b, a) for a, b in ((best, best + move), (slope, new_slope)))
    return best, torch.where(climbs, new_value, value), slope, inverse, torch.where(climbs, 1.0, 0.4 * step)


def _in_parts(of: Callable[..., tuple[Tensor, ...]], examples: int, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Apply a function to parts of the first axis, since covariances of all would take gigabytes."""
    parts = zip(*(t.split(max(1, HELD // examples**2)) for t in tensors), strict=True)
    return tuple(torch.cat(values) for values in zip(*(of(*part) for part in parts), strict=True))


PRESETS: dict[str, dict[str, object]] = {"default": {}, "small": {}}

REFUSES = ("convolutions", "norms", "Categorical", "Bernoulli", "Heteroscedastic")
CONTRACT: dict[str, object] = {"lively": {"epochs": 3, "draws": 4}, "refuses": REFUSES}
