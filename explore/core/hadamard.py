"""The fast Walsh-Hadamard transform: y = H x in O(D log D) operations; a dense product takes D^2.

    H_1 = 1,   H_2D = [[H_D, H_D], [H_D, -H_D]]              entries +-1; orthonormal after division by sqrt(D)

H is symmetric, so the gradient of the transform is the transform of the gradient. As H_ab = H_a (x) H_b, a long
transform is computed by a few small matrix products, each along one axis of the reshaped vector.
"""

import math
from functools import lru_cache
from importlib.util import find_spec

import torch
from torch import Tensor

from explore.core.errors import InputError

DENSE = 128  # up to this D one dense product is fastest, measured on a CPU
FACTOR_BITS = 5  # longer transforms use blocks at most 2^5 wide
CHUNK = 2**17  # numbers that a CPU transforms at a time, so that intermediate results stay in its cache


def hadamard(x: Tensor, orthonormal: bool = True) -> Tensor:
    """Transform the last axis of x [..., D] in natural (Hadamard, not sequency) order; D must be a power of two."""
    if not x.is_floating_point():
        raise InputError(f"the Walsh-Hadamard transform needs floating-point numbers; got {x.dtype}")
    d = x.shape[-1] if x.dim() else 0
    if d < 1 or d & (d - 1):
        raise InputError(f"the Walsh-Hadamard transform needs a size that is a power of two; got {d}")
    if x.requires_grad and torch.is_grad_enabled():
        return _Hadamard.apply(x, orthonormal)
    return _transform(x, orthonormal)  # building an autograd graph would take half the time of a short transform


class _Hadamard(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, orthonormal):  # type: ignore[no-untyped-def]
        ctx.orthonormal = orthonormal
        return _transform(x, orthonormal)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        return hadamard(grad, ctx.orthonormal), None


def _transform(x: Tensor, orthonormal: bool) -> Tensor:
    d = x.shape[-1]
    if not x.numel():
        return x.clone()
    if x.is_cuda and _has("triton"):
        from explore.core import hadamard_triton

        if hadamard_triton.fits(x):
            return hadamard_triton.transform(x.reshape(-1, d).contiguous(), orthonormal).view(x.shape)
    if x.dtype in (torch.bfloat16, torch.float16):
        return _blocked(x.float(), orthonormal).to(x.dtype)
    if d >= DENSE and x.is_cpu and _has("fht_cpu"):
        return _fht_cpu(x, orthonormal)
    return _blocked(x, orthonormal)


def _blocked(x: Tensor, orthonormal: bool) -> Tensor:
    """Transform x by one matrix product per Kronecker factor of H."""
    d = x.shape[-1]
    if d <= DENSE:
        return x.contiguous() @ _matrix(d, orthonormal, x.dtype, x.device)
    bits = d.bit_length() - 1
    count = math.ceil(bits / FACTOR_BITS)
    widths = [2 ** ((bits + i) // count) for i in range(count)]  # their product is D
    factors = [_matrix(width, orthonormal, x.dtype, x.device) for width in widths]
    rows = x.reshape(-1, d)
    out = torch.empty_like(rows, memory_format=torch.contiguous_format)
    size = max(1, CHUNK // d) if x.is_cpu else len(rows)
    for part, target in zip(rows.split(size), out.split(size), strict=True):
        y, inner = part.reshape(-1, len(factors[-1])) @ factors[-1], len(factors[-1])
        for h in factors[-2:0:-1]:
            y, inner = h @ y.reshape(-1, len(h), inner), inner * len(h)
        torch.matmul(factors[0], y.reshape(-1, len(factors[0]), inner), out=target.view(-1, len(factors[0]), inner))
    return out.view(x.shape)


def _fht_cpu(x: Tensor, orthonormal: bool) -> Tensor:
    """Transform x with the package fht-cpu. Its NumPy interface has the least overhead."""
    from fht_cpu import fht

    d = x.shape[-1]
    out = x.contiguous().numpy(force=True) * (d**-0.5 if orthonormal else 1.0)
    fht(out.reshape(-1, d), num_threads=torch.get_num_threads())  # in place
    return torch.from_numpy(out)


@lru_cache
def _has(package: str) -> bool:
    return find_spec(package) is not None


@lru_cache
def _matrix(d: int, orthonormal: bool, dtype: torch.dtype, device: torch.device) -> Tensor:
    h = torch.ones(1, 1, dtype=torch.float64)
    while len(h) < d:
        h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)])
    return (h * d**-0.5 if orthonormal else h).to(device, dtype)
