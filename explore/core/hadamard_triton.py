"""The Walsh-Hadamard transform as a Triton kernel: each row is read once, transformed in registers and written once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

LONGEST = 2**15  # numbers that the registers of one program can hold
SHARED = 48 * 2**10  # bytes of shared memory of a program, if the GPU does not report the number
TILE = 2**11  # each program transforms at least this many numbers, in as many rows as needed


@triton.jit
def _butterflies(  # type: ignore[no-untyped-def]
    x, y, rows, ROWS: tl.constexpr, D: tl.constexpr, BITS: tl.constexpr, TYPE: tl.constexpr, SCALE: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    at = row * D + tl.arange(0, D)[None, :]
    v = tl.load(x + at, mask=row < rows, other=0.0).to(TYPE)
    # Each turn transforms the lowest bit of the index and makes it the highest; BITS turns restore the order.
    for _ in tl.static_range(BITS):
        a, b = tl.split(tl.reshape(v, (ROWS, D // 2, 2)))
        v = tl.reshape(tl.permute(tl.join(a + b, a - b), (0, 2, 1)), (ROWS, D))
    tl.store(y + at, (v * SCALE).to(y.dtype.element_ty), mask=row < rows)


def fits(x: Tensor) -> bool:
    """Return whether a row of x fits into the registers and the shared memory of one Triton program."""
    d, card = x.shape[-1], torch.cuda.get_device_properties(x.device)
    room: int = getattr(card, "shared_memory_per_block_optin", SHARED)
    return d <= LONGEST and d * max(x.element_size(), 4) < room  # Triton may pad it


def transform(x: Tensor, orthonormal: bool) -> Tensor:
    """Return the transform of each row of x [N, D]; x must be contiguous and satisfy `fits`."""
    n, d = x.shape
    y = torch.empty_like(x)
    rows = max(1, TILE // d)
    warps = min(16, max(4, rows * d // 1024))
    kind = tl.float64 if x.dtype == torch.float64 else tl.float32
    with torch.cuda.device_of(x):  # Triton launches on the current device
        _butterflies[(triton.cdiv(n, rows),)](
            x, y, n, rows, d, d.bit_length() - 1, kind, d**-0.5 if orthonormal else 1.0, num_warps=warps
        )
    return y
