"""Tensor shapes and the few records that all packages share.

Letters of axes, in the order in which they appear in a shape:

    R  replicas: independent trials that are trained in parallel
    S  weight samples, or the members of an ensemble
    B  examples of a batch            P  points of a pool
    T  positions at which a layer is applied: pixels of a convolution, tokens of a shared dense layer, else 1
    C  channels of a batch normalisation
    I  inputs of a layer; if it has a bias, the last one is the constant 1
    O  outputs of a layer, or of the net
    W  all weights of a net, layer by layer, each [I, O] matrix row by row
    k  points acquired at once

So sampled weights are one [R, S, I, O] tensor per layer, and the net's output is [R, S, B, O].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from explore.core.linalg import averaged, over, product

Weights = tuple[Float[Tensor, "R S _I _O"], ...]
"""Sampled weights, one tensor per layer; the last row of each matrix is the bias."""

Means = tuple[Float[Tensor, "R _I _O"], ...]
"""One matrix per layer and replica: a mean, a gradient or a step."""

Info = dict[str, Tensor]
"""The values that an update logs: name -> [R]."""


class Batch(NamedTuple):
    """A batch of training examples; each replica has a different batch."""

    x: Float[Tensor, "R B ..."]  # images keep their axes
    y: Tensor  # [R, B, O] real targets, or [R, B] class indices


class Taps:
    """Inputs `a` and pre-activation gradients `g` of one layer; optional callables speed up products of `a` and `g`.

    Args:
        inputs: `a`, [R, S, B, T, I], with the constant 1 last; S is 1 if all samples have the same inputs. Or a
            function that maps a slice of examples to `a`: convolution patches are large, so each access recomputes `a`.
        grads: `g` = d log p(y | x, W) / d pre-activation, [R, S, B, T, O], per example, never averaged.
        weight_gradient: computes `gradients()` from (grads, True), and their sum over samples, [R, 1, I, O], from
            (grads, False).
        second_moment: computes E[a a^T], [R, I, I], for `average_inputs`.
        example_gradients: computes the sum over positions of `a g^T` for each example, [R, B, I, O]; requires S = 1.
        mean_inputs: computes `mean_inputs()`.
    """

    def __init__(
        self,
        inputs: Tensor | Callable[[slice], Tensor],
        grads: Float[Tensor, "R S B T O"],
        weight_gradient: Callable[[Tensor, bool], Tensor] | None = None,
        second_moment: Callable[[], Tensor] | None = None,
        example_gradients: Callable[[Tensor], Tensor] | None = None,
        mean_inputs: Callable[[], Tensor] | None = None,
    ):
        self._inputs, self.grads, self._weight_gradient = inputs, grads, weight_gradient
        self.second_moment, self.example_gradients, self._mean_inputs = second_moment, example_gradients, mean_inputs
        self.known_gradient: Tensor | None = None  # the result of `gradient`, if it is known

    @property
    def inputs(self) -> Float[Tensor, "R _S B T I"]:
        """The inputs `a` of all examples."""
        return self._inputs if isinstance(self._inputs, Tensor) else self._inputs(slice(None))

    @property
    def shape(self) -> tuple[int, int]:
        """The sizes (I, O) of the layer."""
        return self.part(slice(1)).inputs.shape[4], self.grads.shape[4]

    def gradients(self) -> Float[Tensor, "R S I O"]:
        """Return the sum of `a g^T` over examples and positions, for each sample."""
        if self._weight_gradient:
            return self._weight_gradient(self.grads, True)
        return torch.einsum("rsbti,rsbto->rsio", self.inputs, self.grads)

    def gradient(self) -> Float[Tensor, "R I O"]:
        """Return the sum of `a g^T` over samples, examples and positions."""
        if self.known_gradient is not None:
            return self.known_gradient
        if self._weight_gradient:
            return self._weight_gradient(self.grads, False).squeeze(1)
        a, g = self.inputs, self.grads
        if a.shape[1] == 1:
            g = g.sum(1, keepdim=True)
        return product(a.flatten(1, 3).mT, g.flatten(1, 3))

    def average_inputs(self, old: Float[Tensor, "R I I"], rate: float | Tensor) -> Float[Tensor, "R I I"]:
        """Return (1 - rate) old + rate E[a a^T], where E sums over positions and averages over samples and examples."""
        if self.second_moment:
            return over(1 - rate, old) * old + over(rate, old) * self.second_moment()
        a = self.inputs
        count = a.shape[1] * a.shape[2]
        a = a.flatten(1, 3)
        return averaged(old, a.mT, a, 1 - rate, rate / count)

    def mean_inputs(self) -> Float[Tensor, "R _S B I"]:
        """Return the layer inputs `a`, averaged over positions."""
        return self._mean_inputs() if self._mean_inputs else self.inputs.mean(3)

    def part(self, examples: slice) -> Taps:
        """Return the taps of a slice of examples; patches are computed for these examples only."""
        a = self._inputs
        return Taps(a[:, :, examples] if isinstance(a, Tensor) else a(examples), self.grads[:, :, examples])


class NormTaps(NamedTuple):
    """The statistics and gradients of one batch-norm layer in a training pass."""

    statistics: Float[Tensor, "R _S 2 C"]  # mean and unbiased variance of the batch
    grads: Float[Tensor, "R S 2 C"]  # d log p(y | x, W) / d (scale, shift), summed over the batch


class LayerTaps(tuple[Taps, ...]):
    """The taps of all weight layers; after a pass in training mode, also those of other tensors that are trained."""

    norms: tuple[NormTaps, ...] = ()  # of batch-norm layers
    points: tuple[Float[Tensor, "R _S ..."], ...] = ()  # gradients of point estimates, summed over the batch


def flatten(weights: Sequence[Tensor]) -> Tensor:
    """Concatenate all weights into one vector: matrices [..., I, O] -> [..., W]."""
    return torch.cat([w.flatten(-2) for w in weights], -1)


def unflatten(vector: Tensor, shapes: Sequence[tuple[int, int]]) -> tuple[Tensor, ...]:
    """Invert `flatten`, for the (I, O) of each layer in `shapes`: [..., W] -> a tuple of [..., I, O]."""
    parts = vector.split([i * o for i, o in shapes], -1)
    return tuple(p.unflatten(-1, s) for p, s in zip(parts, shapes, strict=True))


State = Any
"""A posterior's state: a NamedTuple of tensors (or of tuples of tensors), defined in the posterior's module."""
