"""Laplace: a Gaussian around a trained network, from the curvature of the loss there.

MacKay: A Practical Bayesian Framework for Backpropagation Networks (1992); Ritter et al.: A Scalable Laplace
Approximation for Neural Networks (2018); Daxberger et al.: Laplace Redux (2021). For N examples, prior variance eta and
the MAP estimate M, which Adam finds,

    q(w) = N(M, (N F + I / eta)^-1),    F = E[J^T H J] over the data, in a structure

with the Jacobian J of the outputs at M and the Fisher information H of the outputs (`fisher`: exact, or from sampled
targets). A pass over the data after training (`finish`) computes F; until then F is 0. With `evidence`, eta of each
layer then maximises the evidence (equation 5 of Daxberger et al.),

    log p(D) = log p(D | M) - 1/2 sum_l [|M_l|^2 / eta_l + log |I + eta_l N F_l|]

Predictions are of the network linearised at M. With subset="last", all other layers are held at M.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from explore.core.linalg import least_on_grid
from explore.core.rng import Rng
from explore.core.shapes import Batch, Means, Weights
from explore.inference.base import Common, common
from explore.inference.gaussian import Density, GaussianPosterior, PredictiveForm
from explore.inference.structures.base import Blocks
from explore.inference.structures.curvature import Curvature, StructureName, structure
from explore.inference.structures.kronecker import WeightSharing
from explore.inference.updates import adam, steps
from explore.inference.updates.points import PointEstimate
from explore.nets.protocols import Layer

LEAST, MOST, ROUNDS = 1e-4, 1e2, 3  # of the search for the prior variance


class LaplaceState(NamedTuple):
    """The state of `Laplace`."""

    common: Common
    weights: Weights  # M of all layers, [R, 1, I, O]
    moving: adam.Moving
    curvature: Any  # F of the layers in `coordinates`
    eta: Float[Tensor, "R L"]  # the prior variance of each of these layers


@dataclass(frozen=True, kw_only=True)
class Laplace(PointEstimate, GaussianPosterior):
    """A Laplace approximation: MAP training, then a pass over the data that measures the curvature."""

    structure: StructureName = "kfac"  # of F; "kfac", "ekfac" and "diagonal" treat layers as independent
    subset: Literal["all", "last"] = "all"  # the layers with a distribution; the others stay at M
    evidence: bool = True  # whether `finish` sets the prior variances to the maximum of the evidence
    fisher: steps.Fisher = "exact"
    rank: int = 32  # of "low-rank"
    weight_sharing: WeightSharing = "auto"  # factors for layers with several positions, see `structures.kronecker`
    predictive: PredictiveForm = "linearised"

    @property
    def coordinates(self) -> tuple[tuple[int, int], ...]:
        return self.net.shapes if self.subset == "all" else self.net.shapes[-1:]

    @property
    def _structure(self) -> Curvature:
        return structure(self.structure, self.coordinates, self.rank, self.weight_sharing)

    def init(self, n_data: float, replicas: int, rng: Rng) -> LaplaceState:
        weights = self.net.initial(replicas, rng, 1)
        shared = common(self, n_data, replicas, rng)
        nothing = self._structure.nothing(replicas, rng)
        eta = torch.full_like(weights[0][:, 0, 0, :1], self.prior_variance).repeat(1, len(self.coordinates))
        return LaplaceState(shared, weights, adam.start(weights), nothing, eta)

    def finish(self, state: LaplaceState, batches: Iterable[Batch], rng: Rng) -> LaplaceState:
        """Measure F at M and, with `evidence`, set the prior variances to the maximum of the evidence."""
        kind = self._structure
        examples = batches if kind.passes == 1 else list(batches)
        replicas = len(state.common.alive)
        measured = kind.measured(lambda: self.curvature_taps(state, examples, rng), replicas, rng)
        state = state._replace(curvature=measured)
        if not self.evidence:
            return state
        eta = least_on_grid(lambda etas: self._occam(state, etas), state.eta, LEAST, MOST, ROUNDS)
        return state._replace(eta=eta)

    def gaussian(self, state: LaplaceState) -> Density:
        mean = tuple(w.squeeze(1) for w in state.weights[-len(self.coordinates) :])
        scale = self.kl_weight / float(state.common.n_data)
        return mean, self._structure.factor(state.curvature, (scale / state.eta).unbind(1)), scale

    def variances(self, state: LaplaceState) -> tuple[Float[Tensor, "R 1 1"], ...]:
        return tuple(eta[:, None, None] for eta in state.eta.unbind(1))

    def at_mean(self, state: LaplaceState) -> tuple[Layer, ...]:
        return self.layers(state, state.weights)  # without the factor of the density

    def completed(self, state: LaplaceState, mean: Means) -> Means:
        return *(w.squeeze(1) for w in state.weights[: -len(mean)]), *mean

    @property
    def tempering(self) -> float:
        return self.kl_weight

    def sample(self, state: LaplaceState, n: int, rng: Rng) -> tuple[Layer, ...]:
        drawn = self.sample_coordinates(state, n, rng)
        fixed = (w.expand(-1, n, -1, -1) for w in state.weights[: -len(drawn)])
        return self.layers(state, (*fixed, *drawn))

    def log_evidence(self, state: LaplaceState, batches: Iterable[Batch]) -> Float[Tensor, " R"]:
        """Return the Laplace approximation of log p(D), in nats, for the prior variance of the state."""
        layers, noise = self.at_mean(state), self.expected_noise(state)
        outputs = ((self.net.output(layers, x), y.unsqueeze(1)) for x, y in batches)
        fit = [self.likelihood.log_prob(noise, out, y).sum((1, 2)) for out, y in outputs]
        return torch.stack(fit).sum(0) - 0.5 * self._occam(state, state.eta).sum(1)

    def curvature_taps(self, state: LaplaceState, batches: Iterable[Batch], rng: Rng) -> Any:
        """Yield the number of examples of each batch, and the taps of which F is the mean outer product."""
        layers, noise, last = self.at_mean(state), self.expected_noise(state), len(self.coordinates)
        for x, y in batches:
            out, pullback = self.net.forward(layers, x, last=last)
            y = y.unsqueeze(1)
            taps = pullback(self.likelihood.score(noise, out, y))
            forward = steps.Pass(noise, out, y, out.new_zeros(len(out)), taps, pullback)
            yield x.shape[1], steps.fisher_taps(self.fisher, self.likelihood, forward, rng)

    def _occam(self, state: LaplaceState, etas: Float[Tensor, "R L"]) -> Float[Tensor, "R G"]:
        """Return |M|^2 / eta + log |I + eta N F| for prior variances eta; G = L if layers are independent, else 1."""
        n_data, mean = float(state.common.n_data), state.weights[-len(self.coordinates) :]
        factor = self._structure.factor(state.curvature, (1 / (n_data * etas)).unbind(1))
        squares = torch.stack([w.square().sum((1, 2, 3)) for w in mean], 1) / etas
        scales = (n_data * etas).log() * etas.new_tensor([w[0].numel() for w in mean])
        if isinstance(factor, Blocks):
            return squares + scales + torch.stack([block.logdet() for block in factor.blocks], 1)
        return (squares + scales).sum(1, keepdim=True) + factor.logdet().unsqueeze(1)


PRESETS: dict[str, dict[str, object]] = {"default": {"epochs": 200, "batch_size": 32, "lr": 0.003}, "small": {}}
