"""Predictions of sampled networks, in bounded memory.

All points share the S weight samples. Points are predicted in chunks, and a chunk's results go into one tensor at once,
since small tensors between freed chunks would fragment the memory.
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
from explore.core.rng import Rng
from explore.core.shapes import State
from explore.execution import parallel
from explore.inference.base import Predictive
from explore.inference.gaussian import GaussianPosterior
from explore.nets.protocols import Layer, Likelihood, Network, Noise, count_samples, find_part

BUDGET = 2**21  # numbers a chunk may hold in one layer, over all R and S
CACHE = 2**20  # the same where the order of sums does not depend on it: a few MiB stay in the processor's cache
DEVICE = 2**27  # the same on a GPU, which small chunks leave idle
FEW, IMAGES = 8, 2**24  # images at least, if a chunk of them stays within this many numbers
STEPS, QUARTILES = 200, (0.25, 0.75)  # of the search for a quantile of a mixture
KEPT = 2**25 - 2**12  # bytes of a block; once one of 32 MiB, its maximal threshold, was freed, glibc keeps twice that


@runtime_checkable
class Inputs(Protocol):
    """Points [R, P, ...]: a tensor, or an object that makes one from x[:, part] or x[rows, indices]."""

    @property
    def shape(self) -> torch.Size: ...
    def __getitem__(self, key: Any, /) -> Tensor: ...


class Moments(NamedTuple):
    """Mean and variance of a prediction over the weights (epistemic, without noise)."""

    mean: Float[Tensor, "R P M"]
    variance: Float[Tensor, "R P M"]


class LabelMoments(NamedTuple):
    """Mean and both parts of the variance of a real label."""

    mean: Float[Tensor, "R P M"]
    variance: Float[Tensor, "R P M"]  # epistemic
    noise: Float[Tensor, "R P M"]  # variance of a label around the prediction of a net, averaged over the nets


class ClassPrediction(NamedTuple):
    """A prediction of classes with its uncertainty, in nats."""

    probabilities: Float[Tensor, "R P C"]  # averaged over the weights
    entropy: Float[Tensor, "R P"]  # of these probabilities
    information: Float[Tensor, "R P"]  # mutual information of class and weights: reducible by labels


@dataclass(frozen=True)
class Predictor:
    """S nets drawn from a posterior, whose predictive distribution is p(y | x) = 1/S sum_s p(y | x, w_s, noise_s)."""

    net: Network
    likelihood: Likelihood  # a net predicts M numbers, or the probabilities of M classes
    layers: tuple[Layer, ...]  # weight samples [R, S, I, O] a layer
    noise: Noise  # one noise parameter a weight sample
    stretch: Float[Tensor, " R"] | None = field(default=None, kw_only=True)  # of each net's distance from their mean

    @staticmethod
    def sample(posterior: Predictive, state: State, n: int, rng: Rng) -> Predictor:
        """Draw n joint samples of weights and noise, or as many as the posterior has."""
        return Predictor(posterior.net, posterior.likelihood, *posterior.joint_sample(state, n, rng))

    def stretched(self, factor: Float[Tensor, " R"]) -> Predictor:
        """Scale the distributions' variance by `factor`, keeping their means."""
        noise = find_part(self.likelihood, "scaled_noise")(self.noise, factor)
        return replace(self, noise=noise, stretch=factor.sqrt() * (1 if self.stretch is None else self.stretch))

    @property
    def samples(self) -> int:
        """S."""
        return count_samples(self.layers)

    def outputs(
        self, x: Inputs, budget: int | None = None, only: slice | None = None
    ) -> Iterator[tuple[slice, Float[Tensor, "R S b O"]]]:
        """Yield (positions, outputs) of the points x [R, P, ...], or of those in `only`, in chunks of a `budget`."""
        torch.empty(KEPT, dtype=torch.uint8)  # freed at once: so glibc keeps the memory of chunks for the next ones
        with torch.no_grad():
            one = self.net.output(self.layers, x[:, :1])  # a point, to learn how wide the layers are
        width = x.shape[0] * self.samples * self.net.width
        if not one.is_cpu:
            budget = DEVICE
        elif len(x.shape) > 3:  # images one by one would spend the time on reading the weights
            budget = max(budget or BUDGET, min(FEW * width, IMAGES))
        first, last = (only.start, only.stop) if only else (0, x.shape[1])
        for some in parts(last - first, width, budget):
            part = slice(first + some.start, first + some.stop)
            with torch.no_grad():  # here, not around the generator, whose body runs later
                out = self.net.output(self.layers, x[:, part])
            if self.stretch is not None:
                out = torch.lerp(out.mean(1, keepdim=True), out, self.stretch[:, None, None, None])
            yield part, out

    def _all(self, of: Callable[[Tensor], tuple[Tensor, ...]], x: Inputs) -> tuple[Tensor, ...]:
        """Return a function of the outputs at all points x."""
        return filled(((part, of(out)) for part, out in self.outputs(x, CACHE)), x.shape[1])

    def moments(self, x: Inputs) -> Moments:
        """Return mean and variance over the nets of their predictions at the points x [R, P, ...]."""
        return Moments(*self._all(self.moments_of, x))

    def moments_of(self, out: Float[Tensor, "R S b O"]) -> Moments:
        """Return `moments` from the outputs there."""
        predicted = self.likelihood.mean(out)
        # Bessel's correction: S samples estimate the mean too. One sample varies not at all.
        return Moments(predicted.mean(1), predicted.var(1, correction=min(1, self.samples - 1)))

    def label_moments(self, x: Inputs) -> LabelMoments:
        """Return the moments of a real label at the points x [R, P, ...]."""

        def of(out: Float[Tensor, "R S b O"]) -> tuple[Tensor, ...]:
            mean, variance = self.moments_of(out)
            return mean, variance, self._noise_of(out).expand_as(mean)

        return LabelMoments(*self._all(of, x))

    def _noise_of(self, out: Float[Tensor, "R S b O"]) -> Float[Tensor, "R _b M"]:
        variance: Tensor = find_part(self.likelihood, "variance")(self.noise, out)
        return variance.mean(1)

    def quantiles_of(self, out: Float[Tensor, "R S b O"], levels: Sequence[float]) -> Float[Tensor, "K R b M"]:
        """Return quantiles of a real label at some points."""
        noise, exact = tree.map_tensors(Tensor.double, self.noise), out.double()
        cdf, component = (partial(find_part(self.likelihood, name), noise, exact) for name in ("cdf", "quantile"))
        return torch.stack([mixture_quantile(cdf, component, level) for level in levels]).to(out)

    def below_of(self, out: Float[Tensor, "R S b O"], y: Float[Tensor, "_R 1 b M"]) -> Float[Tensor, "R b M"]:
        """Return the probability that a real label at some points is at most y."""
        at_most: Tensor = find_part(self.likelihood, "cdf")(self.noise, out, y)
        return at_most.mean(1)

    def classes(self, x: Inputs) -> ClassPrediction:
        """Return the prediction of classes at the points x [R, P, ...]."""
        return ClassPrediction(*self._all(self.classes_of, x))

    def classes_of(self, out: Float[Tensor, "R S b O"]) -> ClassPrediction:
        """Return `classes` from network outputs; for the information see Houlsby et al. (2011), equation 2."""
        mean = self.likelihood.mean(out).mean(1)
        entropy = torch.special.entr(mean).sum(-1)
        each = find_part(self.likelihood, "entropy")(self.noise, out)
        return ClassPrediction(mean, entropy, (entropy - each.mean(1)).clamp_min(0))

    def log_prob(self, x: Inputs, y: Tensor) -> Float[Tensor, "R S P"]:
        """Return the log density of each of the targets y, [R, P, O] or [R, P], under each net."""

        def of(part: slice, out: Tensor) -> Tensor:
            return self.likelihood.log_prob(self.noise, out, y[:, part].unsqueeze(1))

        return filled(((part, (of(part, out),)) for part, out in self.outputs(x, CACHE)), x.shape[1], 2)[0]

    def evaluate(self, x: Inputs, y: Tensor, scale: Float[Tensor, "R O"] | None = None) -> dict[str, Tensor]:
        """Return test metrics at x [R, P, ...] and y, name -> [R], each a mean over points.

        Regression: `rmse` of the predictive mean over all outputs, `log_likelihood` of the mixture at each point,
        summed over outputs, and `coverage_95`, the share of targets within the central 95 % of a Gaussian with the
        predictive moments. Classes: `error` of the averaged probabilities and `log_likelihood`. Both: `epistemic`, the
        mean standard deviation over the weights. Targets [R, P, O] are standardised; metrics are in units in which
        their deviation is `scale`.
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
                total = (variance + self._noise_of(out)).sqrt()
                scores["rmse"] = ((target - mean) * unit).square().mean(-1)
                scores["coverage_95"] = ((target - mean).abs() <= 1.959964 * total).to(out).mean(-1)
            for name, value in scores.items():
                sums[name] = sums.get(name, 0) + value.sum(1)
        metrics = {name: value / x.shape[1] for name, value in sums.items()}
        return {name: value.sqrt() if name == "rmse" else value for name, value in metrics.items()}


def linearised(posterior: GaussianPosterior, state: State, x: Tensor) -> Moments:
    """Return moments of the net linearised at the mean weights, f(x; M) and the diagonal of J Sigma J^T."""
    _, precision, scale = posterior.gaussian(state)
    at_mean, net = posterior.at_mean(state), posterior.net

    def moments(part: slice) -> Moments:
        out, pullback = net.forward(at_mean, x[:, part])
        rows = torch.eye(out.shape[-1], dtype=out.dtype, device=out.device)
        variance = scale * torch.stack([precision.quad(pullback(row.expand_as(out))) for row in rows], -1)
        return Moments(out.squeeze(1), variance)

    # An example's gradient is a whole set of weights.
    chunks = parts(x.shape[1], x.shape[0] * net.weights)
    return Moments(*filled(((part, moments(part)) for part in chunks), x.shape[1]))


def divided(
    outputs: Callable[[slice], Iterator[tuple[slice, Tensor]]],
    points: int,
    of: Callable[[slice, Tensor], tuple[Tensor, ...]],
) -> tuple[Tensor, ...]:
    """Return a function of the outputs at all points, [R, P, ...], which the processes of a fit divide."""
    share = parallel.share(points)
    first, count = share.start, share.stop - share.start
    chunks = ((slice(part.start - first, part.stop - first), of(part, out)) for part, out in outputs(share))
    return tuple(parallel.gathered(t, 1) for t in filled(chunks, count))


def filled(chunks: Iterable[tuple[slice, tuple[Tensor, ...]]], points: int, axis: int = 1) -> tuple[Tensor, ...]:
    """Collect tensors of all points, on this `axis`, from chunks (points, their tensors)."""
    whole: tuple[Tensor, ...] = ()
    for part, values in chunks:
        if not whole:
            shapes = [(*v.shape[:axis], points, *v.shape[axis + 1 :]) for v in values]
            whole = tuple(v.new_empty(shape) for v, shape in zip(values, shapes, strict=True))
        for all_of, some in zip(whole, values, strict=True):
            all_of[(slice(None),) * axis + (part,)] = some
    return whole


def parts(points: int, width: int, budget: int | None = None) -> Iterator[slice]:
    """Return slices of the points, such that `width` numbers a point stay within the budget."""
    size = max(1, (budget or BUDGET) // width)
    return (slice(start, min(start + size, points)) for start in range(0, points, size))


def mixture_quantile(
    cdf: Callable[[Float[Tensor, "R 1 b M"]], Float[Tensor, "R S b M"]],
    component: Callable[[float], Float[Tensor, "R S b M"]],
    level: float,
) -> Float[Tensor, "R b M"]:
    """Return the smallest x at which the mixture's CDF 1/S sum_s F_s, from `cdf`, reaches this level.

    `component` has the quantile of each F_s. The secant method is kept in a bracket as in Press et al., Numerical
    Recipes, 9.4. A step function has its jumps at whole numbers.
    """

    def excess(x: Tensor) -> Tensor:
        return cdf(x.unsqueeze(1)).mean(1) - level

    ends, (lower, upper) = component(level), map(component, QUARTILES)
    low, high = ends.amin(1), ends.amax(1)  # the components' own quantiles hold the mixture's between them
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
