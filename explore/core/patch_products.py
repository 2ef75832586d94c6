"""The second moment of a convolution's patches, without the patches.

An entry of the sum over positions t of patches a a^T is that of x_c(t + u) x_c'(t + v) for two places u, v of the
kernel, and so, with s = t + u and d = v - u, of x_c(s) x_c'(s + d) over a box of positions s. Pairs of shifted images
are multiplied once for each d up to its sign, and summed over boxes, few of which differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import torch
from jaxtyping import Float
from torch import Tensor

Pair = tuple[int, ...]
"""Down and across."""


def products(x: Float[Tensor, "R N C height width"], kernel: Pair, pad: Pair, one: bool) -> Float[Tensor, "R I I"]:
    """Return the sum over N and positions of a a^T, for patches a with stride 1 that end with 1 where `one` is set."""
    r, n, c, h, w = x.shape
    places = kernel[0] * kernel[1]
    sides = tuple(size + 2 * p - k + 1 for size, p, k in zip((h, w), pad, kernel, strict=True))
    # Beyond the last position come zeros, so that all shifted images have as many rows as those they are multiplied by.
    images = x.new_zeros(h * w + kernel[1] - 1, r, c, n)
    images[: h * w].unflatten(0, (h, w)).copy_(x.permute(3, 4, 0, 2, 1))
    sums = dict(_blocks(images, (h, w), kernel, pad, sides))
    zero = x.new_zeros(r, c, c)
    blocks = [
        sums[i, j] if (i, j) in sums else sums[j, i].mT if (j, i) in sums else zero
        for i, j in product(range(places), repeat=2)
    ]
    whole = x.new_empty(r, c * places + one, c * places + one)
    inner = whole[:, : c * places, : c * places].unflatten(2, (c, places)).unflatten(1, (c, places))
    inner.permute(2, 4, 0, 1, 3).copy_(torch.stack(blocks).unflatten(0, (places, places)))
    if one:
        summed = x.sum(1)
        down, across = (
            [_box(size, place, p, side) for place in range(k)]
            for size, k, p, side in zip((h, w), kernel, pad, sides, strict=True)
        )
        edge = [summed[:, :, slice(*i), slice(*j)].sum((2, 3)) for i in down for j in across]
        whole[:, -1, :-1] = whole[:, :-1, -1] = torch.stack(edge, 2).flatten(1)
        whole[:, -1, -1] = n * sides[0] * sides[1]
    return whole


def _box(size: int, place: int, pad: int, side: int, apart: int = 0) -> Pair:
    """First and one past the last s = t + u on an axis, over positions t, for which s and s + d are in the image."""
    first = place - pad
    start = max(0, first, -apart)
    return start, max(start, min(size, first + side, size - apart))


def _blocks(
    images: Float[Tensor, "P R C N"], size: Pair, kernel: Pair, pad: Pair, sides: Pair
) -> Iterator[tuple[Pair, Float[Tensor, "R C C"]]]:
    """The sums for ordered pairs of places (numbered row by row): first <= second."""
    (h, w), (high, wide) = size, kernel
    r, c = images.shape[1:3]
    for down in range(min(high, h)):
        for across in range(max(1 - wide, 1 - w) if down else 0, min(wide, w)):
            # Where a row runs over into the next one no box has a position.
            shift, count = down * w + across, (h - down) * w
            image, shifted = images[:count], images[shift : shift + count]
            each = torch.bmm(image.flatten(0, 1), shifted.flatten(0, 1).mT).view(h - down, -1)
            over_rows: dict[Pair, Tensor] = {}
            sums: dict[tuple[Pair, Pair], Tensor] = {}
            for i, j in product(range(high - down), range(max(0, -across), min(wide, wide - across))):
                box = rows, columns = _box(h, i, pad[0], sides[0], down), _box(w, j, pad[1], sides[1], across)
                if rows not in over_rows:
                    over_rows[rows] = each[slice(*rows)].sum(0).view(w, -1)
                if box not in sums:
                    sums[box] = over_rows[rows][slice(*columns)].sum(0).view(r, c, c)
                yield (i * wide + j, (i + down) * wide + j + across), sums[box]
