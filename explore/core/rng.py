"""Random numbers: named streams derived from one root seed; the only module that sets a device or a dtype.

Every consumer uses a separate stream, e.g. `rng.stream("fit", round)`. So a new draw in one place changes no other
draws, and an interrupted run can resume without a saved generator state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from explore.core import machine
from explore.core.errors import InputError, one_of, shown

# The position in this tuple is the key of a stream, so only append names.
STREAMS = ("split", "init", "fit", "acquire", "test", "env", "policy", "toy", "calibrate")

Kind = Callable[..., Tensor]
"""A torch function that draws numbers: `torch.randn` or `torch.rand`."""


class Rng:
    """A stream of random tensors of one device and `dtype`, float32 or float64, from a root seed of 0 to 2^63 - 1.

    `arms` is the number of equal blocks of the replica axis that get the SAME numbers (common random numbers), so that
    the arms of a paired comparison differ only in their methods.
    """

    def __init__(
        self,
        seed: int,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
        arms: int = 1,
        _key: tuple[int, ...] = (),
    ):
        if not (isinstance(seed, int | np.integer) and 0 <= seed < 2**63):
            raise InputError(f"the seed is {shown(seed)}; it must be a whole number from 0 to {2**63 - 1}")
        if dtype not in (torch.float32, torch.float64):
            raise InputError(f"dtype is {dtype}; it must be torch.float32 or torch.float64")
        self.seed, self.dtype, self.arms, self._key = int(seed), dtype, arms, _key
        state = np.random.SeedSequence(self.seed, spawn_key=_key).generate_state(1, np.uint64)[0]
        try:
            self.device = torch.device(device)
            drawn_on = "cpu" if self.device.type == "meta" else self.device  # meta tensors have shapes only
            self.generator = torch.Generator(drawn_on).manual_seed(int(state) >> 1)
        except (RuntimeError, TypeError) as error:
            allowed = ", ".join(machine.devices())
            raise InputError(f"device {shown(str(device))} is not available; allowed: {allowed}") from error

    def stream(self, name: str, *index: int) -> Rng:
        """Return a new stream, which depends only on the root seed, the name and the indices."""
        if name not in STREAMS:
            raise one_of("random stream", name, STREAMS)
        return Rng(self.seed, self.device, self.dtype, self.arms, (STREAMS.index(name), *index))

    def shard(self, *index: int) -> Rng:
        """Return a new stream for one part of a task; it depends on this stream and `index`, not on past draws."""
        return Rng(self.seed, self.device, self.dtype, self.arms, (*self._key, *index))

    def normal(self, *shape: int) -> Float[Tensor, "..."]:
        """Draw standard normal numbers; the first axis is R."""
        return self.draw(torch.randn, shape)

    def uniform(self, *shape: int) -> Float[Tensor, "..."]:
        """Draw uniform numbers in [0, 1); the first axis is R."""
        return self.draw(torch.rand, shape)

    def gamma(self, concentration: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Draw from Gamma(concentration, rate 1) by rejection (Marsaglia and Tsang 2000); needs concentration >= 1."""
        if self.arms == 1 and not concentration.is_cpu:  # one launch; several arms need the same proposals
            return torch._standard_gamma(concentration, self.generator).clamp_min(1e-30)
        d = (concentration - 1 / 3).unsqueeze(-1)
        x = self.normal(*concentration.shape, 6)
        v = (1 + x / (9 * d).sqrt()) ** 3
        # If v is not positive, its logarithm is NaN (or -inf) and the comparison rejects it.
        accepted = self.uniform(*x.shape).log() < 0.5 * x**2 + d * (1 - v + v.log())
        accepted[..., -1] = True
        first = accepted.int().argmax(-1, keepdim=True)
        return (d * v).gather(-1, first).squeeze(-1).clamp_min(1e-30)

    def permutation(self, replicas: int, n: int) -> Int[Tensor, "R n"]:
        """Draw one random permutation of 0 to n - 1 for each replica."""
        return self.uniform(replicas, n).argsort(-1)

    def tensor(self, values: Any) -> Tensor:
        """Convert a tensor, array or nested list to a tensor on `device`; convert floating-point values to `dtype`."""
        # torch warns about read-only arrays, which pandas often returns.
        writable = values if isinstance(values, Tensor) else np.require(values, requirements="W")
        t = torch.as_tensor(writable, device=self.device)
        return t.to(self.dtype) if t.is_floating_point() else t

    def draw(self, kind: Kind, shape: tuple[int, ...]) -> Tensor:
        """Draw numbers of this shape with the torch function `kind`; all arms get the same numbers."""
        first = shape[0] // self.arms
        if first * self.arms != shape[0]:
            raise ValueError(f"{shape[0]} replicas cannot be split into {self.arms} equal arms")
        numbers = kind(first, *shape[1:], generator=self.generator, device=self.device, dtype=self.dtype)
        return numbers if self.arms == 1 else numbers.repeat(self.arms, *[1] * (len(shape) - 1))


@contextmanager
def forked(seed: int, device: torch.device) -> Iterator[None]:
    """Let torch's global generators start from a seed within a block, for code that draws from them."""
    cuda = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=cuda):
        torch.default_generator.manual_seed(seed)
        for each in cuda:
            torch.cuda.default_generators[each.index or 0].manual_seed(seed)
        yield
