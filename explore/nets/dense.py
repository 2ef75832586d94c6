"""Plain networks of dense layers, with examples along the last axis: a fast form for many gradients of small networks.

A general `Net` folds replicas, samples and examples into one batch axis for its module, which copies all activations.
The backward pass is written by hand, since automatic differentiation would allocate each of its intermediate results.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from explore.core.shapes import Weights
from explore.nets.protocols import Network

Output = Callable[[Weights, Tensor], Tensor]
"""Maps weights [R, S, I, O] and inputs x [R, B, ...] to outputs [R, S, B, O]."""

_aten: Any = torch.ops.aten
# An activation in place, and in place its gradient, given d loss / d h and h, the values of the activation.
ACTIVATIONS: dict[type[nn.Module], tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]] = {
    nn.ReLU: (torch.relu_, lambda d, h: _aten.threshold_backward.grad_input(d, h, 0, grad_input=d)),
    nn.Tanh: (torch.tanh_, lambda d, h: _aten.tanh_backward.grad_input(d, h, grad_input=d)),
    nn.Sigmoid: (torch.sigmoid_, lambda d, h: _aten.sigmoid_backward.grad_input(d, h, grad_input=d)),
}


def output_of(net: Network) -> Output:
    """Return the output function of a network: a fast one for Linear layers with one of `ACTIVATIONS` between them.

    The fast one has gradients with respect to the weights alone.
    """
    kinds = tuple(kind for kind in net.sequence if kind is not nn.Identity)
    layers, between = kinds[::2], kinds[1::2]
    if len(layers) == len(between) or {*layers} != {nn.Linear} or not {*between} <= ACTIVATIONS.keys():
        return net.output

    def output(weights: Weights, x: Float[Tensor, "R B D"]) -> Float[Tensor, "R S B O"]:
        if x.dim() != 3:
            return net.output(weights, x)
        replicas, samples = weights[0].shape[:2]
        h = x.mT.unsqueeze(1).expand(-1, samples, -1, -1).flatten(0, 1)  # [(R S), D, B]
        out: Tensor = _Layers.apply(h, between, net.biases, *(w.flatten(0, 1).mT for w in weights))
        return out.mT.unflatten(0, (replicas, samples))

    return output


class _Layers(torch.autograd.Function):
    """Outputs [(R S), O, B] of dense layers for inputs [(R S), D, B]."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, kinds: Sequence[type[nn.Module]], biases: Sequence[bool], *layers: Tensor) -> Any:
        inputs = []
        for i, (w, bias) in enumerate(zip(layers, biases, strict=True)):
            inputs.append(h)
            h = torch.baddbmm(w[..., -1:], w[..., :-1], h) if bias else w @ h
            if i < len(kinds):
                ACTIVATIONS[kinds[i]][0](h)
        ctx.kinds, ctx.biases = kinds, biases
        ctx.save_for_backward(*inputs, *layers)
        return h

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d: Tensor) -> Any:
        depth = len(ctx.biases)
        inputs, layers = ctx.saved_tensors[:depth], ctx.saved_tensors[depth:]
        gradients = []
        for i in reversed(range(depth)):
            gradient = d @ inputs[i].mT
            gradients.append(torch.cat([gradient, d.sum(2, keepdim=True)], 2) if ctx.biases[i] else gradient)
            if i:
                w = layers[i][..., :-1] if ctx.biases[i] else layers[i]
                d = ACTIVATIONS[ctx.kinds[i - 1]][1](w.mT @ d, inputs[i])
        return (None, None, None, *reversed(gradients))
