"""The fast Walsh-Hadamard transform: y = H x in O(D log D) operations; a dense product takes D^2.

    H_1 = 1,   H_2D = [[H_D, H_D], [H_D, -H_D]]              entries +-1; orthonormal after division by sqrt(D)

As H_ab = H_a (x) H_b, a long transform is computed by a few small matrix products, each along one axis of the reshaped
vector.
"""

import math
from functools import lru_cache

import torch
from torch import Tensor

from explore.core.errors import InputError

DENSE = 128  # up to this D one dense product is fastest, measured on a CPU
FACTOR_BITS = 5  # longer transforms use blocks at most 2^5 wide


def hadamard(x: Tensor, orthonormal: bool = True) -> Tensor:
    """Transform the last axis of x [..., D] in natural (Hadamard, not sequency) order; D must be a power of two."""
    if not x.is_floating_point():
        raise InputError(f"the Walsh-Hadamard transform needs floating-point numbers; got {x.dtype}")
    d = x.shape[-1] if x.dim() else 0
    if d < 1 or d & (d - 1):
        raise InputError(f"the Walsh-Hadamard transform needs a size that is a power of two; got {d}")
    if x.dtype in (torch.bfloat16, torch.float16):
        return hadamard(x.float(), orthonormal).to(x.dtype)
    if d <= DENSE:
        return x.contiguous() @ _matrix(d, orthonormal, x.dtype, x.device)
    bits = d.bit_length() - 1
    count = math.ceil(bits / FACTOR_BITS)
    widths = [2 ** ((bits + i) // count) for i in range(count)]  # their product is D
    *factors, last = [_matrix(width, orthonormal, x.dtype, x.device) for width in widths]
    y, inner = x.reshape(-1, len(last)) @ last, len(last)
    for h in reversed(factors):
        y, inner = h @ y.reshape(-1, len(h), inner), inner * len(h)
    return y.view(x.shape)


@lru_cache
def _matrix(d: int, orthonormal: bool, dtype: torch.dtype, device: torch.device) -> Tensor:
    h = torch.ones(1, 1, dtype=torch.float64)
    while len(h) < d:
        h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)])
    return (h * d**-0.5 if orthonormal else h).to(device, dtype)
