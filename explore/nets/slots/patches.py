"""The second moment of the patches of images, without the patches."""

from collections.abc import Iterator
from itertools import product

import torch
from jaxtyping import Float
from torch import Tensor

Pair = tuple[int, ...]
"""Two numbers, vertical and horizontal."""


def patch_products(
    x: Float[Tensor, "R N C height width"], kernel: Pair, pad: Pair, one: bool
) -> Float[Tensor, "R I I"]:
    """Return the sum of p p^T over N and positions, for patches p of x with stride 1; `one` appends a 1 to each p.

    For two places u, v of the kernel, an entry is the sum of x_c(t + u) x_c'(t + v) over positions t. With s = t + u
    and d = v - u, it is the sum of x_c(s) x_c'(s + d) over a box of s. So one product of shifted images is enough for
    each d, and d and -d share one.
    """
    r, n, c, h, w = x.shape
    places = kernel[0] * kernel[1]
    sides = tuple(size + 2 * p - k + 1 for size, p, k in zip((h, w), pad, kernel, strict=True))
    # Zeros after the last pixel, so that all shifted images have as many rows as their factors.
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
    """Return the range [start, stop) of s in `patch_products`, on one axis, for u = `place` and d = `apart`."""
    first = place - pad
    start = max(0, first, -apart)
    return start, max(start, min(size, first + side, size - apart))


def _blocks(
    images: Float[Tensor, "P R C N"], size: Pair, kernel: Pair, pad: Pair, sides: Pair
) -> Iterator[tuple[Pair, Float[Tensor, "R C C"]]]:
    """Yield ((i, j), block of `patch_products`) for kernel places i <= j, which are numbered row by row."""
    (h, w), (high, wide) = size, kernel
    r, c = images.shape[1:3]
    for down in range(min(high, h)):
        for across in range(max(1 - wide, 1 - w) if down else 0, min(wide, w)):
            # Shifts that wrap around to the next row are in no box.
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
