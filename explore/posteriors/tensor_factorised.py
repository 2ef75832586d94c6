"""Factorised tensors: weight matrices as Kronecker products of small Gaussian matrices, with as few parameters as WHVI.

The baseline of Rossi, Marmin, Filippone (2020, figure 3), in the form of Novikov et al. 2015, Tensorizing Neural
Networks, with two factors. For each hidden layer

    W = 1/sqrt(n) sum_k A_k (x) B_k,   A_k [a, c], B_k [b, d] with independent Gaussian entries,   prior N(0, eta)

with a, b about the square root of the number of inputs, and c, d about the square root of the number of outputs.
Surplus rows and columns are dropped. A D x D layer with n = 1 has 4 D parameters, as many as in WHVI. For other layers,
n is chosen to come closest to the number of parameters in WHVI. Biases and the weights of the last layer are Gaussian.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from explore.core.rng import Rng
from explore.inference.updates import reparam
from explore.inference.updates.reparam import SMALL, TABLE, Factorised, Form, Reparameterised, Tensors, spread_of
from explore.nets.protocols import Layer


@dataclass(frozen=True, kw_only=True)
class TensorFactorised(Reparameterised):
    """Factorised tensors: weight matrices as sums of Kronecker products of Gaussian matrices."""

    prior_error: ClassVar[str] = "its density is over factors of the weights"

    @cached_property
    def forms(self) -> tuple[Form, ...]:
        reparam.check_weights(self.net, "tensor-factorised")
        *hidden, last = zip(self.net.shapes, self.net.biases, strict=True)
        return (*(TensorForm(i - bias, o, bias) for (i, o), bias in hidden), Factorised(*last[0]))


class TensorForm(Form):
    """The layer form W = 1/sqrt(n) sum_k A_k (x) B_k."""

    def __init__(self, inputs: int, outputs: int, bias: bool):
        self.inputs, self.outputs, self.bias = inputs, outputs, bias
        (a, b), (c, d) = _halves(inputs), _halves(outputs)
        width = 2 ** math.ceil(math.log2(inputs))
        whvi = outputs + -(-outputs // width) * inputs + 2 * width
        self.terms = max(1, round(whvi / (2 * (a * c + b * d))))
        self.coordinates = ((self.terms * a, c), (self.terms * b, d), *(((1, outputs),) if bias else ()))

    def init(self, replicas: int, std: float, rng: Rng) -> tuple[Tensors, Tensors, Tensors]:
        # Products of two factors with this standard deviation have that of Glorot initialisation.
        scale = (2 / (self.inputs + self.bias + self.outputs)) ** 0.25
        means = [scale * rng.normal(replicas, *shape) for shape in self.coordinates]
        if self.bias:
            means[2] = scale * means[2]
        return tuple(means), tuple(spread_of(m, std) for m in means), ()

    def build(self, z: Tensors, points: Tensors, lead: tuple[int, ...], rng: Rng) -> tuple[Layer, Tensor]:
        a, b = (t.unflatten(-2, (self.terms, -1)) / self.terms**0.25 for t in z[:2])
        bias = z[2] if self.bias else None
        excess = a.new_zeros(len(a), 1)
        if z[0].dim() == 5:
            return TensorLayer(a, b, bias, self.outputs), excess
        w = torch.einsum("rsnac,rsnbd->rsabcd", a, b).flatten(4).flatten(2, 3)[:, :, : self.inputs, : self.outputs]
        return (w if bias is None else torch.cat([w, bias], 2)), excess


class TensorLayer:
    """A layer with separate factors A_k, [R, S, B, n, a, c], and B_k, [R, S, B, n, b, d], for every example."""

    def __init__(self, a: Tensor, b: Tensor, bias: Tensor | None, outputs: int):
        self.a, self.b, self.bias, self.outputs, self.samples = a, b, bias, outputs, a.shape[1]

    def __call__(self, x: Tensor) -> Tensor:
        x = x if self.bias is None else x[..., :-1]
        rows, columns = self.a.shape[4], self.b.shape[4]
        x = F.pad(x, (0, rows * columns - x.shape[-1])).unflatten(4, (rows, columns))
        half = torch.einsum("rsetab,rsenac->rsetncb", x, self.a)
        h = torch.einsum("rsetncb,rsenbd->rsetcd", half, self.b).flatten(4)[..., : self.outputs]
        return h if self.bias is None else h + self.bias


def _halves(n: int) -> tuple[int, int]:
    """Return two powers of two, as equal as possible, whose product is at least n."""
    bits = math.ceil(math.log2(n))
    return 2 ** (bits // 2), 2 ** (bits - bits // 2)


PRESETS: dict[str, dict[str, object]] = {
    "default": TABLE | {"kl_weight": 0.2},
    "small": SMALL,
    "hundreds": SMALL,
    "vime": {},
}
