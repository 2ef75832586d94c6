"""Variational posteriors over coordinates z that parameterise the weights, fitted by Adam with reparameterised samples.

A `Form` builds the weights of one layer from coordinates z with a Gaussian density q(z), and from point estimates.
Training solves

    minimise  -E_q[log p(y | x, W(z))] + (lambda / N) KL(q(z) || N(0, eta))          per example, with Adam

with the KL weight lambda, N examples and the prior variance eta. KL and gain are computed for q(z) and ignore the
point estimates.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from explore.core import tree
from explore.core.context import Turn, numbers
from explore.core.errors import InputError
from explore.core.rng import Rng
from explore.core.shapes import Batch, Info, LayerTaps, Means, NormTaps, Taps
from explore.execution import parallel
from explore.inference.base import Common, common
from explore.inference.gaussian import GaussianPosterior
from explore.inference.structures.base import Blocks, Diagonal, Factor
from explore.inference.updates import adam
from explore.inference.updates.noisy_layers import Local, Own
from explore.inference.updates.steps import advance, settle, training_weights
from explore.nets.protocols import Layer, Network, Noise

Tensors = tuple[Tensor, ...]
TABLE: dict[str, object] = {"epochs": 200, "batch_size": 32, "samples": 2, "lr": 0.01, "initial_std": 0.001}
"""Part of the preset `default`: experiments/table_defaults/others.py. With a larger initial standard deviation,
training prunes hidden units before they have learned anything."""
SMALL: dict[str, object] = {"batch_size": 30, "samples": 5, "prior_variance": 0.3, "kl_weight": 0.35}
"""The preset `small`, and `hundreds` of most posteriors: experiments/table_defaults/few.py."""
EXCESS_SAMPLES = 1000  # to estimate the part of the KL that has no closed form


class Form(ABC):
    """A construction of one layer from coordinates and point estimates."""

    coordinates: tuple[tuple[int, int], ...]  # (I, O) of each coordinate tensor
    fresh: ClassVar[bool] = True  # whether separate coordinates per example are small compared to the layer's output
    excess_samples: int = 0  # samples to estimate the excess of the KL over that of the Gaussian; 0: no excess

    @abstractmethod
    def init(self, replicas: int, std: float, rng: Rng) -> tuple[Tensors, Tensors, Tensors]:
        """Return initial means [R, I, O], spreads (std = softplus(spread), or see `Triangular`) and point estimates."""

    @abstractmethod
    def build(self, z: Tensors, points: Tensors, lead: tuple[int, ...], rng: Rng) -> tuple[Layer, Tensor]:
        """Build the layer from coordinates z [R, S, (B,) I, O] and point estimates; `lead` is (R, S) or (R, S, B).

        Also return samples [R, ...] of the excess KL: the layer's KL to the prior minus the KL of q(z). The excess is 0
        for a Gaussian layer.
        """


class Factorised(Form):
    """A weight matrix W [I, O] with independent Gaussian entries; the bias is its last row."""

    fresh = False

    def __init__(self, inputs: int, outputs: int):
        self.coordinates = ((inputs, outputs),)

    def init(self, replicas: int, std: float, rng: Rng) -> tuple[Tensors, Tensors, Tensors]:
        (shape,) = self.coordinates
        mean = glorot(replicas, shape, shape, rng)
        return (mean,), (spread_of(mean, std),), ()

    def build(self, z: Tensors, points: Tensors, lead: tuple[int, ...], rng: Rng) -> tuple[Layer, Tensor]:
        (w,) = z
        return (w if w.dim() == 4 else Own(w)), w.new_zeros(len(w), 1)


class Triangular(NamedTuple):
    """A block of `Blocks`: the Gaussian over one coordinate tensor, with full covariance L L^T, L lower triangular."""

    root_: Float[Tensor, "R n n"]  # L

    @classmethod
    def of(cls, spread: Float[Tensor, "R n n"]) -> Triangular:
        """Build L from `spread`: softplus of its diagonal, and its entries below the diagonal."""
        return cls(spread.tril(-1) + torch.diag_embed(F.softplus(spread.diagonal(dim1=1, dim2=2))))

    def solve(self, v: Tensor) -> Tensor:
        return (v.flatten(2) @ self.root_ @ self.root_.mT).view_as(v)

    def root(self, eps: Tensor) -> Tensor:
        return (eps.flatten(2) @ self.root_.mT).view_as(eps)

    def logdet(self) -> Float[Tensor, " R"]:
        return -2 * self.root_.diagonal(dim1=1, dim2=2).log().sum(1)

    def variance(self) -> Tensor:
        return self.root_.square().sum(2).unsqueeze(1)

    def quad(self, taps: Taps) -> Float[Tensor, "R B"]:
        return self._white(taps).mean(1).square().sum(2)

    def curvature(self, taps: Taps) -> Float[Tensor, "R B"]:
        white = self._white(taps).transpose(1, 2)
        return (white @ white.mT).square().mean((2, 3))

    def _white(self, taps: Taps) -> Float[Tensor, "R S B n"]:
        """Return L^T g for the gradient g of each example; axes T and I of the taps have length 1 here."""
        return torch.einsum("rsbn,rnm->rsbm", (taps.inputs * taps.grads).squeeze(3), self.root_)


class ReparamState(NamedTuple):
    """The state of a `Reparameterised` posterior, with a tuple of tensors per layer."""

    common: Common
    mean: tuple[Tensors, ...]
    spread: tuple[Tensors, ...]
    points: tuple[Tensors, ...]
    moving: adam.Moving


@dataclass(frozen=True, kw_only=True)
class Reparameterised(GaussianPosterior):
    """A Gaussian posterior over coordinates that parameterise the weights.

    `reparameterisation` sets how coordinates are drawn in training. "auto": per example; "weights": per sample;
    "local": per example, but per position in Gaussian layers, which makes fitted standard deviations too large.
    """

    samples: int = 10  # S, samples per step
    lr: float = 0.01  # Adam's initial learning rate
    schedule: Literal["cosine", "power"] = "cosine"  # of lr: cosine decay to 0, or (1 + 5e-4 t)^-0.3
    initial_std: float = 0.05  # of the coordinates
    reparameterisation: Literal["auto", "local", "weights"] = "auto"
    noise_start: int = 0  # steps before the noise of the likelihood is updated

    ranges: ClassVar[dict[str, str]] = {"noise_start": "[0, inf)"}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.net.trained and not self.over_weights:
            raise InputError(f"{type(self).__name__} cannot start from a module's weights; leave out trained=True")

    @property
    @abstractmethod
    def forms(self) -> tuple[Form, ...]:
        """The `Form` of each layer."""

    @property
    def over_weights(self) -> bool:
        return all(isinstance(form, Factorised) for form in self.forms)

    @cached_property
    def coordinates(self) -> tuple[tuple[int, int], ...]:
        return tuple(shape for form in self.forms for shape in form.coordinates)

    def init(self, n_data: float, replicas: int, rng: Rng) -> ReparamState:
        shared = common(self, n_data, replicas, rng)
        mean, spread, points = zip(*(form.init(replicas, self.initial_std, rng) for form in self.forms), strict=True)
        if self.net.trained or any(self.net.entries):
            mean = tuple((w,) for w in self.net.initial(replicas, rng))
        parameters = tree.tensors((mean, spread, points))
        return ReparamState(shared, mean, spread, points, adam.start(tuple(parameters)))

    def update(self, state: ReparamState, batch: Batch, rng: Rng, progress: float = 0.0) -> tuple[ReparamState, Info]:
        shared, y = state.common, batch.y.unsqueeze(1)
        n_data, step = float(shared.n_data), int(shared.step) + 1
        noise = self.likelihood.sample_noise(shared.noise, self.samples, rng)

        with torch.enable_grad():
            old = tuple(tree.tensors((state.mean, state.spread, state.points)))
            free = tuple(t.detach().requires_grad_() for t in old)
            differentiable = _with(state, free)
            lead: tuple[int, ...] = (batch.x.shape[0], self.samples)
            z = None
            # "auto" draws per sample where a module runs for one sample at a time.
            if self.reparameterisation == "weights" or (self.reparameterisation == "auto" and self.net.apart):
                z = self.sample_coordinates(differentiable, self.samples, parallel.apart(rng, step, 1))
            lead = lead if z else (*lead, batch.x.shape[1])
            built, excess = self._build(differentiable, lead, parallel.apart(rng, step, 2), z)
            layers = self.layers(state, built, self.samples)
            fixed = tuple(v.detach().requires_grad_() for v in layers[len(built) :] if isinstance(v, Tensor))
            out, statistics = self.net.train_output((*built, *fixed), batch.x, samples=self.samples, seed=step)
            nll = -self.likelihood.log_prob(noise, self._weighted(noise, out), y).mean((1, 2))
            loss = nll + (self.kl_weight / n_data) * (super().kl_prior(differentiable) + excess)
            # Replicas are independent, so the sum is safe.
            gradients = torch.autograd.grad(loss.sum(), (*free, *fixed), allow_unused=True, materialize_grads=True)

        size, floor = numbers(self.turn(step, progress))
        values, moving = adam.descend(old, parallel.mean(gradients[: len(old)]), state.moving, (size, floor))
        count = out.shape[1] * out.shape[2]
        slopes, taps = [-count * g for g in gradients[len(old) :]], LayerTaps()
        taps.norms = tuple(NormTaps(s, g[:, :, :2]) for s, g in zip(statistics, slopes, strict=False))
        taps.points = tuple(slopes[len(statistics) :])
        shared = advance(shared, self, out.detach(), y, taps, self.kl_weight)
        if step <= self.noise_start:
            shared = shared._replace(noise=state.common.noise)
        new = _with(state, values)._replace(common=shared, moving=moving)
        return settle(new, state), {"nll": parallel.mean(nll.detach())}

    def _weighted(self, noise: Noise, out: Tensor) -> Tensor:
        """Return `out` with its gradient multiplied by the likelihood's training weights."""
        held = out.detach()
        weights = training_weights(self, noise, held)
        return out if weights is None else held + weights * (out - held)

    def turn(self, step: int, progress: float) -> Turn:
        lr = self.lr * (adam.cosine(progress) if self.schedule == "cosine" else (1 + 5e-4 * step) ** -0.3)
        return Turn((step <= self.noise_start,), adam.rates(lr, step))

    def sample(self, state: ReparamState, n: int, rng: Rng) -> tuple[Layer, ...]:
        z = self.sample_coordinates(state, n, rng)
        return self.layers(state, self._build(state, (len(state.common.alive), n), rng, z)[0])

    def gaussian(self, state: ReparamState) -> tuple[Means, Blocks, float]:
        mean, spread = sum(state.mean, ()), sum(state.spread, ())
        return mean, Blocks(tuple(map(_block, mean, spread))), 1.0

    def kl_prior(self, state: ReparamState) -> Float[Tensor, " R"]:
        # A fixed seed makes the estimate a deterministic function of the state, like its closed-form part.
        total, replicas = super().kl_prior(state), len(state.common.alive)
        rng = Rng(0, total.device, total.dtype)
        for form, mean, spread, points in zip(self.forms, state.mean, state.spread, state.points, strict=True):
            if form.excess_samples:
                z = tuple(_sample_of(m, s, (form.excess_samples,), rng) for m, s in zip(mean, spread, strict=True))
                total = total + form.build(z, points, (replicas, form.excess_samples), rng)[1].flatten(1).mean(1)
        return total

    def gradients(self, state: ReparamState, batch: Batch, rng: Rng) -> tuple[Factor, tuple[Taps, ...]]:
        if self.over_weights:
            return super().gradients(state, batch, rng)
        drawn = self.sample_coordinates(state, self.gain_samples, rng)
        noise = self.likelihood.sample_noise(state.common.noise, self.gain_samples, rng)
        with torch.enable_grad():
            # Copy each draw for every example, to get separate gradients per example.
            n = batch.x.shape[1]
            copies = tuple(z.unsqueeze(2).expand(-1, -1, n, -1, -1).detach().requires_grad_() for z in drawn)
            layers, _ = self._build(state, (len(state.common.alive), self.gain_samples), rng, copies)
            layers = self.layers(state, layers, self.gain_samples)
            out = self.net.output(layers, batch.x, samples=self.gain_samples)
            log_prob = self.likelihood.log_prob(noise, out, batch.y.unsqueeze(1))
            gradients = torch.autograd.grad(log_prob.sum(), copies)
        # Treat each coordinate tensor as the weights of a layer with a single input, 1.
        one = torch.ones_like(out[:, :1, :, :1]).unsqueeze(4)
        rows = [(m.flatten(1).unsqueeze(1), s) for m, s in zip(sum(state.mean, ()), sum(state.spread, ()), strict=True)]
        flat = [_block(m, s.view_as(m) if s.numel() == m.numel() else s) for m, s in rows]
        return Blocks(tuple(flat)), tuple(Taps(one, g.flatten(3).unsqueeze(3)) for g in gradients)

    def _build(
        self, state: ReparamState, lead: tuple[int, ...], rng: Rng, coordinates: Tensors | None = None
    ) -> tuple[tuple[Layer, ...], Float[Tensor, " R"] | float]:
        """Build layers from `coordinates`, or from new draws of shape [*lead, I, O]. Also return the excess KL."""
        remaining, layers = iter(coordinates or ()), list[Layer]()
        excess: Tensor | float = 0.0
        for form, mean, spread, points in zip(self.forms, state.mean, state.spread, state.points, strict=True):
            if coordinates is not None:
                z = tuple(next(remaining) for _ in form.coordinates)
            elif form.fresh:
                z = tuple(_sample_of(m, s, lead[1:], rng) for m, s in zip(mean, spread, strict=True))
            else:
                apart = self.reparameterisation == "local"
                layers.append(Local(mean[0], F.softplus(spread[0]), self.samples, rng, apart))
                continue
            layer, more = form.build(z, points, lead, rng)
            layers.append(layer)
            excess = excess + more.flatten(1).mean(1)
        return tuple(layers), excess


def check_weights(net: Network, name: str) -> None:
    """Raise InputError if a posterior over factors of weight matrices gets other parameters."""
    if any(net.entries):
        raise InputError(f"{name} supports weights of layers only; leave other parameters out by bayesian=")


def glorot(replicas: int, shape: tuple[int, int], layer: tuple[int, int], rng: Rng) -> Tensor:
    """Draw initial values [R, *shape] from the Glorot uniform distribution of a layer with shape (I, O)."""
    return (2 * rng.uniform(replicas, *shape) - 1) * math.sqrt(6 / sum(layer))


def spread_of(mean: Tensor, std: float, full: bool = False) -> Tensor:
    """Return the spread that gives all coordinates the standard deviation `std`; a matrix [R, I O, I O] if `full`."""
    spread = torch.full_like(mean, std).expm1().log()
    return torch.diag_embed(spread.flatten(1)) if full else spread


def _block(mean: Tensor, spread: Tensor) -> Diagonal | Triangular:
    return Diagonal(F.softplus(spread) ** -2) if spread.shape == mean.shape else Triangular.of(spread)


def _sample_of(mean: Tensor, spread: Tensor, counts: tuple[int, ...], rng: Rng) -> Tensor:
    """Draw coordinates [R, *counts, I, O]."""
    normal = rng.normal(len(mean), *counts, *mean.shape[1:]).flatten(1, len(counts))
    return (mean.unsqueeze(1) + _block(mean, spread).root(normal)).unflatten(1, counts)


def _with(state: ReparamState, values: Tensors) -> ReparamState:
    """Replace means, spreads and point estimates of the state by `values`, in the order of `tree.leaves`."""
    remaining = iter(values)
    mean, spread, points = tree.map_tensors(lambda _: next(remaining), (state.mean, state.spread, state.points))
    return state._replace(mean=mean, spread=spread, points=points)
