"""MAP estimates of S networks [R, S, I, O]: for each, Adam minimises -E[log p(y | x, W)] + |W|^2 / (2 N eta)."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from explore.core.context import Turn, numbers
from explore.core.rng import Rng
from explore.core.shapes import Batch, Info, State, Weights
from explore.inference.base import Common, Predictive, common
from explore.inference.updates import adam
from explore.inference.updates.steps import end_update, train_pass


class PointState(NamedTuple):
    """The state of a `PointEstimate`."""

    common: Common
    weights: Weights
    moving: adam.Moving


@dataclass(frozen=True, kw_only=True)
class PointEstimate(Predictive):
    """Point estimates: networks trained by gradient descent on the negative log posterior density (MAP)."""

    epochs: int = 200
    lr: float = 0.01  # Adam's initial learning rate; cosine decay to 0
    prior_variance: float = 1.0  # eta

    @property
    def nets(self) -> int:
        """The number of networks per replica."""
        return 1

    def init(self, n_data: float, replicas: int, rng: Rng) -> State:
        weights = self.net.initial(replicas, rng, self.nets)
        return PointState(common(self, n_data, replicas, rng, self.nets), weights, adam.start(weights))

    def turn(self, step: int, progress: float) -> Turn:
        return Turn((), adam.rates(self.lr * adam.cosine(progress), step))

    def update(self, state: State, batch: Batch, rng: Rng, progress: float = 0.0) -> tuple[State, Info]:
        noise, step = self.likelihood.expected(state.common.noise), int(state.common.step) + 1
        noisy = self.noisy_layers(state, batch, rng)
        forward = train_pass(self, state, noisy or state.weights, noise, batch)
        taps = tuple(layer.taps(t) for layer, t in zip(noisy, forward.taps, strict=True)) if noisy else forward.taps
        decay = self.tempering / (float(state.common.n_data) * self.prior_variance)
        gradients = adam.loss_gradients(taps, self.penalised(state.weights), decay)
        weights, moving = self.descend(state.weights, gradients, state.moving, numbers(self.turn(step, progress)))
        return end_update(self, forward, state._replace(weights=weights, moving=moving), state, self.tempering)

    @property
    def tempering(self) -> float:
        """The weight of the prior in training."""
        return 1.0

    def noisy_layers(self, state: State, batch: Batch, rng: Rng) -> tuple[Any, ...]:
        """Return random layers for training, such as `Masked`, or () to train the weights without noise."""
        return ()

    def penalised(self, weights: Weights) -> Weights:
        """Return W, the gradient of |W|^2 / 2; the caller divides by N eta, for N examples and prior variance eta."""
        return weights

    def descend(
        self, weights: Weights, gradients: Weights, moving: adam.Moving, rates: Any
    ) -> tuple[Weights, adam.Moving]:
        """Take one optimiser step against the gradients. Return the new weights and moving averages."""
        return adam.descend(weights, gradients, moving, rates)
