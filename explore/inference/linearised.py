"""Networks linearised at their mean weights: Gaussian weights then give Gaussian functions.

    f(x; w) = f(x; M) + J(x) (w - M),    J = df/dw at M        Immer, Korzepa, Bauer (2021), equation 10

Weight samples of a wide Gaussian leave the region in which the network fits the data; these functions do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from explore.core import tree
from explore.core.linalg import added, identity
from explore.core.shapes import Means, Taps, Weights
from explore.inference.structures.base import sample_gradients
from explore.nets.protocols import Layers, Network


class Functions(NamedTuple):
    """S linear functions of the weights, around k mean weights M (one for each member of a mixture)."""

    mean: tuple[Float[Tensor, "R k _I _O"], ...]  # M
    fixed: tuple[Float[Tensor, "R k ..."], ...]  # batch norm and point estimates
    changes: tuple[Float[Tensor, "R k e _I _O"], ...]  # w - M of e functions per member, of some last layers
    weights: tuple[Float[Tensor, "R k e _I _O"], ...] = ()  # networks to which J(x) (w - M) is added; empty: at M
    chosen: Int[Tensor, "R S"] | None = None  # which of the k e functions to use; None: all

    @staticmethod
    def around(mean: Means, fixed: Sequence[Tensor], changes: Weights, weights: Weights = ()) -> Functions:
        """Return functions around one mean M, from tensors [R, I, O], [R, 1, ...] and [R, S, I, O]."""
        mean, changes, weights = (tuple(t.unsqueeze(1) for t in each) for each in (mean, changes, weights))
        return Functions(mean, tuple(fixed), changes, weights)

    @property
    def samples(self) -> int:
        return self.changes[0].shape[1:3].numel() if self.chosen is None else self.chosen.shape[1]


class LinearisedNet:
    """A network whose only layer is `Functions`, in place of a `Net` in predictions."""

    def __init__(self, net: Network):
        self.net = net

    @property
    def width(self) -> int:
        """Values per example and function that the last output needed, as for a `Net`."""
        return self.net.width

    def output(self, layers: Sequence[Any], x: Tensor) -> Float[Tensor, "R S B O"]:
        """Return the values of the functions at x [R, B, ...]."""
        functions: Functions = layers[0]
        members = functions.mean[0].shape[1]
        flat: Functions = tree.map_tensors(lambda t: t.flatten(0, 1), functions._replace(chosen=None))
        with torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext():  # for the Jacobian
            flat, x = tree.map_tensors(lambda t: t.clone() if t.is_inference() else t, (flat, x))
            x = x.repeat_interleave(members, 0)
            base, change = self._linear(flat, x)
            if flat.weights:
                base = self.net.output((*flat.weights, *(v.unsqueeze(1) for v in flat.fixed)), x)
        every = (base + change).unflatten(0, (-1, members)).flatten(1, 2)
        if functions.chosen is None:
            return every
        return every[torch.arange(len(every), device=x.device).unsqueeze(1), functions.chosen]

    def _linear(self, functions: Functions, x: Tensor) -> tuple[Float[Tensor, "Rk _e B O"], Float[Tensor, "Rk e B O"]]:
        """Return f(x; M) and J(x) (w - M)."""
        means = tuple(m.unsqueeze(1) for m in (*functions.mean, *functions.fixed))
        out, rows = at_mean(self.net, means, x, len(functions.changes))
        of_layers = zip(zip(*rows, strict=True), functions.changes, strict=True)
        return out.unsqueeze(1), added([along(taps, change) for taps, change in of_layers])


def at_mean(
    net: Network, means: Layers, x: Tensor, last: int = 0
) -> tuple[Float[Tensor, "R B O"], list[tuple[Taps, ...]]]:
    """Return f(x; M) and, for each output, the taps of its Jacobian; `means` are layers [R, 1, I, O].

    If `last` is not 0, the Jacobian is with respect to so many last layers.
    """
    out, pullback = net.forward(means, x, last=last)
    return out.squeeze(1), [pullback(row.expand_as(out)) for row in identity(out.shape[-1], out)]


def along(rows: Sequence[Taps], change: Float[Tensor, "R e I H"]) -> Float[Tensor, "R e B O"]:
    """Return derivatives of the outputs along weight changes of one layer, from its taps for each of the O outputs."""
    samples, positions = change.shape[1], rows[0].grads.shape[3]
    if len(rows) * (positions + samples) <= 2 * positions * samples:  # then per-example gradients are cheaper
        return torch.stack([change.flatten(2) @ sample_gradients(t).squeeze(1).flatten(2).mT for t in rows], -1)
    moved = rows[0].inputs.flatten(1, 3).unsqueeze(1) @ change  # [R, e, (B T), H]
    moved = moved.unflatten(2, (-1, positions)).transpose(1, 2).flatten(3)  # [R, B, e, (T H)]
    grads = torch.stack([t.grads.squeeze(1).flatten(2) for t in rows], -1)  # [R, B, (T H), O]
    return (moved @ grads).transpose(1, 2)
