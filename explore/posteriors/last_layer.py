"""Exact Bayesian linear regression on the last hidden layer of a network, whose other layers stay as they are.

With the features phi(x) of the last hidden layer (random ReLU features, or those of a trained network), and for each
output o with noise precision tau_o,

    q(w_o) = N(m_o, (N tau_o F / lambda + I / eta)^-1),    F = E[phi phi^T],    m_o = N tau_o / lambda Cov_o E[phi y_o]

F, E[phi y] and E[y^2] are means over all examples so far, and N is the number of all examples. So a pass over the data
gives the posterior, in whatever batches. In the eigenbasis of F all covariances are diagonal. q(tau_o) is Gamma, at the
optimum of the ELBO (Bishop: Pattern Recognition and Machine Learning, 2006, section 10.3). With `forgetting` below 1,
examples lose weight with each that follows, and what is no longer seen returns to the prior.

The gains of one more example, with s_o = tau_o phi^T Cov_o phi and the residual e_o, are closed forms:

    KL(q' || q) = 1/2 sum_o [log(1 + s_o) - s_o / (1 + s_o) + tau_o e_o^2 s_o / (1 + s_o)^2]

and, in expectation over its target, 1/2 sum_o log(1 + s_o).

Random features depend on all inputs. `relevance` finds those that tell nothing about the targets (automatic relevance
determination; MacKay: Bayesian Non-linear Modeling for the Prediction Competition, 1994).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from explore.core.errors import InputError
from explore.core.linalg import eigh, identity, over
from explore.core.rng import Rng
from explore.core.shapes import Batch, Info, Means, Taps, Weights
from explore.execution import parallel
from explore.inference.base import Common, common
from explore.inference.gaussian import Density, GaussianPosterior, PredictiveForm
from explore.inference.structures.base import Blocks, Diagonal
from explore.inference.updates.steps import settle
from explore.nets.likelihoods.gaussian import Gamma
from explore.nets.protocols import Layer, Network, Noise, is_gaussian

ROUNDS, SETTLED = 20, 1e-12  # between the weights and the noise: the most, and the relative change that ends them
# For the relevance of inputs: Adam's steps, the step after which it may stop, its rate, and that of the prior.
STEPS, LOOK, RATE, SPARSITY = 20, 5, 0.8, 10.0
RELEVANT = 0.1  # inputs with at least this share of the largest factor count in full ...
EVENTS = 10  # ... and those that differ from their median in fewer examples, which tell too little


class LastLayerState(NamedTuple):
    """The state of `LastLayer`; statistics are in double precision, since rounding errors would act as data."""

    common: Common
    weights: Weights  # of the fixed layers, [R, 1, I, O]
    seen: Float[Tensor, " R"]  # number of examples, less those forgotten
    inputs: Float[Tensor, "R F F"]  # E[phi phi^T]
    cross: Float[Tensor, "R F O"]  # E[phi y]
    squares: Float[Tensor, "R O"]  # E[y^2]
    basis: Float[Tensor, "R F F"]  # eigenvectors of `inputs`, in columns
    precision: Float[Tensor, "R F O"]  # of the weights, in this basis
    mean: Float[Tensor, "R F O"]  # of the weights


class Readout(NamedTuple):
    """A network of which only the last layer has samples. Its layers are the last one, all others, and the norms."""

    net: Network

    @property
    def width(self) -> int:
        return self.net.outputs

    def output(self, layers: Sequence[Tensor], x: Tensor) -> Float[Tensor, "R S B O"]:
        return self.taps(layers, x, 1).inputs[:, :, :, 0] @ layers[0]

    def taps(self, layers: Sequence[Tensor], x: Tensor, outputs: int | None = None) -> Taps:
        """Return the inputs of the last layer, and the slope of some outputs, or all, where all its weights are -1."""
        last, *others = layers
        before = len(self.net.shapes) - 1
        end = -torch.ones_like(last[:, :1, :, :outputs])
        out, pullback = self.net.forward((*others[:before], end, *others[before:]), x, last=1)
        return pullback(torch.ones_like(out))[0]


@dataclass(frozen=True, kw_only=True)
class LastLayer(GaussianPosterior):
    """Exact linear regression on fixed features, for real-valued targets; `Net(module, trained=True)` keeps a module's.

    Not for classes: `laplace` with subset="last" is for them.
    """

    likelihood: Any  # with Gaussian noise
    epochs: int = 1
    batch_size: int = 1024
    forgetting: float = 1.0  # factor on the weight of an example with each that follows
    predictive: PredictiveForm = "sampled"  # the same as linearised, and faster with many outputs

    ranges: ClassVar[dict[str, str]] = {"forgetting": "(0, 1]"}
    partial: ClassVar[bool] = False
    classifies: ClassVar[bool] = False
    recursive: ClassVar[bool] = True
    mixture_error: ClassVar[str] = "last-layer is exact for its features; leave out members, and use more units"
    ignores: ClassVar[frozenset[str]] = frozenset({"rate"})
    double: ClassVar = frozenset({"seen", "inputs", "cross", "squares", "basis", "precision", "mean"})

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_gaussian(self.likelihood) or self.likelihood.outputs_per_target > 1:
            name = type(self.likelihood).__name__
            raise InputError(f"last-layer does not support the likelihood {name}; use Gaussian, or laplace for classes")
        if self.net.norms and not self.net.trained:
            raise InputError("last-layer does not train norms (batch norm); use Net(module, trained=True), or no norms")

    @property
    def coordinates(self) -> tuple[tuple[int, int], ...]:
        return self.net.shapes[-1:]

    def init(self, n_data: float, replicas: int, rng: Rng) -> LastLayerState:
        *fixed, last = self.net.initial(replicas, rng, 1)
        cross = torch.zeros_like(last.squeeze(1), dtype=torch.float64)
        features = cross.shape[1]
        inputs, basis = cross.new_zeros(replicas, features, features), identity(features, cross)
        return LastLayerState(
            common(self, n_data, replicas, rng), tuple(fixed), cross[:, 0, 0], inputs, cross, cross[:, 0],
            basis.repeat(replicas, 1, 1), cross + 1 / self.prior_variance,
            last.squeeze(1).double() if self.net.trained else cross,
        )  # fmt: skip

    def update(self, state: LastLayerState, batch: Batch, rng: Rng, progress: float = 0.0) -> tuple[Any, Info]:
        """Add the examples of a batch, once each."""
        return settle(self._added(state, batch), state), {}

    def _added(self, state: LastLayerState, batch: Batch) -> LastLayerState:
        """Return the state with a batch added, also where it is not finite."""
        y, examples = batch.y.double(), batch.y.shape[1]
        count = examples * parallel.world().processes
        age = torch.linspace(count - 1, 0, examples, dtype=y.dtype, device=y.device)
        weight = self.forgetting**age
        seen = self.forgetting**count * state.seen + count / examples * weight.sum()
        weight = (weight / weight.sum()).unsqueeze(1)
        x, at = distinct(batch.x)  # equal inputs are added as one
        of_x = torch.cat([weight.expand(len(y), -1, 1), weight * y], 2)
        of_x = of_x.new_zeros(*x.shape[:2], of_x.shape[2]).index_add_(1, at, of_x)
        phi = self.features(state, x)
        weighted = phi * of_x[:, :, :1]
        means = parallel.mean((weighted.mT @ phi, phi.mT @ of_x[:, :, 1:], (weight.T @ y.square()).squeeze(1)))
        share = 1 - self.forgetting**count * state.seen / seen  # of the batch in the means
        inputs, cross, squares = (
            torch.lerp(old, new, over(share, old)) for old, new in zip(state[3:6], means, strict=True)
        )
        shared = state.common._replace(step=state.common.step + 1, taken=state.common.taken + 1)
        new = state._replace(common=shared, seen=seen, inputs=inputs, cross=cross, squares=squares)
        return self._solved(new)

    def _solved(self, state: LastLayerState) -> LastLayerState:
        """Return the state with the weights and the noise that its statistics determine."""
        values, basis, _ = eigh(state.inputs)
        values, cross, eta = values.clamp_min(0).unsqueeze(2), basis.mT @ state.cross, self.prior_variance
        count = torch.full_like(state.seen, float(state.common.n_data)).unsqueeze(1) / self.kl_weight
        if self.forgetting < 1:
            count = count.minimum(self.stands_for(1) / self.kl_weight * state.seen.unsqueeze(1))
        noise, kind, explained = state.common.noise, self.likelihood, cross.square()

        def weight(noise: Noise) -> Tensor:
            return (count * (noise.shape / noise.rate).double()).unsqueeze(1)

        for _ in range(ROUNDS if kind.noise_std is None else 0):
            data = weight(noise)
            variance = (data * values + 1 / eta).reciprocal()
            # E[y^2], less what the mean explains, plus the variance of phi^T w; in one sum, with few operations.
            squares = state.squares + (variance * (values - data * explained * (1 + variance / eta))).sum(1)
            half = 0.5 * count.expand_as(squares)
            last, noise = noise, Gamma(kind.prior_shape + half, kind.prior_rate + half * squares.clamp_min(0))
            if not noise.rate.is_meta and ((noise.rate - last.rate).abs() <= SETTLED * noise.rate).all():
                break
        noise = Gamma(*(value.to(state.common.noise.rate) for value in noise))
        data = weight(noise)
        precision = data * values + 1 / eta
        shared = state.common._replace(noise=noise)
        return state._replace(common=shared, basis=basis, precision=precision, mean=basis @ (data * cross / precision))

    def features(self, state: LastLayerState, x: Tensor) -> Float[Tensor, "R B F"]:
        """Return phi at x [R, B, ...], in double precision; if the last layer has a bias, the constant 1 is last."""
        first = not x.is_meta and not int(state.common.step)
        layers = self.layers(state, (state.mean.to(x).unsqueeze(1), *state.weights))
        taps = Readout(self.net).taps(layers, x, None if first else 1)
        # At negative outputs no activation has the slope 1. Checked once, since it takes time.
        if first and (taps.grads.shape[3] > 1 or (taps.grads != 1).any()):
            raise InputError("last-layer needs a network that ends with a dense layer; leave out what follows it")
        return taps.inputs[:, 0, :, 0].double()

    def gaussian(self, state: LastLayerState) -> Density:
        like = state.common.noise.rate
        eye = identity(state.mean.shape[2], like).expand(len(like), -1, -1)
        block = Diagonal(state.precision.to(like), state.basis.to(like), eye)
        return (state.mean.to(like),), Blocks((block,)), 1.0

    def sample_coordinates(self, state: LastLayerState, n: int, rng: Rng) -> Weights:
        # As the density of `gaussian`, without its rotation of the outputs, which is the identity.
        mean, basis, scale = (t.to(rng.dtype) for t in (state.mean, state.basis, state.precision.rsqrt()))
        eps = rng.normal(len(mean), n, *mean.shape[1:]).transpose(1, 2).flatten(2)  # samples beside outputs
        root = basis @ (eps * scale.repeat(1, 1, n))
        return (mean.unsqueeze(1) + root.unflatten(2, (n, -1)).transpose(1, 2),)

    def completed(self, state: LastLayerState, mean: Means) -> Means:
        return *(w.squeeze(1) for w in state.weights), *mean

    def functions(self, state: LastLayerState, n: int, rng: Rng) -> tuple[Any, tuple[Any, ...], Noise]:
        layers = self.layers(state, (*self.sample_coordinates(state, n, rng), *state.weights), 1)
        return Readout(self.net), layers, self.likelihood.sample_noise(state.common.noise, n, rng)

    def sample(self, state: LastLayerState, n: int, rng: Rng) -> tuple[Layer, ...]:
        fixed = (w.expand(-1, n, -1, -1) for w in state.weights)
        return self.layers(state, (*fixed, *self.sample_coordinates(state, n, rng)))

    def information_gain(self, state: LastLayerState, batch: Batch) -> Float[Tensor, "R B"]:
        """Return KL(q' || q) in nats, where q' also knows one example of the batch."""
        x, at = distinct(batch.x)
        phi, tau = self.features(state, x), self.expected_noise(state).double()
        s = self._leverage(state, phi)[:, at]
        residual = batch.y.double() - (phi @ state.mean)[:, at]
        each = s.log1p() - s / (1 + s) + tau * residual.square() * s / (1 + s).square()
        return 0.5 * each.sum(2).to(batch.x)

    def expected_gain(self, state: LastLayerState, x: Tensor) -> Float[Tensor, "R B"]:
        """Return the expectation of `information_gain` over the target of each x, in nats."""
        x, at = distinct(x)
        return 0.5 * self._leverage(state, self.features(state, x)).log1p().sum(2)[:, at].to(x)

    def relevance(self, state: LastLayerState, batch: Batch, inputs: int) -> Float[Tensor, "R I"]:
        """Return factors on the inputs [R, B, I]: near 0 for irrelevant ones among the first `inputs`, 1 for others.

        `state` is one before any data. Adam follows the ELBO's gradient with respect to the logarithms of the factors,
        which are at most 0 and have an exponential prior, and of a scale common to all inputs. Only ratios matter:
        functions may be smooth in all inputs.
        """
        judged = (batch.x != batch.x.median(1, keepdim=True).values).sum(1) >= EVENTS
        judged[:, inputs:] = False
        if not judged.any():
            return torch.ones_like(batch.x[:, 0])
        logs = batch.x.new_zeros(batch.x.shape[0], batch.x.shape[2]).requires_grad_()
        scale = logs.new_zeros(len(logs), 1).requires_grad_()
        optimizer = torch.optim.Adam([logs, scale], lr=RATE)
        count = torch.full_like(state.common.n_data, batch.x.shape[1])
        new = state._replace(common=state.common._replace(n_data=count))
        for step in range(STEPS):
            x = batch.x * (logs + scale).exp().unsqueeze(1)
            new = self._added(state._replace(common=new.common), batch._replace(x=x.detach()))
            root = self.expected_noise(new).double().sqrt()
            spread = new.basis * (root.square() / new.precision).sum(2, keepdim=True).sqrt().mT
            readout = torch.cat([new.mean * root, spread], 2).to(x).unsqueeze(1)
            targets = (batch.y * root).to(x)
            out = self.net.output(self.layers(new, (*new.weights, readout)), x).squeeze(1)
            fit, deviations = out.tensor_split([targets.shape[2]], 2)
            loss = 0.5 * (targets - fit).square().sum() + 0.5 * deviations.square().sum() - SPARSITY * logs.sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            logs.detach().clamp_max_(0)[~judged] = 0
            below = logs.detach() - logs.detach().masked_fill(~judged, -torch.inf).amax(1, keepdim=True)
            if step == LOOK and below[judged].min() > -LOOK * RATE / 2:  # an irrelevant one would be about twice as far
                break
        factors = below.exp()
        return torch.where(judged & (factors < RELEVANT), factors, 1.0)

    def _leverage(self, state: LastLayerState, phi: Tensor) -> Float[Tensor, "R B O"]:
        """Return s: variances of the outputs over those of their noise."""
        spread = (self.expected_noise(state).double() / state.precision).float()  # of positive terms only
        return ((phi @ state.basis).square().float() @ spread).double()


def distinct(x: Float[Tensor, "R B ..."]) -> tuple[Float[Tensor, "R U ..."], Int[Tensor, " B"]]:
    """Return the inputs of one replica without repetitions, and the place of each; or all, if few are repeated."""
    flat = x.flatten(2)[0]
    every = torch.arange(x.shape[1], device=x.device)
    if len(x) > 1 or x.device.type != "cpu":
        return x, every
    marks = flat.double() @ torch.linspace(1, 2, flat.shape[1], dtype=torch.float64).sin()
    found, at = marks.unique(return_inverse=True)
    first = torch.empty_like(at[: len(found)]).scatter_(0, at, every)
    if 2 * len(found) > len(every) or not torch.equal(flat[first[at]], flat):
        return x, every
    return x[:, first], at


PRESETS: dict[str, dict[str, object]] = {"default": {}, "small": {}, "vime": {}}
