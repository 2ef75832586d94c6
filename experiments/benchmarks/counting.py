"""What a computation asks of a device, counted without one: on torch's `meta` device, where tensors have no values.

What runs there never waits for a device: a read of a value by the host raises, and so does a tensor that was left on
another device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

aten = torch.ops.aten


class Cost(NamedTuple):
    """Of one computation."""

    operations: int  # on the device, but for views: a kernel is launched for each, or for a part of it
    flops: int  # of products, convolutions and factorisations; a multiplication and an addition are two
    uploads: int  # copies of tensors, numbers and indices from the host to the device
    bytes: int  # that those operations read and write, were nothing of it kept in a cache


def measure(run: Callable[[], object]) -> Cost:
    """What it costs.

    Raises:
        RuntimeError: where the host reads a value, or tensors are on several devices.
    """
    flops = FlopCounterMode(display=False, custom_mapping=FACTORISATIONS)
    with _Uploads() as made_tensors, flops, _Operations() as operations:
        run()
    uploads = operations.uploads + made_tensors.uploads
    return Cost(operations.operations, flops.get_total_flops(), uploads, operations.bytes)


class _Uploads(TorchFunctionMode):
    """Counts the tensors that are made on the device of numbers of the host, which no operation shows."""

    uploads = 0

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if func in MAKERS:
            data = args[1] if func is Tensor.new_tensor else args[0]
            self.uploads += out.is_meta and not isinstance(data, Tensor)
        return out


class _Operations(TorchDispatchMode):
    """Counts what is done to tensors on the device; those of the host, such as a count of steps, are free."""

    operations = uploads = bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        inputs, outputs = (
            [t for t in tree_leaves(leaves) if isinstance(t, Tensor)] for leaves in ((args, kwargs), out)
        )
        if any(t.is_meta for t in outputs) and not func.is_view and func is not aten._unsafe_view.default:
            self.operations += 1
            self.bytes += sum(map(_bytes, {id(t): t for t in inputs}.values())) + sum(map(_bytes, outputs))
            # A number of the host goes along with an operation between tensors; it is no copy.
            self.uploads += func in COPIES and any(not t.is_meta for t in inputs)
        return out


MAKERS = {torch.tensor, torch.as_tensor, Tensor.new_tensor}
COPIES = {aten._to_copy.default, aten.copy_.default, aten.index.Tensor, aten.index_put.default, aten.index_put_.default}


def _bytes(tensor: Tensor) -> int:
    """What is touched of it; of what is repeated by a stride of 0, once."""
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())


def _cubes(shape: Sequence[int]) -> int:
    """N^3, summed over a batch of N x N matrices."""
    return math.prod(shape[:-2]) * shape[-1] ** 3


FACTORISATIONS: dict[Any, Callable[..., int]] = {
    aten.linalg_cholesky_ex: lambda shape, *_, **__: _cubes(shape) // 3,
    aten.linalg_solve_triangular: lambda shape, other, *_, **__: math.prod(shape[:-1]) * shape[-1] * other[-1],
    aten._linalg_eigh: lambda shape, *_, **__: 9 * _cubes(shape),  # by QR iterations (Golub and Van Loan, Section 8.3)
}
