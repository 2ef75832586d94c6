"""Inputs of a layer that are dropped at random: what `mc-dropout`, and `whvi` in convolutions, share."""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from explore.core.rng import Rng
from explore.core.shapes import Taps


def mask(lead: Sequence[int], inputs: int, bias: bool, rate: float, rng: Rng) -> Float[Tensor, "... I"]:
    """z_i = Bernoulli(1 - p) / (1 - p) with the rate p, z = 1 for the bias, the last of the inputs."""
    z = (rng.uniform(*lead, inputs) >= rate).to(rng.dtype) / (1 - rate)
    if bias:
        z[..., -1] = 1
    return z


class Masked:
    """A layer diag(z) M with a mask z of its own for every example, see `models.Layer`."""

    def __init__(self, weights: Float[Tensor, "R 1 I O"], mask: Float[Tensor, "R S B I"]):
        self.weights, self.mask, self.samples = weights, mask, mask.shape[1]

    def __call__(self, a: Tensor) -> Tensor:
        """[R, S or 1, B, T, I] -> [R, S, B, T, O]."""
        seen = a * self.mask.unsqueeze(3)
        return (seen.flatten(2, 3) @ self.weights).unflatten(2, seen.shape[2:4])

    def of_examples(self) -> Float[Tensor, "R B I O"]:
        """diag(z) M of each example of the one sample."""
        return self.mask.squeeze(1).unsqueeze(3) * self.weights

    def taps(self, taps: Taps) -> Taps:
        """Those of M, with the inputs that it saw, of those of the layer with one sample."""
        each = taps.example_gradients

        def gradient(grads: Tensor, _: bool) -> Tensor:
            assert each is not None
            return (each(grads) * self.mask.squeeze(1).unsqueeze(3)).sum(1, keepdim=True)

        def inputs(part: slice) -> Tensor:
            return taps.part(part).inputs * self.mask[:, :, part].unsqueeze(3)

        return Taps(inputs, taps.grads, gradient if each else None)
