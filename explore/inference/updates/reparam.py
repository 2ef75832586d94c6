"""Variational posteriors over coordinates that weights are made of, fitted by Adam on the bound through samples.

A `Form` makes the weights of one layer from coordinates z with a Gaussian density q, and from point estimates:

    minimise  -E_q[log p(y | x, W(z))] + (lambda / N) KL(q(z) || N(0, eta))          per example, with Adam

KL and gain are those of q(z) and ignore the point estimates.
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
from explore.core.context import Number, Turn, numbers
from explore.core.errors import InputError
from explore.core.rng import Rng
from explore.core.shapes import Batch, Info, Means, NormTaps, Taps
from explore.execution import parallel
from explore.inference.base import Common, common
from explore.inference.gaussian import GaussianPosterior
from explore.inference.structures.base import Blocks, Diagonal, Factor
from explore.inference.updates import adam
from explore.inference.updates.noisy_layers import Local, Own
from explore.inference.updates.steps import advance, settle
from explore.nets.protocols import Layer

Tensors = tuple[Tensor, ...]
TABLE: dict[str, object] = {"epochs": 200, "batch_size": 32, "samples": 2, "lr": 0.01, "initial_std": 0.001}
"""Part of the preset `default`: experiments/table_defaults/others.py. With larger deviations, training drops hidden
units before they have learnt anything."""
SMALL: dict[str, object] = {"batch_size": 30, "samples": 5, "prior_variance": 0.3, "kl_weight": 0.35}
"""The preset `small`, and of most `hundreds`: experiments/table_defaults/few.py."""
EXCESS_SAMPLES = 1000  # for the part of the KL that has no closed form


class Form(ABC):
    """The construction of one layer from coordinates and point estimates."""

    coordinates: tuple[tuple[int, int], ...]  # (I, O) of each tensor of coordinates
    fresh: ClassVar[bool] = True  # whether coordinates for every example are small beside the layer's output
    excess_samples: int = 0  # samples that say by how much the KL exceeds the Gaussian's; 0: it does not

    @abstractmethod
    def init(self, replicas: int, std: float, rng: Rng) -> tuple[Tensors, Tensors, Tensors]:
        """Return means [R, I, O], spreads and point estimates; deviations are softplus(spread), or see `Triangular`."""

    @abstractmethod
    def build(self, z: Tensors, points: Tensors, lead: tuple[int, ...], rng: Rng) -> tuple[Layer, Tensor]:
        """Return the layer of coordinates z [R, S, (B,) I, O], and samples [R, ...] of its KL minus the Gaussian's."""


class Factorised(Form):
    """W [I, O] is Gaussian with independent entries, the bias being its last row."""

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
    """The block of one tensor of coordinates with the full covariance L L^T."""

    root_: Float[Tensor, "R n n"]  # L

    @classmethod
    def of(cls, spread: Float[Tensor, "R n n"]) -> Triangular:
        """Return L with the diagonal softplus(spread) and the spread's entries below it."""
        return cls(spread.tril(-1) + torch.diag_embed(F.softplus(spread.diagonal(dim1=1, dim2=2))))

    def solve(self, v: Tensor) -> Tensor:
        return (v.flatten(2) @ self.root_ @ self.root_.mT).view_as(v)

    def multiply(self, v: Tensor) -> Tensor:
        return torch.cholesky_solve(v.flatten(2).mT, self.root_).mT.reshape(v.shape)

    def root(self, eps: Tensor) -> Tensor:
        return (eps.flatten(2) @ self.root_.mT).view_as(eps)

    def logdet(self) -> Float[Tensor, " R"]:
        return -2 * self.root_.diagonal(dim1=1, dim2=2).log().sum(1)

    def variance(self) -> Tensor:
        return self.root_.square().sum(2).unsqueeze(1)

    def trace(self, new: Triangular) -> Float[Tensor, " R"]:
        return torch.linalg.solve_triangular(self.root_, new.root_, upper=False).square().sum((1, 2))

    def quad(self, taps: Taps) -> Float[Tensor, "R B"]:
        return self._white(taps).mean(1).square().sum(2)

    def curvature(self, taps: Taps) -> Float[Tensor, "R B"]:
        white = self._white(taps).transpose(1, 2)
        return (white @ white.mT).square().mean((2, 3))

    def eigenvalues(self) -> Float[Tensor, "R n"]:
        return 1 / torch.linalg.svdvals(self.root_).square()

    def dense(self) -> Float[Tensor, "R n n"]:
        return torch.cholesky_inverse(self.root_)

    def _white(self, taps: Taps) -> Float[Tensor, "R S B n"]:
        """L^T g, where T and I are 1."""
        return torch.einsum("rsbn,rnm->rsbm", (taps.inputs * taps.grads).squeeze(3), self.root_)


class ReparamState(NamedTuple):
    """The state of a `Reparameterised` posterior; for each layer a tuple of tensors."""

    common: Common
    mean: tuple[Tensors, ...]
    spread: tuple[Tensors, ...]
    points: tuple[Tensors, ...]
    moving: adam.Moving


@dataclass(frozen=True, kw_only=True)
class Reparameterised(GaussianPosterior):
    """A Gaussian over coordinates that weights are made of.

    `reparameterisation` says where coordinates are drawn in training. "auto": for every example; "weights": for every
    sample; "local": also for every position of a Gaussian layer, which makes learnt deviations too large.
    """

    samples: int = 10  # S, samples a step
    lr: float = 0.01  # of Adam at the start
    schedule: Literal["cosine", "power"] = "cosine"  # of lr: to 0 along half a cosine, or (1 + 5e-4 t)^-0.3
    initial_std: float = 0.05  # of the coordinates
    reparameterisation: Literal["auto", "local", "weights"] = "auto"
    noise_start: int = 0  # steps before the likelihood's noise is learnt

    ranges: ClassVar[dict[str, str]] = {"noise_start": "[0, inf)"}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.net.trained and not self.over_weights:
            raise InputError(f"{type(self).__name__} cannot start from a module's weights; leave out trained=True")

    @property
    @abstractmethod
    def forms(self) -> tuple[Form, ...]:
        """One for each layer."""

    @property
    def over_weights(self) -> bool:
        return all(isinstance(form, Factorised) for form in self.forms)

    @cached_property
    def coordinates(self) -> tuple[tuple[int, int], ...]:
        return tuple(shape for form in self.forms for shape in form.coordinates)

    def init(self, n_data: float, replicas: int, rng: Rng) -> ReparamState:
        shared = common(self, n_data, replicas, rng)
        mean, spread, points = zip(*(form.init(replicas, self.initial_std, rng) for form in self.forms), strict=True)
        if self.net.trained:
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
            if self.reparameterisation == "weights":
                z = self.sample_coordinates(differentiable, self.samples, parallel.apart(rng, step, 1))
            lead = lead if z else (*lead, batch.x.shape[1])
            built, excess = self._build(differentiable, lead, parallel.apart(rng, step, 2), z)
            layers = self.layers(state, built, self.samples)
            norms = tuple(v.detach().requires_grad_() for v in layers[len(built) :] if isinstance(v, Tensor))
            out, statistics = self.net.train_output((*built, *norms), batch.x, samples=self.samples)
            nll = -self.likelihood.log_prob(noise, out, y).mean((1, 2))
            loss = nll + (self.kl_weight / n_data) * (super().kl_prior(differentiable) + excess)
            gradients = torch.autograd.grad(loss.sum(), (*free, *norms))  # replicas do not meet: each gets its own

        size, floor = numbers(self.turn(step, progress))
        values, moving = adam.descend(old, parallel.mean(gradients[: len(old)]), state.moving, (size, floor))
        count = out.shape[1] * out.shape[2]
        taps = tuple(NormTaps(s, -count * g[:, :, :2]) for s, g in zip(statistics, gradients[len(old) :], strict=True))
        shared = advance(shared, self, out.detach(), y, taps, self.kl_weight)
        if step <= self.noise_start:
            shared = shared._replace(noise=state.common.noise)
        new = _with(state, values)._replace(common=shared, moving=moving)
        return settle(new, state), {"nll": parallel.mean(nll.detach())}

    def turn(self, step: int, progress: float) -> Turn:
        lr = self.lr * (adam.cosine(progress) if self.schedule == "cosine" else (1 + 5e-4 * step) ** -0.3)
        return Turn((step <= self.noise_start,), adam.rates(lr, step))

    def sample(self, state: ReparamState, n: int, rng: Rng) -> tuple[Layer, ...]:
        z = self.sample_coordinates(state, n, rng)
        return self.layers(state, self._build(state, (len(state.common.alive), n), rng, z)[0])

    def gaussian(self, state: ReparamState) -> tuple[Means, Blocks, Number]:
        mean, spread = sum(state.mean, ()), sum(state.spread, ())
        return mean, Blocks(tuple(map(_block, mean, spread))), 1.0

    def kl_prior(self, state: ReparamState) -> Float[Tensor, " R"]:
        # The same numbers at every call: the estimate is a function of the state, as its closed-form part is.
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
            # A copy of the same draw for each example, so that each gets its own gradient.
            n = batch.x.shape[1]
            copies = tuple(z.unsqueeze(2).expand(-1, -1, n, -1, -1).detach().requires_grad_() for z in drawn)
            layers, _ = self._build(state, (len(state.common.alive), self.gain_samples), rng, copies)
            layers = self.layers(state, layers, self.gain_samples)
            out = self.net.output(layers, batch.x, samples=self.gain_samples)
            log_prob = self.likelihood.log_prob(noise, out, batch.y.unsqueeze(1))
            gradients = torch.autograd.grad(log_prob.sum(), copies)
        # As if each tensor of coordinates were the weights of a layer whose one input is 1.
        one = torch.ones_like(out[:, :1, :, :1]).unsqueeze(4)
        rows = [(m.flatten(1).unsqueeze(1), s) for m, s in zip(sum(state.mean, ()), sum(state.spread, ()), strict=True)]
        flat = [_block(m, s.view_as(m) if s.numel() == m.numel() else s) for m, s in rows]
        return Blocks(tuple(flat)), tuple(Taps(one, g.flatten(3).unsqueeze(3)) for g in gradients)

    def _build(
        self, state: ReparamState, lead: tuple[int, ...], rng: Rng, coordinates: Tensors | None = None
    ) -> tuple[tuple[Layer, ...], Float[Tensor, " R"] | float]:
        """Return the layers and the excess of the KL, at coordinates, or with new ones of shape `lead` + [I, O]."""
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


def glorot(replicas: int, shape: tuple[int, int], layer: tuple[int, int], rng: Rng) -> Tensor:
    """Draw Glorot's uniform start for a layer [I, O], [R, *shape]."""
    return (2 * rng.uniform(replicas, *shape) - 1) * math.sqrt(6 / sum(layer))


def spread_of(mean: Tensor, std: float, full: bool = False) -> Tensor:
    """Return the spread of coordinates with this mean and equal deviations; in full, [R, I O, I O]."""
    spread = torch.full_like(mean, std).expm1().log()
    return torch.diag_embed(spread.flatten(1)) if full else spread


def _block(mean: Tensor, spread: Tensor) -> Diagonal | Triangular:
    return Diagonal(F.softplus(spread) ** -2) if spread.shape == mean.shape else Triangular.of(spread)


def _sample_of(mean: Tensor, spread: Tensor, counts: tuple[int, ...], rng: Rng) -> Tensor:
    """Draw coordinates, [R, *counts, I, O]."""
    normal = rng.normal(len(mean), *counts, *mean.shape[1:]).flatten(1, len(counts))
    return (mean.unsqueeze(1) + _block(mean, spread).root(normal)).unflatten(1, counts)


def _with(state: ReparamState, values: Tensors) -> ReparamState:
    """Return the state with these values for means, spreads and point estimates, in the order of `tree.leaves`."""
    remaining = iter(values)
    parameters = (state.mean, state.spread, state.points)
    mean, spread, points = tree.map_tensors(lambda _: next(remaining), parameters)
    return state._replace(mean=mean, spread=spread, points=points)
