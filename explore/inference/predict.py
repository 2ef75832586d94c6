"""Predictions of sampled networks, in bounded memory.

All points share the S weight samples. Points are predicted in chunks. The results of a chunk are written to one large
tensor immediately, since small tensors between freed chunks would fragment the memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from explore.core import tree
from explore.core.linalg import chunks
from explore.core.rng import Rng
from explore.core.shapes import State
from explore.execution import parallel
from explore.inference.base import Predictive
from explore.inference.gaussian import GaussianPosterior, at_mean
from explore.nets.protocols import Likelihood, Noise, count_samples, find_part, given, is_gaussian

BUDGET = 2**21  # maximum number of values in one layer of a chunk, over all R and S
CACHE = 2**20  # the same if chunk size cannot change the order of sums: a few MiB, to fit the CPU cache
DEVICE = 2**27  # the same on a GPU, which small chunks would leave idle
FEW, IMAGES = 8, 2**24  # minimum number of images per chunk, as long as it has at most this many values
SHIFTS = 16  # most distances between paired networks in `crps`
STEPS, QUARTILES = 200, (0.25, 0.75)  # of the search for a quantile of a mixture
KEPT = 2**25 - 2**12  # bytes; after freeing a block of 32 MiB, its largest threshold, glibc retains twice that


@runtime_checkable
class Inputs(Protocol):
    """Points x [R, P, ...]: a tensor, or an object for which x[:, part] and x[rows, indices] return tensors."""

    @property
    def shape(self) -> torch.Size: ...
    def __getitem__(self, key: Any, /) -> Tensor: ...


class Moments(NamedTuple):
    """Mean and variance of a prediction over the weight posterior (epistemic variance, without noise)."""

    mean: Float[Tensor, "R P M"]
    variance: Float[Tensor, "R P M"]


class LabelMoments(NamedTuple):
    """Predictive mean of a real-valued label, with epistemic and noise variance."""

    mean: Float[Tensor, "R P M"]
    variance: Float[Tensor, "R P M"]  # epistemic
    noise: Float[Tensor, "R P M"]  # aleatoric: variance of a label given a network, averaged over networks


class ClassPrediction(NamedTuple):
    """Predicted class probabilities with their uncertainty, in nats."""

    probabilities: Float[Tensor, "R P C"]  # averaged over weight samples
    entropy: Float[Tensor, "R P"]  # of these probabilities
    information: Float[Tensor, "R P"]  # mutual information of class and weights, which labels can reduce


@dataclass(frozen=True)
class Predictor:
    """S networks sampled from a posterior, with predictive distribution p(y | x) = 1/S sum_s p(y | x, w_s, noise_s)."""

    net: Any  # a `Network`, or what takes its place: an object with its `width`, and with `output(layers, x)`
    likelihood: Likelihood  # a network predicts M real values, or the probabilities of M classes
    layers: tuple[Any, ...]  # weight samples [R, S, I, O] per layer, or `Functions`
    noise: Noise  # one noise parameter per weight sample
    stretch: Float[Tensor, " R"] | None = field(default=None, kw_only=True)  # factor for deviations from the mean

    @staticmethod
    def sample(posterior: Predictive, state: State, n: int, rng: Rng) -> Predictor:
        """Create a predictor from n joint samples of weights and noise, or from all if the posterior has fewer."""
        net, layers, noise = posterior.functions(state, n, rng)
        return Predictor(net, getattr(posterior.likelihood, "exact", posterior.likelihood), layers, noise)

    def stretched(self, factor: Float[Tensor, " R"]) -> Predictor:
        """Return a predictor whose predictive variance is scaled by `factor`, with the same mean."""
        noise = find_part(self.likelihood, "scaled_noise")(self.noise, factor)
        return replace(self, noise=noise, stretch=factor.sqrt() * (1 if self.stretch is None else self.stretch))

    @property
    def samples(self) -> int:
        return count_samples(self.layers)

    def outputs(
        self, x: Inputs, budget: int | None = None, only: slice | None = None
    ) -> Iterator[tuple[slice, Float[Tensor, "R S b O"]]]:
        """Yield (slice of points, outputs) in chunks, for all points x [R, P, ...] or only for the slice `only`."""
        size = self.chunk(x, budget)
        torch.empty(KEPT, dtype=torch.uint8)  # freed immediately, so that glibc reuses memory from chunk to chunk
        first, last = (only.start, only.stop) if only else (0, x.shape[1])
        for start in range(first, last, size):
            part = slice(start, min(start + size, last))
            with torch.no_grad():  # inside the generator, since its body runs after the call
                out = self.net.output(self.layers, x[:, part])
            if self.stretch is not None:
                targets = self.likelihood.mean(out).shape[-1]  # beyond these, outputs describe the noise
                means = out[..., :targets]
                means = torch.lerp(means.mean(1, keepdim=True), means, self.stretch[:, None, None, None])
                out = torch.cat([means, out[..., targets:]], -1)
            yield part, out

    @torch.no_grad()
    def chunk(self, x: Inputs, budget: int | None = None) -> int:
        """Return the points per chunk of `outputs`. On a CPU, `budget` limits values per layer, except of images."""
        one = self.net.output(self.layers, x[:, :1])  # one point, to determine the width of the layers
        width = x.shape[0] * self.samples * self.net.width
        if not one.is_cpu:
            budget = DEVICE
        elif len(x.shape) > 3:  # with few images per chunk, reading the weights would dominate
            budget = max(budget or BUDGET, min(FEW * width, IMAGES))
        return max(1, (budget or BUDGET) // width)

    def _all(self, of: Callable[[Tensor], tuple[Tensor, ...]], x: Inputs) -> tuple[Tensor, ...]:
        """Apply the function `of` to the outputs at all points x, and return the results for all points."""
        return filled(((part, of(out)) for part, out in self.outputs(x, CACHE)), x.shape[1])

    def moments(self, x: Inputs) -> Moments:
        """Return mean and variance of the predictions over the networks, at the points x [R, P, ...]."""
        return Moments(*self._all(self.moments_of, x))

    def moments_of(self, out: Float[Tensor, "R S b O"]) -> Moments:
        """Return the mean and variance of the predictions over the networks, from network outputs."""
        predicted = given(self.likelihood, self.noise).mean(out)
        # Bessel's correction, as the mean is estimated from the same S samples. One sample has zero variance.
        return Moments(predicted.mean(1), predicted.var(1, correction=min(1, self.samples - 1)))

    def label_moments(self, x: Inputs) -> LabelMoments:
        """Return the predictive moments of a real-valued label at the points x [R, P, ...]."""

        def of(out: Float[Tensor, "R S b O"]) -> tuple[Tensor, ...]:
            mean, variance = self.moments_of(out)
            return mean, variance, find_part(self.likelihood, "variance")(self.noise, out).mean(1).expand_as(mean)

        return LabelMoments(*self._all(of, x))

    def quantiles_of(self, out: Float[Tensor, "R S b O"], levels: Sequence[float]) -> Float[Tensor, "K R b M"]:
        """Return the predictive quantiles of a real-valued label, from network outputs."""
        noise, exact = tree.map_tensors(Tensor.double, self.noise), out.double()
        cdf, component = (partial(find_part(self.likelihood, name), noise, exact) for name in ("cdf", "quantile"))
        return torch.stack([mixture_quantile(cdf, component, level) for level in levels]).to(out)

    def below_of(self, out: Float[Tensor, "R S b O"], y: Float[Tensor, "_R 1 b M"]) -> Float[Tensor, "R b M"]:
        """Return the probability that a real-valued label is at most y, from network outputs."""
        at_most: Tensor = find_part(self.likelihood, "cdf")(self.noise, out, y)
        return at_most.mean(1)

    def central_of(self, out: Float[Tensor, "R S b O"], y: Tensor, levels: Tensor) -> Float[Tensor, "R b M K"]:
        """Return whether real-valued labels y are in the central predictive intervals at these levels, from outputs.

        Where the predictive CDF jumps, as for counts, return the part of the jump in the interval, on average the level
        of a calibrated prediction (Czado et al. 2009). A Gaussian likelihood takes Gaussians with the same moments.
        """
        if is_gaussian(self.likelihood):
            mean, variance = self.moments_of(out)
            noise = find_part(self.likelihood, "variance")(self.noise, out).mean(1)
            score = (y - mean).abs() / (variance + noise).sqrt()
            return (score.unsqueeze(-1) <= torch.special.ndtri((1 + levels) / 2)).to(out)
        ends = (y, y - 1e-6 * (1 + y.abs()))
        high, low = (self.below_of(out, end.unsqueeze(1)).unsqueeze(-1) for end in ends)
        first, last = (1 - levels) / 2, (1 + levels) / 2
        part = (high.minimum(last) - low.maximum(first)).clamp_min(0) / (high - low)
        return torch.where(high - low > 1e-5, part, ((high >= first) & (high <= last)).to(out))

    def classes(self, x: Inputs) -> ClassPrediction:
        """Return class probabilities and their uncertainty at the points x [R, P, ...]."""
        return ClassPrediction(*self._all(self.classes_of, x))

    def classes_of(self, out: Float[Tensor, "R S b O"]) -> ClassPrediction:
        """Return class probabilities and uncertainty from network outputs (Houlsby et al. 2011, equation 2)."""
        mean = given(self.likelihood, self.noise).mean(out).mean(1)
        entropy = torch.special.entr(mean).sum(-1)
        each = find_part(self.likelihood, "entropy")(self.noise, out)
        return ClassPrediction(mean, entropy, (entropy - each.mean(1)).clamp_min(0))

    def log_prob(self, x: Inputs, y: Tensor) -> Float[Tensor, "R S P"]:
        """Return the log density of each target in y, [R, P, O] or [R, P], under each network."""
        results = (
            (part, (self.likelihood.log_prob(self.noise, out, y[:, part].unsqueeze(1)),))
            for part, out in self.outputs(x, CACHE)
        )
        return filled(results, x.shape[1], 2)[0]

    def evaluate(
        self, x: Inputs, y: Tensor, scale: Float[Tensor, "R O"] | None = None, *, ranked: bool = True
    ) -> dict[str, Tensor]:
        """Return test metrics at points x [R, P, ...] with targets y, averaged over points: a dict name -> [R].

        Regression: `rmse` of the predictive mean over all outputs; `log_likelihood` of the mixture of networks, summed
        over outputs; `crps` of that mixture, averaged over outputs, which takes the most time (if `ranked`, for a
        Gaussian likelihood); `coverage_95`, the share of targets in the central 95 %, see `central_of`.
        Classification: `error` of the averaged probabilities, and `log_likelihood`.
        Both: `epistemic`, the mean standard deviation over weight samples.
        For standardised real targets [R, P, O], set `scale` to the standard deviation of the original targets. Metrics
        are then in original units.
        """
        sums: dict[str, Tensor] = {}
        log_scale = 0.0 if scale is None else scale.log().sum(1, keepdim=True)  # [R, 1]
        unit = 1.0 if scale is None else scale.unsqueeze(1)  # [R, 1, O]
        for points, out in self.outputs(x):
            target, (mean, variance) = y[:, points], self.moments_of(out)
            log_prob = self.likelihood.log_prob(self.noise, out, target.unsqueeze(1))
            scores = {
                "log_likelihood": log_prob.logsumexp(1) - math.log(self.samples) - log_scale,
                "epistemic": (variance.sqrt() * unit).mean(-1),
            }
            if self.likelihood.discrete:
                scores["error"] = (mean.argmax(-1) != target).to(out)
            else:
                scores["rmse"] = ((target - mean) * unit).square().mean(-1)
                if ranked and is_gaussian(self.likelihood):
                    deviation = find_part(self.likelihood, "variance")(self.noise, out).sqrt()
                    scores["crps"] = (crps(self.likelihood.mean(out), deviation, target) * unit).mean(-1)
                scores["coverage_95"] = self.central_of(out, target, out.new_tensor([0.95])).mean((-2, -1))
            for name, value in scores.items():
                sums[name] = sums.get(name, 0) + value.sum(1)
        metrics = {name: value / x.shape[1] for name, value in sums.items()}
        return {name: value.sqrt() if name == "rmse" else value for name, value in metrics.items()}


def crps(
    mean: Float[Tensor, "R S b M"], deviation: Float[Tensor, "R S _b M"], y: Float[Tensor, "R b M"]
) -> Float[Tensor, "R b M"]:
    """Return the continuous ranked probability score, E|Y - y| - E|Y - Y'| / 2, of a mixture of S Gaussians.

    Grimit et al. (2006), equation 3. Lower is better; the unit is that of y. The second term is a mean over pairs s and
    s + k of networks. If there are more than `SHIFTS` distances k, it takes that many, evenly spaced.
    """
    samples = mean.shape[1]
    shifts: Sequence[int] = range(1, samples)
    if len(shifts) > SHIFTS:
        shifts = torch.linspace(1, samples // 2, SHIFTS).round().int().tolist()
    pairs = [_absolute(mean - mean.roll(k, 1), torch.hypot(deviation, deviation.roll(k, 1))).mean(1) for k in shifts]
    same = 2 / math.sqrt(math.pi) * deviation.mean(1)
    apart = torch.stack(pairs).mean(0) if pairs else same
    return _absolute(mean - y.unsqueeze(1), deviation).mean(1) - 0.5 * torch.lerp(apart, same, 1 / samples)


def _absolute(mean: Tensor, deviation: Tensor) -> Tensor:
    """Return E|Z| for Gaussian Z."""
    z = mean / deviation
    return deviation * math.sqrt(2 / math.pi) * (-0.5 * z.square()).exp() + mean * torch.erf(z / math.sqrt(2))


def linearised(posterior: GaussianPosterior, state: State, x: Tensor) -> Moments:
    """Return the moments of a network linearised at its mean weights M: f(x; M) and diag(J Sigma J^T), Jacobian J."""
    _, precision, scale = posterior.gaussian(state)
    layers, net = posterior.at_mean(state), posterior.net

    def moments(part: slice) -> Moments:
        out, rows = at_mean(net, layers, x[:, part], len(posterior.coordinates))
        return Moments(out, scale * torch.stack([precision.quad(taps) for taps in rows], -1))

    # The gradient of one example is as large as all weights.
    slices = parts(x.shape[1], x.shape[0] * posterior.dimension)
    return Moments(*filled(((part, moments(part)) for part in slices), x.shape[1]))


def probit(posterior: GaussianPosterior, state: State, x: Tensor) -> Float[Tensor, "R P C"]:
    """Return class probabilities at x in closed form, from the moments m and v of the linearised logits.

    mean(m / sqrt(1 + pi v / 8)), where mean is the likelihood's softmax or sigmoid (MacKay 1992; Gibbs 1997).
    """
    mean, variance = linearised(posterior, state, x)
    logits = mean / (1 + math.pi / 8 * variance).sqrt()
    return posterior.likelihood.mean(logits.unsqueeze(1)).squeeze(1)


def divided(
    outputs: Callable[[slice], Iterator[tuple[slice, Tensor]]],
    points: int,
    of: Callable[[slice, Tensor], tuple[Tensor, ...]],
) -> tuple[Tensor, ...]:
    """Apply `of` to the outputs at all points, divided among the processes of a fit; return results [R, P, ...]."""
    share = parallel.share(points)
    first, count = share.start, share.stop - share.start
    chunks = ((slice(part.start - first, part.stop - first), of(part, out)) for part, out in outputs(share))
    return tuple(parallel.gathered(t, 1) for t in filled(chunks, count))


def filled(chunks: Iterable[tuple[slice, tuple[Tensor, ...]]], points: int, axis: int = 1) -> tuple[Tensor, ...]:
    """Assemble tensors over all points, which lie along `axis`, from chunks: pairs (slice of points, tensors)."""
    whole: tuple[Tensor, ...] = ()
    for part, values in chunks:
        if not whole:
            shapes = [(*v.shape[:axis], points, *v.shape[axis + 1 :]) for v in values]
            whole = tuple(v.new_empty(shape) for v, shape in zip(values, shapes, strict=True))
        for all_of, some in zip(whole, values, strict=True):
            all_of[(slice(None),) * axis + (part,)] = some
    return whole


def parts(points: int, width: int) -> Iterator[slice]:
    """Yield slices of points that stay within the budget of values, with `width` values per point."""
    return chunks(points, width, BUDGET)


def mixture_quantile(
    cdf: Callable[[Float[Tensor, "R 1 b M"]], Float[Tensor, "R S b M"]],
    component: Callable[[float], Float[Tensor, "R S b M"]],
    level: float,
) -> Float[Tensor, "R b M"]:
    """Return the smallest x at which the CDF of a mixture, 1/S sum_s F_s, reaches `level`.

    `cdf` returns all F_s(x); `component` returns the quantile of each F_s at a level. The search is a bracketed secant
    method (Press et al., Numerical Recipes, 9.4). CDFs of counts, which are step functions, must jump at integers.
    """

    def excess(x: Tensor) -> Tensor:
        return cdf(x.unsqueeze(1)).mean(1) - level

    ends, (lower, upper) = component(level), map(component, QUARTILES)
    low, high = ends.amin(1), ends.amax(1)  # bracket: the quantile of the mixture lies between those of its components
    size = torch.maximum(low.abs(), high.abs())
    precision = 1e-12 * (upper - lower).amin(1) + 1e-17 * size
    before, at_before = low, excess(low)
    x, last = ends.mean(1), high - low
    for _ in range(STEPS):
        at = excess(x)
        low, high = torch.where(at < 0, x, low), torch.where(at < 0, high, x)
        step = -at * (x - before) / (at - at_before)
        fast = (x + step >= low) & (x + step <= high) & (step.abs() < 0.5 * last)
        last = torch.where(fast, step, 0.5 * (low + high) - x)
        before, at_before = x, at
        x, last = x + last, last.abs()
        if bool((last <= precision).all()):
            break
    whole = x.round()
    return torch.where((x - whole).abs() <= 4 * precision + 1e-15 * size, whole, x)
