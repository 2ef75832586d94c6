"""Plain networks of dense layers, with examples along the last axis: a fast form for many gradients of small networks.

A general `Net` folds replicas, samples and examples into one batch axis for its module, which copies all activations.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from explore.core.shapes import Weights
from explore.nets.protocols import Network

ACTIVATIONS: dict[type[nn.Module], Callable[[Tensor], Tensor]] = {
    nn.ReLU: torch.relu, nn.Tanh: torch.tanh, nn.Sigmoid: torch.sigmoid, nn.SiLU: nn.functional.silu,
    nn.Identity: lambda x: x,
}  # fmt: skip
Output = Callable[[Weights, Tensor], Tensor]
"""Maps weights [R, S, I, O] and inputs x [R, B, ...] to outputs [R, S, B, O]."""


def output_of(net: Network) -> Output:
    """Return the output function of a network: a fast one for an nn.Sequential of Linear layers and activations."""
    if not all(kind is nn.Linear or kind in ACTIVATIONS for kind in net.sequence):
        return net.output

    def output(weights: Weights, x: Float[Tensor, "R B D"]) -> Float[Tensor, "R S B O"]:
        if x.dim() != 3:
            return net.output(weights, x)
        replicas, samples = weights[0].shape[:2]
        h = x.mT.unsqueeze(1).expand(-1, samples, -1, -1).flatten(0, 1)  # [(R S), D, B]
        layers = zip(weights, net.biases, strict=True)
        for kind in net.sequence:
            if kind is not nn.Linear:
                h = ACTIVATIONS[kind](h)
                continue
            w, bias = next(layers)
            w = w.flatten(0, 1).mT
            h = torch.baddbmm(w[..., -1:], w[..., :-1], h) if bias else w @ h
        return h.mT.unflatten(0, (replicas, samples))

    return output
