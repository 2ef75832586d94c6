"""Layers that draw separate weights for every example, see `explore.nets.protocols.Layer`.

With inputs a and independent Gaussian weights N(M, sigma^2), shared by the T positions of an example b, a layer returns

    T = 1    h_b  = a_b M + sqrt(a_b^2 sigma^2) o eps_b                          Kingma, Salimans, Welling (2015)
    T > 1    h_bt = a_bt M + [(a_bt o r_b) (sigma o E)] o s_b                    Flipout: Wen et al. (2018)

with white noise eps_b per example and E [I, O] per sample. Random signs r_b of inputs and s_b of outputs make the
weights of different examples uncorrelated.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from explore.core.linalg import rows_times
from explore.core.rng import Rng
from explore.core.shapes import Taps
from explore.execution import parallel


class Own:
    """A layer that is given separate weights for every example."""

    def __init__(self, weights: Float[Tensor, "R S B I O"]):
        self.weights, self.samples = weights, weights.shape[1]

    def __call__(self, a: Tensor) -> Tensor:
        return torch.einsum("rsbti,rsbio->rsbto", a, self.weights)


class Local:
    """A layer with weights N(mean, std^2) [R, I, O], drawn for each example, or each position if `apart` is true."""

    def __init__(self, mean: Tensor, std: Tensor, samples: int, rng: Rng, apart: bool = False):
        self.mean, self.std, self.samples, self.rng, self.apart = mean, std, samples, rng, apart

    def __call__(self, a: Tensor, patches: tuple[int, int] | None = None) -> Tensor:
        """Apply the layer: [R, S or 1, B, T, I] -> [R, S, B, T, O]; `patches` is (channels, kernel positions)."""
        mean = rows_times(a, self.mean)
        if self.apart or a.shape[3] == 1:
            return self._drawn(mean, rows_times(a.square(), self.std.square()))
        channels, places = patches or (a.shape[4], 1)
        weights, into, out = self._flips(a.shape[2], channels)
        into = F.pad(into.repeat_interleave(places, 3), (0, a.shape[4] - channels * places), value=1.0)
        flipped = (a * into.unsqueeze(3)).flatten(2, 3).unflatten(2, (weights.shape[2], -1))
        return mean + (flipped @ weights).flatten(2, 3).unflatten(2, a.shape[2:4]) * out.unsqueeze(3)

    def through(self, a: Float[Tensor, "N C height width"], product: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """Apply the layer to images, N = B or S B; `product` multiplies images by weights, see `protocols.Layer`."""
        mean = product(a, self.mean)
        if self.apart or mean.shape[3] == 1:
            return self._drawn(mean, product(a.square(), self.std.square()))
        examples = mean.shape[2]
        weights, into, out = self._flips(examples, a.shape[1])
        flipped = a.unflatten(0, (-1, examples)) * into[0].view(*into.shape[1:], *[1] * (a.dim() - 2))
        return mean + product(flipped.flatten(0, 1), weights.flatten(0, 2)) * out.unsqueeze(3)

    def _drawn(self, mean: Tensor, variance: Tensor) -> Tensor:
        # Without a bias, all-zero inputs give zero variance, where the square root has no finite gradient.
        noise = self.rng.normal(mean.shape[0], self.samples, *mean.shape[2:])
        return mean + variance.clamp_min(1e-20).sqrt() * noise

    def _flips(self, examples: int, inputs: int) -> tuple[Tensor, Tensor, Tensor]:
        """Draw sigma o E [R, S, parts, I, O], and random signs [R, S, B, _] for inputs (or channels) and outputs."""
        r, i, o = self.std.shape
        weights = self.std[:, None, None] * self.rng.normal(r, self.samples, parallel.world().held, i, o)
        lead = (r, self.samples, examples)
        return weights, signs(self.rng, *lead, inputs), signs(self.rng, *lead, o)


class Masked:
    """A layer diag(z) M with a separate dropout mask z for every example, see `protocols.Layer`."""

    def __init__(self, weights: Float[Tensor, "R 1 I O"], mask: Float[Tensor, "R S B I"]):
        self.weights, self.mask, self.samples = weights, mask, mask.shape[1]

    def __call__(self, a: Tensor) -> Tensor:
        masked = a * self.mask.unsqueeze(3)
        return (masked.flatten(2, 3) @ self.weights).unflatten(2, masked.shape[2:4])

    def of_examples(self) -> Float[Tensor, "R B I O"]:
        """Return the weights diag(z) M of each example; the layer must have one sample."""
        return self.mask.squeeze(1).unsqueeze(3) * self.weights

    def taps(self, taps: Taps) -> Taps:
        """Convert taps of the layer, which must have one sample, to taps of M."""
        each = taps.example_gradients

        def gradient(grads: Tensor, _: bool) -> Tensor:
            assert each is not None
            return (each(grads) * self.mask.squeeze(1).unsqueeze(3)).sum(1, keepdim=True)

        def inputs(part: slice) -> Tensor:
            return taps.part(part).inputs * self.mask[:, :, part].unsqueeze(3)

        return Taps(inputs, taps.grads, gradient if each else None)


def dropout_mask(lead: Sequence[int], inputs: int, bias: bool, rate: float, rng: Rng) -> Float[Tensor, "... I"]:
    """Draw dropout masks z_i = Bernoulli(1 - p) / (1 - p) with rate p; z = 1 for the bias, the last input."""
    z = (rng.uniform(*lead, inputs) >= rate).to(rng.dtype) / (1 - rate)
    if bias:
        z[..., -1] = 1
    return z


def signs(rng: Rng, *shape: int) -> Float[Tensor, "..."]:
    """Draw random signs, +1 or -1; the first axis is R."""
    return 2.0 * (rng.uniform(*shape) < 0.5).to(rng.dtype) - 1
