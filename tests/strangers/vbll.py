"""Variational Bayesian last layers (VBLL): a Gaussian over the last layer, trained together with its features.

Harrison, Willes, Snoek: Variational Bayesian Last Layers (2024), Theorem 1, for regression with independent outputs o:

    y_o = w_o . phi(x) + e,    e ~ N(0, 1/tau_o),    q(w_o) = N(m_o, S_o),    S_o = R_o^T R_o,    p(w_o) = N(0, eta I)
    ELBO = sum_t sum_o [log N(y_to | m_o . phi_t, 1/tau_o) - tau_o phi_t^T S_o phi_t / 2] - sum_o KL(q(w_o) || p(w_o))
    q(y_o | x) = N(m_o . phi, phi^T S_o phi + 1/tau_o)

phi are the inputs of the last layer, with the constant 1 if it has a bias; nothing may follow this layer. R_o is lower
triangular, with parameters R_ij, i > j, and log R_ii. Adam maximises ELBO - |V|^2 / (2 eta) over m, R and the weights V
of the features. The likelihood learns tau.

Nothing is sampled in training. Since log N(y | f, 1/tau) is quadratic in f, the term in brackets is its mean over the
two outputs f = m . phi +- |R phi|. Training passes have these S = 2 outputs, from which the noise is learnt, too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from explore.core.context import Turn, numbers
from explore.core.errors import InputError
from explore.core.rng import Rng
from explore.core.shapes import Batch, Info, Means
from explore.execution import parallel
from explore.inference.base import Common, common
from explore.inference.gaussian import GaussianPosterior
from explore.inference.structures.dense import DenseFactor
from explore.inference.updates import adam
from explore.inference.updates.steps import end_update, train_pass
from explore.nets.likelihoods import Gaussian
from explore.nets.protocols import Layer


class VBLLState(NamedTuple):
    """The state of `VBLL`."""

    common: Common
    weights: Means  # V, and m as the last
    root: Float[Tensor, "R O I I"]  # R, with the logarithm of its diagonal
    moving: adam.Moving  # Adam's averages, of all of these


class TwoPoints:
    """The last layer in training: a . m + |R a| in the first of two samples, and a . m - |R a| in the second."""

    samples = 2

    def __init__(self, mean: Float[Tensor, "R I O"], root: Float[Tensor, "R O I I"]):
        self.mean, self.root = mean, root

    def __call__(self, a: Float[Tensor, "R 2 B T I"]) -> Float[Tensor, "R 2 B T O"]:
        if a.shape[3] != 1:
            raise InputError(f"VBLL needs a last layer that is applied once per example, not {a.shape[3]} times")
        sign = a.new_tensor([1.0, -1.0])[:, None, None, None]
        return torch.einsum("rsbti,rio->rsbto", a, self.mean) + sign * _deviation(self.root, a)


@dataclass(frozen=True, kw_only=True)
class VBLL(GaussianPosterior):
    """A variational last layer on learnt features; its density is over the last layer only."""

    epochs: int = 200
    lr: float = 0.01  # Adam's initial learning rate; cosine decay to 0

    classifies: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.likelihood, Gaussian) or self.likelihood.outputs_per_target != 1:
            raise InputError(f"VBLL needs the likelihood Gaussian; got {type(self.likelihood).__name__}")
        if self.net.convolutions[-1]:
            raise InputError("VBLL needs a Linear layer at the end of the network, not one of the convolutions")

    @property
    def coordinates(self) -> tuple[tuple[int, int], ...]:
        return self.net.shapes[-1:]

    def init(self, n_data: float, replicas: int, rng: Rng) -> VBLLState:
        shared, weights = common(self, n_data, replicas, rng), self.net.initial(replicas, rng)
        inputs, outputs = self.net.shapes[-1]
        start = 0.5 * math.log(
            self.prior_variance / inputs
        )  # first predictions vary about as much as the prior of one weight
        root = start * torch.eye(inputs).to(weights[0]).repeat(replicas, outputs, 1, 1)
        return VBLLState(shared, weights, root, adam.start((*weights, root)))

    def turn(self, step: int, progress: float) -> Turn:
        return Turn((), adam.rates(self.lr * adam.cosine(progress), step))

    def update(self, state: VBLLState, batch: Batch, rng: Rng, progress: float = 0.0) -> tuple[VBLLState, Info]:
        rates, root = numbers(self.turn(int(state.common.step) + 1, progress)), _root(state)
        noise = self.likelihood.expected(state.common.noise)
        pairs = tuple(w.unsqueeze(1).expand(-1, 2, -1, -1) for w in state.weights)
        seen = train_pass(self, state, (*pairs[:-1], TwoPoints(state.weights[-1], root)), noise, batch)

        decay = self.kl_weight / (float(state.common.n_data) * self.prior_variance)
        gradients = tuple(g.mean(1) for g in adam.loss_gradients(seen.taps, pairs, decay))
        a, g = seen.taps[-1].inputs[:, :1], seen.taps[-1].grads  # [R, 1, B, 1, I], [R, 2, B, 1, O]
        slope = (g[:, :1] - g[:, 1:]) / (2 * _deviation(root, a))  # -tau
        second = parallel.mean(torch.einsum("rsbto,rsbti,rsbtj->roij", slope, a, a) / a.shape[2])
        diagonal = root.diagonal(dim1=2, dim2=3)
        step = (decay * root - root @ second).tril() - torch.diag_embed(decay * self.prior_variance / diagonal)
        step = step + torch.diag_embed(step.diagonal(dim1=2, dim2=3) * (diagonal - 1))  # d R_ii = R_ii d log R_ii

        parameters, moving = adam.descend((*state.weights, state.root), (*gradients, step), state.moving, rates)
        new = VBLLState(state.common, parameters[:-1], parameters[-1], moving)
        return end_update(self, seen, new, state, self.kl_weight)

    def sample(self, state: VBLLState, n: int, rng: Rng) -> tuple[Layer, ...]:
        features = (w.unsqueeze(1).expand(-1, n, -1, -1) for w in state.weights[:-1])
        return self.layers(state, (*features, *self.sample_coordinates(state, n, rng)))

    def completed(self, state: VBLLState, mean: Means) -> Means:
        return *state.weights[:-1], *mean

    def gaussian(self, state: VBLLState) -> tuple[Means, DenseFactor, float]:
        """The mean m, the precision of all outputs' weights, and the scale 1."""
        root = _root(state)
        rows = torch.einsum("roij,op->riojp", root, torch.eye(root.shape[1]).to(root)).flatten(1, 2)  # [R, W, I, O]
        return state.weights[-1:], DenseFactor((rows,)), 1.0


def _root(state: VBLLState) -> Float[Tensor, "R O I I"]:
    diagonal = state.root.diagonal(dim1=2, dim2=3)
    return state.root.tril(-1) + torch.diag_embed(diagonal.exp())


def _deviation(root: Float[Tensor, "R O I I"], a: Float[Tensor, "R S B T I"]) -> Float[Tensor, "R S B T O"]:
    """Return |R a|. Without a bias, it is 0 for inputs of 0, where its gradient is not finite."""
    return torch.einsum("roij,rsbtj->rsbtoi", root, a).square().sum(5).clamp_min(1e-20).sqrt()


PRESETS: dict[str, dict[str, object]] = {"default": {}}

CONTRACT: dict[str, object] = {
    "refuses": ("Heteroscedastic", "Categorical", "Bernoulli"),
    "linear": [],  # Adam's steps do not end
}
