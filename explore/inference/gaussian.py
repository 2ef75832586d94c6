"""Posteriors with a Gaussian density over all coordinates, q = N(mean, scale * P^-1) with a `Factor` P.

Predictions can be of the network linearised at its mean weights M: Gaussian weights then give Gaussian functions.

    f(x; w) = f(x; M) + J(x) (w - M),    J = df/dw at M        Immer, Korzepa, Bauer (2021), equation 10

Weight samples of a wide Gaussian leave the region in which the network fits the data; these functions do not.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from explore.core import tree
from explore.core.errors import InputError
from explore.core.linalg import added, identity, moved
from explore.core.rng import Rng
from explore.core.shapes import Batch, Means, State, Taps, Weights
from explore.inference.base import Variational
from explore.inference.structures.base import Factor, sample_gradients
from explore.nets.protocols import Layer, Layers, Network, Noise

PredictiveForm = Literal["auto", "linearised", "mixed", "sampled"]
"""How predictions are made: see the module docstring, and for "mixed" `explore.inference.updates.damped`."""
Density = tuple[Means, Factor, float]
"""Mean, P and scale of q = N(mean, scale * P^-1)."""


def drawn(density: Density, n: int, rng: Rng) -> Weights:
    """Draw n samples of a density, a tuple of [R, n, I, O]."""
    mean, precision, scale = density
    noise = precision.root(tuple(rng.normal(m.shape[0], n, *m.shape[1:]) for m in mean))
    return tuple(moved(m.unsqueeze(1), x, math.sqrt(scale)) for m, x in zip(mean, noise, strict=True))


def centred(density: Density) -> Density:
    """Return the density with the mean 0."""
    return tuple(torch.zeros_like(m) for m in density[0]), *density[1:]


@dataclass(frozen=True, kw_only=True)
class GaussianPosterior(Variational):
    """A posterior with a Gaussian density over the weights, or over other `coordinates`."""

    predictive: PredictiveForm = "sampled"  # "auto": linearised for standardised targets, sampled for others
    mixes: ClassVar[bool] = False  # whether predictions can be mixed
    gain_samples: int = 10  # sampled networks over which `gain` averages gradients

    def __post_init__(self) -> None:
        super().__post_init__()
        kind = type(self).__name__
        if self.predictive in ("linearised", "mixed") and not self.over_weights:
            raise InputError(f'{kind} has no density over weights to linearise at; set predictive to "sampled"')
        if self.predictive == "mixed" and not self.mixes:
            raise InputError(f'{kind} has no damping to make up for; set predictive to "linearised" or "sampled"')

    @abstractmethod
    def gaussian(self, state: State) -> Density:
        """Return (mean, P, scale) of q = N(mean, scale * P^-1); the mean is a tuple of [R, I, O]."""

    @property
    def linearises(self) -> bool:
        """Whether predictions are those of the network linearised at the mean, see the module docstring."""
        return self.predictive == "linearised" or (self.predictive == "auto" and self.likelihood.scaling == "affine")

    @property
    def over_weights(self) -> bool:
        """Whether the coordinates are the weights themselves."""
        return True

    @property
    def coordinates(self) -> tuple[tuple[int, int], ...]:
        return self.net.shapes

    def sample(self, state: State, n: int, rng: Rng) -> tuple[Layer, ...]:
        return self.layers(state, self.sample_coordinates(state, n, rng))

    def at_mean(self, state: State) -> tuple[Layer, ...]:
        """Return the layers of the network at the mean weights, with S = 1."""
        if not self.over_weights:
            raise InputError(f"{type(self).__name__} has no mean weights: its density is not over weights")
        return self.layers(state, [m.unsqueeze(1) for m in self.completed(state, self.gaussian(state)[0])])

    def completed(self, state: State, mean: Means) -> Means:
        """Return the mean weights of all layers, given those of the layers that the density is of."""
        return mean

    def functions(self, state: State, n: int, rng: Rng) -> tuple[Any, tuple[Any, ...], Noise]:
        if not self.linearises:
            return super().functions(state, n, rng)
        density = self.gaussian(state)
        changes = drawn(centred(density), n, rng)
        functions = Functions.around(self.completed(state, density[0]), self.layers(state, (), n), changes)
        return LinearisedNet(self.net), (functions,), self.likelihood.sample_noise(state.common.noise, n, rng)

    def gradients(self, state: State, batch: Batch, rng: Rng) -> tuple[Factor, tuple[Taps, ...]]:
        """Return P, and for each of its blocks the log-likelihood taps of all examples, at the mean or at samples."""
        _, precision, _ = self.gaussian(state)
        if self.linearises:
            layers, noise = self.at_mean(state), self.expected_noise(state)
        else:
            layers, noise = self.joint_sample(state, self.gain_samples, rng)
        out, pullback = self.net.forward(layers, batch.x, last=len(self.coordinates))
        return precision, pullback(self.likelihood.score(noise, out, batch.y.unsqueeze(1)))

    @property
    def dimension(self) -> int:
        return sum(i * o for i, o in self.coordinates)

    def sample_coordinates(self, state: State, n: int, rng: Rng) -> Weights:
        return drawn(self.gaussian(state), n, rng)

    def kl_prior(self, state: State) -> Float[Tensor, " R"]:
        mean, precision, scale = self.gaussian(state)
        total = precision.logdet() - self.dimension * (1 + math.log(scale))
        for v, m, rows in zip(precision.variance(), mean, self.variances(state), strict=True):
            eta = rows if isinstance(rows, Tensor) else m.new_full((), rows)
            squares = (scale * v.reshape(m.shape) + m.square()).sum(2, keepdim=True)
            total = total + (squares / eta + m.shape[2] * eta.log()).sum((1, 2))
        return 0.5 * total

    def effective_rank(self, state: State) -> Float[Tensor, " R"]:
        """Return W - tr(Lambda_0 Lambda^-1), the number of well-determined parameters (MacKay 1992).

        Lambda is the posterior precision of the W coordinates, and Lambda_0 the prior precision.
        """
        mean, precision, scale = self.gaussian(state)
        pairs = zip(self.variances(state), precision.variance(), strict=True)
        shares = torch.stack([(v.double() / eta).sum((1, 2)) for eta, v in pairs])
        return (self.dimension - scale * shares.sum(0)).to(mean[0])

    def gain(self, state: State, batch: Batch, rng: Rng) -> Float[Tensor, "R B"]:
        """Return KL(q' || q) to order rho^2 for a step per example: dmu = rho Sigma E[g], dLambda = rho E[g g^T]."""
        _, _, scale = self.gaussian(state)
        precision, taps = self.gradients(state, batch, rng)
        # |dmu|^2 / 2 in the norm of Lambda, and tr[(Sigma dLambda)^2] / 4, with Sigma = scale * P^-1.
        mean = 0.5 * self.gain_step**2 * scale * precision.quad(taps)
        return mean + 0.25 * (self.gain_step * scale) ** 2 * precision.curvature(taps)


class Functions(NamedTuple):
    """S linear functions of the weights, around k mean weights M (one for each member of a mixture)."""

    mean: tuple[Float[Tensor, "R k _I _O"], ...]  # M
    fixed: tuple[Float[Tensor, "R k ..."], ...]  # batch norm and point estimates
    changes: tuple[Float[Tensor, "R k e _I _O"], ...]  # w - M of e functions per member, of some last layers
    weights: tuple[Float[Tensor, "R k e _I _O"], ...] = ()  # networks to which J(x) (w - M) is added; empty: at M
    chosen: Int[Tensor, "R S"] | None = None  # which of the k e functions to use; None: all

    @staticmethod
    def around(mean: Means, fixed: Sequence[Tensor], changes: Weights, weights: Weights = ()) -> Functions:
        """Return functions around one mean M, from tensors [R, I, O], [R, 1, ...] and [R, S, I, O]."""
        mean, changes, weights = (tuple(t.unsqueeze(1) for t in each) for each in (mean, changes, weights))
        return Functions(mean, tuple(fixed), changes, weights)

    @property
    def samples(self) -> int:
        return self.changes[0].shape[1:3].numel() if self.chosen is None else self.chosen.shape[1]


class LinearisedNet(NamedTuple):
    """A network whose only layer is `Functions`, in place of a `Net` in predictions."""

    net: Network

    @property
    def width(self) -> int:
        """Values per example and function that the last output needed, as for a `Net`."""
        return self.net.width

    def output(self, layers: Sequence[Any], x: Tensor) -> Float[Tensor, "R S B O"]:
        """Return the values of the functions at x [R, B, ...]."""
        functions: Functions = layers[0]
        members = functions.mean[0].shape[1]
        flat: Functions = tree.map_tensors(lambda t: t.flatten(0, 1), functions._replace(chosen=None))
        with torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext():  # for the Jacobian
            flat, x = tree.map_tensors(lambda t: t.clone() if t.is_inference() else t, (flat, x))
            x = x.repeat_interleave(members, 0)
            means = tuple(m.unsqueeze(1) for m in (*flat.mean, *flat.fixed))
            out, rows = at_mean(self.net, means, x, len(flat.changes))
            of_layers = zip(zip(*rows, strict=True), flat.changes, strict=True)
            change = added([along(taps, change) for taps, change in of_layers])  # J(x) (w - M)
            base = out.unsqueeze(1)  # f(x; M)
            if flat.weights:
                base = self.net.output((*flat.weights, *(v.unsqueeze(1) for v in flat.fixed)), x)
        every = (base + change).unflatten(0, (-1, members)).flatten(1, 2)
        if functions.chosen is None:
            return every
        return every[torch.arange(len(every), device=x.device).unsqueeze(1), functions.chosen]


def at_mean(
    net: Network, means: Layers, x: Tensor, last: int = 0
) -> tuple[Float[Tensor, "R B O"], list[tuple[Taps, ...]]]:
    """Return f(x; M) and, for each output, the taps of its Jacobian; `means` are layers [R, 1, I, O].

    If `last` is not 0, the Jacobian is with respect to so many last layers.
    """
    out, pullback = net.forward(means, x, last=last)
    return out.squeeze(1), [pullback(row.expand_as(out)) for row in identity(out.shape[-1], out)]


def along(rows: Sequence[Taps], change: Float[Tensor, "R e I H"]) -> Float[Tensor, "R e B O"]:
    """Return derivatives of the outputs along weight changes of one layer, from its taps for each of the O outputs."""
    samples, positions = change.shape[1], rows[0].grads.shape[3]
    if len(rows) * (positions + samples) <= 2 * positions * samples:  # then per-example gradients are cheaper
        return torch.stack([change.flatten(2) @ sample_gradients(t).squeeze(1).flatten(2).mT for t in rows], -1)
    moved = rows[0].inputs.flatten(1, 3).unsqueeze(1) @ change  # [R, e, (B T), H]
    moved = moved.unflatten(2, (-1, positions)).transpose(1, 2).flatten(3)  # [R, B, e, (T H)]
    grads = torch.stack([t.grads.squeeze(1).flatten(2) for t in rows], -1)  # [R, B, (T H), O]
    return (moved @ grads).transpose(1, 2)
