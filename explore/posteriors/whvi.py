"""WHVI: weight matrices built from a Gaussian vector by Walsh-Hadamard transforms; parameters are linear in the width.

Rossi, Marmin, Filippone: Walsh-Hadamard Variational Inference for Bayesian Deep Learning (2020). For each hidden layer

    W = sqrt(D) S1 H diag(g) H S2,   q(g) = N(mu, diag sigma^2) or N(mu, Sigma),   prior g ~ N(0, eta)
    y = S1 sqrt(D) H [g o (H S2 x)]                                       two transforms, g drawn for every example

H [D, D] is the orthonormal Walsh-Hadamard matrix. (In the paper it has entries +-1 and no sqrt(D).) S1 and S2 are
diagonal and optimised from random signs. Inputs are padded to D = 2^ceil(log2 inputs); ceil(outputs / D) blocks are
stacked, with a shared g and separate S1 and S2. Biases and the weights of the last layer are Gaussian. W has only D
degrees of freedom and thus no density: KL, entropy and gain are those of the coordinates g, biases and last layer.

With normalising flows (Rezende, Mohamed 2015), q(g) is not Gaussian, and the KL is estimated from samples:

    g_k = g_{k-1} + u tanh(w^T g_{k-1} + b),   log |det| = log(1 + w^T u (1 - tanh^2))
    KL  = E[log q_0(g_0) - sum log |det| - log p(g_K)]

Entropy, log density and KL between posteriors are then those of g_0. If the same flow maps two densities, their KL
does not change.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal, NamedTuple, cast  # mypy does not treat a NamedTuple as callable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from explore.core.errors import InputError
from explore.core.hadamard import hadamard
from explore.core.linalg import identity
from explore.core.rng import Rng
from explore.inference.updates import reparam
from explore.inference.updates.noisy_layers import Masked, Own, dropout_mask, signs
from explore.inference.updates.reparam import SMALL, TABLE, Factorised, Form, Reparameterised, Tensors, glorot
from explore.nets.protocols import Layer

Structure = Literal["S1HGHS2", "V1HGHS2", "S1HGHV2", "V1HGHV2", "S1HGH", "V1HGH", "GH"]


@dataclass(frozen=True, kw_only=True)
class WHVI(Reparameterised):
    """Walsh-Hadamard variational inference.

    `structure` lists the factors of W from left to right: diagonals S are optimised, diagonals V are Gaussian like g.
    Without a second diagonal, every stacked block has a separate g. `vectors` is for layers with one input or output:
    "reshape" takes the n weights of such a layer from a square W with at least n entries, "stack" builds W as usual.
    """

    structure: Structure = "S1HGHS2"
    covariance: Literal["diagonal", "full"] = "diagonal"  # of q(g)
    flows: int = 0  # number of planar normalising flows on g per layer
    vectors: Literal["reshape", "stack"] = "reshape"
    last_layer: Literal["gaussian", "whvi"] = "gaussian"  # independent Gaussian weights, or WHVI as in other layers
    convolutions: Literal["whvi", "mc-dropout"] = "whvi"  # each filter is a row of W, or uses dropout
    rate: float = 0.05  # dropout rate for "mc-dropout"

    ranges: ClassVar[dict[str, str]] = {"flows": "[0, 1000]", "rate": "[0, 1)"}
    prior_error: ClassVar[str] = "its density is over vectors that the weights of a layer share"

    @cached_property
    def forms(self) -> tuple[Form, ...]:
        net, forms = self.net, list[Form]()
        reparam.check_weights(net, "whvi")
        for (inputs, outputs), bias, convolution in zip(net.shapes, net.biases, net.convolutions, strict=True):
            if len(forms) == len(net.shapes) - 1 and self.last_layer == "gaussian":
                forms.append(Factorised(inputs, outputs))
            elif convolution and self.convolutions == "mc-dropout":
                forms.append(DropoutForm(inputs, outputs, bias, self.rate, self.prior_variance))
            else:
                forms.append(WalshForm(inputs - bias, outputs, bias, self))
        if not any(form.coordinates for form in forms):
            raise InputError("WHVI needs at least one layer without dropout; use the posterior mc-dropout")
        return tuple(forms)


class WalshForm(Form):
    """The layer form W = sqrt(D) S1 H diag(g) H S2."""

    def __init__(self, inputs: int, outputs: int, bias: bool, settings: WHVI):
        self.settings, self.outputs, self.layer = settings, outputs, (inputs + bias, outputs)
        self.reshaped = settings.vectors == "reshape" and min(self.layer[0] - bias, outputs) == 1
        if self.reshaped:
            self.d = inputs = outputs = _power_of_two(math.sqrt(max(inputs, outputs)))
        else:
            self.d = _power_of_two(inputs)
        blocks, structure = -(-outputs // self.d), settings.structure
        shapes = {"g": (1 if structure.endswith("2") else blocks, self.d)}
        if structure == "GH":
            shapes["g"] = (1, outputs)
        elif structure.startswith("V1"):
            shapes["s1"] = (1, outputs)
        if structure.endswith("V2"):
            shapes["s2"] = (blocks, inputs)
        if bias:
            shapes["bias"] = (1, self.outputs)
        points = {"s1": (1, outputs)} if structure.startswith("S1") else {}
        if structure.endswith("S2"):
            points["s2"] = (blocks, inputs)
        self.names, self.coordinates, self.points = tuple(shapes), tuple(shapes.values()), points
        self.excess_samples = reparam.EXCESS_SAMPLES if settings.flows else 0

    def init(self, replicas: int, std: float, rng: Rng) -> tuple[Tensors, Tensors, Tensors]:
        means = []
        for name, shape in zip(self.names, self.coordinates, strict=True):
            means.append(signs(rng, replicas, *shape) if name[0] == "s" else glorot(replicas, shape, self.layer, rng))
        full = self.settings.covariance == "full"
        spreads = [reparam.spread_of(m, std, full and name == "g") for name, m in zip(self.names, means, strict=True)]
        points = [signs(rng, replicas, *shape) for shape in self.points.values()]
        if self.settings.flows:
            points += start_flows(replicas, self.settings.flows, means[0][0].numel(), rng)
        return tuple(means), tuple(spreads), tuple(points)

    def build(self, z: Tensors, points: Tensors, lead: tuple[int, ...], rng: Rng) -> tuple[Layer, Tensor]:
        parts = dict(zip(self.names, z, strict=True))
        for name, point in zip(self.points, points, strict=False):  # the remaining points belong to flows
            parts[name] = point.view(len(point), *[1] * (z[0].dim() - 3), *point.shape[1:])
        excess = z[0].new_zeros(len(z[0]), 1)
        if self.settings.flows:
            start = parts["g"].flatten(-2)
            end, log_det = flow(start, *points[-3:])
            excess = (end.square().sum(-1) - start.square().sum(-1)) / (2 * self.settings.prior_variance) - log_det
            parts["g"] = end.view_as(parts["g"])
        layer = WalshLayer(**{name: p if p.dim() == 5 else p.unsqueeze(2) for name, p in parts.items()})
        if not self.reshaped:
            return cast(Layer, layer), excess
        matrix = layer.vector(self.layer[0] - ("bias" in parts), self.layer[1])
        return (matrix.squeeze(2) if z[0].dim() == 4 else Own(matrix)), excess


class WalshLayer(NamedTuple):
    """A layer x -> S1 sqrt(D) H [g o (H S2 x)], or without S1 g o (sqrt(D) H x).

    Each tensor is [R, S or 1, B or 1, I, O].
    """

    g: Tensor  # O = D; I = 1 or number of stacked blocks. Without S1, O = outputs, I = 1
    s1: Tensor | None = None  # O = outputs
    s2: Tensor | None = None  # I = blocks, O = inputs
    bias: Tensor | None = None

    @property
    def samples(self) -> int:
        return self.g.shape[1]

    def __call__(self, a: Tensor) -> Tensor:
        x = a if self.bias is None else a[..., :-1]
        if self.s1 is None:
            d, outputs = _power_of_two(x.shape[-1]), self.g.shape[-1]
            u = hadamard(_padded(x, d), orthonormal=False)
            h = u.repeat(1, 1, 1, 1, -(-outputs // d))[..., :outputs] * self.g
        else:
            x = x.unsqueeze(4) if self.s2 is None else x.unsqueeze(4) * self.s2.unsqueeze(3)
            u = hadamard(_padded(x, self.g.shape[-1]))  # [R, S, B, T, blocks, D]
            h = hadamard(self.g.unsqueeze(3) * u, orthonormal=False).flatten(4)  # sqrt(D) H
            h = h[..., : self.s1.shape[-1]] * self.s1
        return h if self.bias is None else h + self.bias

    def vector(self, inputs: int, outputs: int) -> Float[Tensor, "R S _B I O"]:
        """Return the matrix of a layer with one input or one output: the first entries of a square W, and the bias."""
        w = self._replace(bias=None)(identity(self.g.shape[-1], self.g)[None, None, None])  # the transpose of W
        matrix = w.flatten(-2)[..., : inputs * outputs].unflatten(-1, (inputs, outputs))
        return matrix if self.bias is None else torch.cat([matrix, self.bias], -2)


class DropoutForm(Form):
    """Dropout with rate p: W = diag(z) M, z_i = Bernoulli(1 - p) / (1 - p), z = 1 for the bias, M a point estimate."""

    excess_samples = 1  # all samples have the same excess KL

    def __init__(self, inputs: int, outputs: int, bias: bool, rate: float, prior_variance: float):
        self.coordinates, self.shape, self.bias = (), (inputs, outputs), bias
        self.rate, self.prior_variance = rate, prior_variance

    def init(self, replicas: int, std: float, rng: Rng) -> tuple[Tensors, Tensors, Tensors]:
        return (), (), (glorot(replicas, self.shape, self.shape, rng),)

    def build(self, z: Tensors, points: Tensors, lead: tuple[int, ...], rng: Rng) -> tuple[Layer, Tensor]:
        (m,) = points
        mask = dropout_mask(lead, self.shape[0], self.bias, self.rate, rng)
        second = torch.full_like(m[:, :, :1], 1 / (1 - self.rate))  # E z^2
        if self.bias:
            second[:, -1] = 1
        decay = (second * m.square()).sum((1, 2)) / (2 * self.prior_variance)  # E|W|^2 / (2 eta), as in mc-dropout
        if len(lead) == 2:
            return mask.unsqueeze(3) * m.unsqueeze(1), decay.unsqueeze(1)
        return Masked(m.unsqueeze(1), mask), decay.unsqueeze(1)


def flow(
    z: Tensor, u: Float[Tensor, "R K n"], w: Float[Tensor, "R K n"], b: Float[Tensor, "R K"]
) -> tuple[Tensor, Tensor]:
    """Apply K planar flows: [R, ..., n] -> ([R, ..., n], sum of log |det| [R, ...])."""
    inner = (w * u).sum(-1, keepdim=True)
    # Adjust the component of u along w such that w^T u > -1, where the flow is invertible. Without the floor, w^T u
    # could round to -1 in single precision.
    u = u + (F.softplus(inner).clamp_min(1e-6) - 1 - inner) * w / w.square().sum(-1, keepdim=True)
    inner = (w * u).sum(-1)
    shape = (len(z), *[1] * (z.dim() - 2))
    log_det = torch.zeros_like(z[..., 0])
    for k in range(u.shape[1]):
        t = ((z * w[:, k].view(*shape, -1)).sum(-1) + b[:, k].view(shape)).tanh()
        log_det = log_det + (inner[:, k].view(shape) * (1 - t.square())).log1p()
        z = z + t.unsqueeze(-1) * u[:, k].view(*shape, -1)
    return z, log_det


def start_flows(replicas: int, flows: int, n: int, rng: Rng) -> list[Tensor]:
    """Draw initial (u, w, b) for flows near the identity: u, as adjusted in `flow`, is about 0.01 times white noise."""
    w = rng.normal(replicas, flows, n)
    along = math.log(math.e - 1) * w / w.square().sum(-1, keepdim=True)  # here softplus(w^T u) is 1
    u = along + 0.01 * rng.normal(replicas, flows, n)
    return [u, w, torch.zeros_like(w[..., 0])]


def _padded(x: Tensor, d: int) -> Tensor:
    return x if x.shape[-1] == d else F.pad(x, (0, d - x.shape[-1]))  # F.pad copies even if no padding is added


def _power_of_two(n: float) -> int:
    return 2 ** math.ceil(math.log2(n))


PRESETS: dict[str, dict[str, object]] = {
    "default": TABLE | {"kl_weight": 1.0},
    "hundreds": TABLE | {"kl_weight": 1.0, "min_batches": 16},  # experiments/table_defaults/few.py
    # As in the paper, except for its ambiguous prior variance of 1e-5. For its 50 500 steps, set `epochs` to
    # 3 232 000 / N.
    "power": {"lr": 1e-3, "schedule": "power", "batch_size": 64, "samples": 1, "noise_start": 500, "vectors": "stack"},
    # Tested only on four splits of Boston, with two hidden layers of 128 units.
    "uci": {"epochs": 150, "batch_size": 64, "samples": 1},
    "small": SMALL,
    # The image networks of the paper, chosen on validation sets of CIFAR-10; more noise is too much for layers of 4096.
    "image": {
        "epochs": 150, "batch_size": 64, "samples": 1, "lr": 1e-3, "initial_std": 1e-3, "vectors": "stack",
        "last_layer": "whvi", "convolutions": "mc-dropout",
    },
    # As in noisy K-FAC.
    "vime": {"prior_variance": 0.25, "lr": 0.003},
}  # fmt: skip
