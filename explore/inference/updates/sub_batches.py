"""Batches in parts, each of which sees weight samples of its own, as the workers of a distributed training do."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from explore.core.shapes import LayerTaps, NormTaps, Taps, Weights
from explore.nets.net import Net
from explore.nets.protocols import Pullback


def forward_in_parts(
    net: Net, weights: Weights, x: Float[Tensor, "R B ..."], parts: int
) -> tuple[Float[Tensor, "R K b O"], Pullback]:
    """A pass in training mode in which every part of the batch sees weight samples of its own.

    Args:
        net: the network.
        weights: K samples for each of the parts, part by part; one sample is for all.
        x: inputs, B a multiple of `parts`.
        parts: they go where replicas stand, side by side.

    Returns:
        (out of all B examples, each from its part's K samples; pullback). The taps have parts * K samples of B / parts
        examples, whose mean is that over all.
    """
    if parts == 1:
        return net.train_forward(weights, x)
    mine = [w.expand(-1, parts, -1, -1) if w.shape[1] == 1 else w for w in weights]
    out, pullback = net.train_forward([_apart(w, parts) for w in mine], _apart(x, parts))
    samples = out.shape[1]

    def together(taps: Taps) -> Taps:
        def inputs(examples: slice) -> Tensor:
            return _together(taps.part(examples).inputs.expand(-1, samples, -1, -1, -1), parts)

        return Taps(inputs, _together(taps.grads, parts))

    def back(dout: Tensor) -> LayerTaps:
        apart = pullback(dout.unflatten(2, (parts, -1)).transpose(1, 2).flatten(0, 1))
        taps = LayerTaps(map(together, apart))
        taps.norms = tuple(NormTaps(*(_together(t, parts) for t in norm)) for norm in apart.norms)
        return taps

    return out.unflatten(0, (-1, parts)).transpose(1, 2).flatten(2, 3), back


def _apart(x: Tensor, parts: int) -> Tensor:
    """[R, (parts n), ...] -> [(R parts), n, ...]."""
    return x.unflatten(1, (parts, -1)).flatten(0, 1)


def _together(x: Tensor, parts: int) -> Tensor:
    """[(R parts), n, ...] -> [R, (parts n), ...]."""
    return x.unflatten(0, (-1, parts)).flatten(1, 2)
