"""Gaussian process with a length scale for each input; its hyperparameters are averaged over.

Rasmussen and Williams: Gaussian Processes for Machine Learning (2006). For standardised inputs x in D dimensions and
each target,

    y = f(x) + e,    f ~ GP(0, s k(r) + b x.x' / D),    r^2 = sum_d (x_d - x'_d)^2 / l_d^2,    e ~ N(0, v)

Let h be the logarithms of l_1 to l_D, b, s and v, with the prior log l_d ~ N(sqrt(2) + log(D) / 2, 3) (Hvarfner,
Hellsten, Nardi: Vanilla Bayesian Optimization Performs Great in High Dimensions, 2024), log b ~ N(-2, 1),
log s ~ N(1, 2^2), log v ~ N(-2, 1.5^2). BFGS climbs log p(y | h) + log p(h) (equation 5.8), from two starts, since the
evidence often has a maximum at which all is noise. With few examples, a maximum is far too certain. So at the end of a
fit `draws` values of h are drawn from Laplace approximations at both, with the tails of Student's t, and with truncated
importance weights (Ionides: Truncated Importance Sampling, 2008). Predictions are the mixture of these.

With `Heteroscedastic`, v becomes v exp(2 g(x)). The log deviation g is a second process, whose lengths are a multiple
of those of f. Its likelihood is that of the leave-one-out residuals of f (Rasmussen and Williams, equations 5.10 to
5.12), in Laplace's approximation; the candidates in `NOISES` for its multiple and its deviation are averaged over.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from explore.core.errors import InputError
from explore.core.linalg import identity
from explore.core.rng import Rng
from explore.core.shapes import Batch, Info
from explore.inference import processes
from explore.inference.base import Common, Predictive, common
from explore.inference.processes import Kernel, NoiseMode, PathsNet, covariance, in_parts
from explore.inference.updates.steps import settle
from explore.nets.likelihoods.gaussian import Gamma
from explore.nets.protocols import Noise, is_gaussian

PRIOR = {"b": (-2.0, 1.0), "s": (1.0, 2.0), "v": (-2.0, 1.5)}  # means and deviations of logarithms
MOST = 2000  # examples
NOT_LINEAR = -30.0  # log b of g
UNSEEN = 10.0  # a log deviation with which a target has no influence
JITTER = 1e-8  # variance added to that of the noise, relative to s; 1e-6 is seen in functions without noise
PROPOSED, TAILS, NUDGE = 4, 5.0, 1e-3  # proposals for each draw of h, degrees of freedom, step of a difference
BOUND = 14.0  # of the absolute logarithms of hyperparameters
LOWEST = 1e30  # minus the evidence before any data
NOISES = tuple((stretch, deviation) for stretch in (1.0, 3.0) for deviation in (0.1, 0.5, 1.2))
"""For noise that depends on the input: lengths of g over those of f, and prior standard deviation of g."""
NOISE_FROM = 0.6  # the completed fraction of a fit at which g is first estimated


class NoiseDraws(NamedTuple):
    """The process of log deviations g, for each of K drawn hyperparameters."""

    at_examples: Float[Tensor, "R M n"]  # the posterior mean of g
    h: Float[Tensor, "R M K H"]
    pull: Float[Tensor, "R M K n"]  # of `NoiseMode`
    weight: Float[Tensor, "R M K n"]


class GPState(NamedTuple):
    """The state of `GP`."""

    common: Common
    x: Float[Tensor, "R n D"]  # the examples
    y: Float[Tensor, "R n M"]  # 0 where missing
    missing: Float[Tensor, "R M n"]  # log deviations that are added to the noise: `UNSEEN` where y is missing
    best: Float[Tensor, "R M J H"]  # h, on the way from each start to a maximum
    evidence: Float[Tensor, "R M J"]  # log p(y | h) + log p(h) there, ...
    slope: Float[Tensor, "R M J H"]  # ... its gradient, ...
    inverse: Float[Tensor, "R M J H H"]  # ... and an estimate of the inverse of its negative Hessian
    step: Float[Tensor, "R M J"]  # size of the next step
    draws: Float[Tensor, "R M K H"]  # of h; before the end of a fit, the best one
    noise: NoiseDraws | None  # if it depends on the input


@dataclass(frozen=True, kw_only=True)
class GP(Predictive):
    """A Gaussian process for numbers, in double precision; of the network, only inputs and targets count."""

    likelihood: Any  # with Gaussian noise
    epochs: int = 30  # steps towards the maxima
    batch_size: int = 2**31
    kernel: Kernel = "matern"
    draws: int = 16  # K: draws of h; 1: the maximum
    hyperprior: bool = True  # whether h has a prior
    frequencies: int = 128  # F: of the Fourier features that the functions drawn for one h share

    whole: ClassVar[bool] = True
    classifies: ClassVar[bool] = False
    of_weights: ClassVar[bool] = False
    ignores: ClassVar[frozenset[str]] = frozenset({"prior_shape", "prior_rate", "rate", "beta"})
    ranges: ClassVar[dict[str, str]] = {"epochs": "[1, 1e6]", "draws": "[1, 1e4]", "frequencies": "[1, 1e6]"}
    mixture_error: ClassVar[str] = "a Gaussian process has a single solution; leave out members"
    pretrained_error: ClassVar[str] = "a Gaussian process has no weights to start from"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_gaussian(self.likelihood):
            name = type(self.likelihood).__name__
            raise InputError(f"gp does not support the likelihood {name}; use Gaussian or Heteroscedastic")
        if any(self.net.convolutions) or self.net.norms or self.net.points or any(self.net.entries):
            raise InputError("gp takes only the sizes of a network of dense layers; use one such as explore.mlp")

    def init(self, n_data: float, replicas: int, rng: Rng) -> GPState:
        count, inputs = int(n_data), self.net.shapes[0][0] - self.net.biases[0]
        targets = self.net.outputs // self.likelihood.outputs_per_target
        if count > MOST:
            many = f"gp supports at most {MOST} examples; got {count}"
            raise InputError(f"{many}. Use another posterior, such as noisy-kfac")
        centre = prior(inputs, rng.normal(0))[0]
        starts = torch.stack([centre, centre - (torch.arange(len(centre)) < inputs).to(centre)])
        best, zero = starts.repeat(replicas, targets, 1, 1), starts.new_zeros(replicas, targets, len(starts))
        x, y = (best.new_zeros(replicas, count, size) for size in (inputs, targets))
        inverse = (identity(len(centre), best) * 2 / max(count, 1)).repeat(replicas, targets, len(starts), 1, 1)
        draws = best[:, :, :1].repeat(1, 1, self.draws, 1)
        shared, noise = common(self, n_data, replicas, rng), None
        if self._varies:
            at = best.new_zeros(replicas, targets, self.draws, count)
            noise = NoiseDraws(at[:, :, 0], draws, at, torch.ones_like(at))
        return GPState(shared, x, y, y.mT, best, zero - LOWEST, torch.zeros_like(best), inverse, zero, draws, noise)

    def update(self, state: GPState, batch: Batch, rng: Rng, progress: float = 0.0) -> tuple[GPState, Info]:
        """Try a step of BFGS from each start; if it does not climb far enough, the next one is shorter."""
        missing, y = torch.zeros_like(batch.y), batch.y
        if getattr(self.likelihood, "partial", False):
            missing, y = UNSEEN * y.isnan().to(y), y.nan_to_num(0)
        now = state._replace(x=batch.x, y=y, missing=missing.mT)
        if self._varies and round(progress * self.epochs) == round(NOISE_FROM * self.epochs):
            again = state.evidence * 0 - LOWEST  # the density to climb is another one
            now = now._replace(noise=self._noise_draws(now, rng), evidence=again, step=state.step * 0)
        old = (now.best, now.evidence, now.slope, now.inverse, now.step)
        best, evidence, slope, inverse, step = processes.climbed(lambda h: self._evidences(h, now), *old)
        top = best.take_along_dim(evidence.argmax(2)[..., None, None], 2)
        half = torch.full_like(top[:, :, 0, 0], 0.5 * batch.x.shape[1])
        noise = Gamma(half, half * self._noise(top[:, :, 0]))
        shared = state.common._replace(step=state.common.step + 1, taken=state.common.taken + 1, noise=noise)
        new = now._replace(
            common=shared, best=best, evidence=evidence, slope=slope, inverse=inverse, step=step,
            draws=top.repeat(1, 1, self.draws, 1),
        )  # fmt: skip
        return settle(new, state), {"nll": -evidence.amax(2).sum(1) / batch.x.shape[1]}

    def finish(self, state: GPState, batches: Any, rng: Rng) -> GPState:
        """Draw h from an approximation of its posterior around all maxima."""
        if self._varies:
            state = settle(state._replace(noise=self._noise_draws(state, rng)), state)
        if self.draws == 1:
            return state
        best, size = state.best.double(), state.best.shape[3]
        nudged = best.unsqueeze(3) + NUDGE * identity(size, best)
        slopes = self._evidences(nudged.flatten(2, 3), state)[1].view_as(nudged)
        hessian = ((slopes - self._evidences(best, state)[1].unsqueeze(3)) / NUDGE).flatten(0, 1)
        curvature, axes = torch.linalg.eigh(-(hessian + hessian.mT) / 2)
        widest = float(prior(state.x.shape[2], best)[1].max())  # nothing is drawn more widely than from the prior
        best, scale = best.flatten(0, 1), curvature.clamp_min(widest**-2).rsqrt().unsqueeze(2)
        z = processes.student(rng, TAILS, *best.shape[:2], PROPOSED * self.draws // best.shape[1], size)
        proposed = (best.unsqueeze(2) + (z * scale) @ axes.mT).flatten(1, 2).clamp(-BOUND, BOUND)
        apart = ((proposed.unsqueeze(1) - best.unsqueeze(2)) @ axes / scale).square().sum(3)
        each = -0.5 * (TAILS + size) * (1 + apart / TAILS).log() - scale.log().sum((2, 3)).unsqueeze(2)
        density = self._evidences(proposed.view(*state.best.shape[:2], -1, size), state, False)[0]
        chosen = processes.resampled(density.flatten(0, 1) - each.logsumexp(1), self.draws, rng).unsqueeze(2)
        draws = proposed.take_along_dim(chosen, 1).view_as(state.draws).to(state.draws)
        return settle(state._replace(draws=draws), state)

    def sample(self, state: GPState, n: int, rng: Rng) -> tuple[Any, ...]:
        """Return about n functions as `Paths`: the same number of pairs for each draw of h, or one for the first.

        With noise that depends on the input, the second `Paths` are log deviations.
        """
        h, x, y = state.draws[:, :, : -(-n // 2)].double(), state.x.double(), state.y.double()
        pairs, deviation = max(1, n // (2 * h.shape[2])), self._deviation(state).exp()

        def means(change: Tensor) -> Tensor:
            noise = self._noise(h)[..., None].sqrt() * deviation[:, :, None]
            noisy = change + noise[..., None] * rng.normal(*change.shape).double()
            targets = torch.cat([y.mT[:, :, None, :, None].expand(*h.shape[:3], -1, -1), noisy], 4)
            return self._solved(h, state, targets)

        paths = processes.draw_paths(self.kernel, h, x, pairs, self.frequencies, means, rng)
        if state.noise is None:
            return (paths,)
        h_noise, pull, weight = (t[:, :, : h.shape[2]].double() for t in state.noise[1:])

        def of(h: Tensor, x: Tensor, weight: Tensor, noisy: Tensor) -> tuple[Tensor]:
            return (processes.noise_solved(covariance(self.kernel, h, x, x), weight, noisy),)

        def deviations(change: Tensor) -> Tensor:
            noisy = change + weight.rsqrt()[..., None] * rng.normal(*change.shape).double()
            solved = in_parts(of, h_noise.shape[:3], x.shape[1], h_noise, x[:, None, None], weight, noisy)
            return torch.cat([pull[..., None], *solved], 4)

        return paths, processes.draw_paths(self.kernel, h_noise, x, pairs, self.frequencies, deviations, rng)

    def functions(self, state: GPState, n: int, rng: Rng) -> tuple[Any, tuple[Any, ...], Noise]:
        every = self.sample(state, n, rng)
        h = every[0].h
        noise = 1 / self._noise(h).mT.repeat_interleave(every[0].samples // h.shape[2], 1)
        return PathsNet(self.kernel, sum(paths.width for paths in every)), every, noise.to(state.best)

    def _evidences(self, h: Float[Tensor, "R M J H"], data: GPState, slope: bool = True) -> Sequence[Tensor]:
        """Return log p(y | h) + log p(h) and its gradient for many h, [R, M, J] and [R, M, J, H]."""

        def of(h: Tensor, x: Tensor, y: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
            noise = self._noise(h)[:, None] * (2 * s).exp()
            value, gradient = processes.evidence(self.kernel, h, x, y, noise, JITTER, slope)
            if self.likelihood.noise_std is not None:
                gradient[:, -1] = 0
            if not self.hyperprior:
                return value, gradient
            mean, deviation = prior(x.shape[2], x)
            apart = (h - mean) / deviation
            return value - 0.5 * apart.square().sum(1), gradient - apart / deviation

        x, y, s = data.x[:, None, None], data.y.mT.unsqueeze(2), self._deviation(data).unsqueeze(2)
        return [t.to(h) for t in in_parts(of, h.shape[:-1], x.shape[-2], h, x, y, s)]

    def _noise_draws(self, state: GPState, rng: Rng) -> NoiseDraws:
        """Estimate the process of log deviations, given the most probable h."""
        shape, h = state.draws.shape, state.draws[:, :, 0].double()
        stretch, deviation = torch.tensor(NOISES).to(h).unbind(1)
        candidates = h.unsqueeze(2).repeat(1, 1, len(NOISES), 1)
        candidates[..., :-3] += stretch.log()[:, None]
        candidates[..., -3], candidates[..., -2] = NOT_LINEAR, 2 * deviation.log()
        cells = h.new_tensor(self.likelihood.resolution or [0.0] * shape[1]).square() / 12  # see `Heteroscedastic`

        def of(h: Tensor, candidates: Tensor, x: Tensor, y: Tensor, s: Tensor, cell: Tensor) -> tuple[Tensor, ...]:
            level = self._noise(h)[:, None]
            inverse = torch.cholesky_inverse(torch.linalg.cholesky_ex(self._of_targets(h, x, s)).L)
            variance = 1 / inverse.diagonal(dim1=1, dim2=2)
            squares = (variance * (inverse @ y.unsqueeze(2)).squeeze(2)).square() + cell
            fixed = (variance - level * (2 * s).exp()).clamp_min(0).masked_fill(s > UNSEEN / 2, math.exp(2 * UNSEEN))
            prior = covariance(self.kernel, candidates, x.unsqueeze(1), x.unsqueeze(1))
            squares, fixed, level = (t.unsqueeze(1) for t in (squares, fixed, level))
            return processes.noise_mode(prior, squares, fixed, level, 2 * self.likelihood.spread)

        each = (h, candidates, state.x.unsqueeze(1), state.y.mT, self._deviation(state), cells[None, :, None])
        mode = NoiseMode(*(t.flatten(0, 1) for t in in_parts(of, shape[:2], state.x.shape[1], *each)))
        chosen = processes.resampled(mode.evidence, self.draws, rng)
        chosen = chosen.gather(1, rng.uniform(*chosen.shape).argsort(1))  # in an order independent of that of h
        drawn = (t.take_along_dim(chosen.unsqueeze(2), 1) for t in (candidates.flatten(0, 1), mode.pull, mode.weight))
        mean = (mode.evidence.softmax(1).unsqueeze(1) @ mode.mode).squeeze(1)
        return NoiseDraws(*(t.unflatten(0, shape[:2]).to(state.best) for t in (mean, *drawn)))

    def _solved(self, h: Tensor, state: GPState, targets: Tensor) -> Tensor:
        """Multiply targets [R, M, K, n, T] by K^-1."""

        def of(h: Tensor, x: Tensor, s: Tensor, targets: Tensor) -> tuple[Tensor]:
            return (torch.cholesky_solve(targets, torch.linalg.cholesky_ex(self._of_targets(h, x, s)).L),)

        x, s = state.x[:, None, None], self._deviation(state).unsqueeze(2)
        return in_parts(of, h.shape[:3], x.shape[3], h, x, s, targets)[0]

    def _of_targets(
        self, h: Float[Tensor, "N H"], x: Float[Tensor, "N n D"], s: Float[Tensor, "N n"]
    ) -> Float[Tensor, "N n n"]:
        """Return the prior covariance of the targets, given log deviations s of the noise."""
        diagonal = self._noise(h)[:, None] * (2 * s).exp() + JITTER * h[:, -2:-1].exp()
        return covariance(self.kernel, h, x, x) + torch.diag_embed(diagonal)

    @property
    def _varies(self) -> bool:
        """Whether the noise depends on the input."""
        return hasattr(self.likelihood, "log_deviation")

    def _deviation(self, state: GPState) -> Float[Tensor, "R M n"]:
        """Return the log deviations of the noise at the examples, in double precision."""
        missing = state.missing.double()
        if state.noise is None:
            return missing
        out = torch.stack([state.noise.at_examples] * 2, 3).double()
        return self.likelihood.log_deviation(out)[..., 0] + missing

    def _noise(self, h: Float[Tensor, "*N H"]) -> Float[Tensor, "*N"]:
        fixed = self.likelihood.noise_std
        return h[..., -1].exp() if fixed is None else torch.full_like(h[..., -1], fixed**2)


def prior(inputs: int, like: Tensor) -> tuple[Float[Tensor, " H"], Float[Tensor, " H"]]:
    """Return the prior means and deviations of h."""
    lengths = [(math.sqrt(2) + math.log(inputs) / 2, math.sqrt(3))] * inputs
    mean, deviation = like.new_tensor([*lengths, *PRIOR.values()]).unbind(1)
    return mean, deviation


PRESETS: dict[str, dict[str, object]] = {"default": {}, "small": {}}
