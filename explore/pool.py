"""The points of a pool, known by what they hold, so that labels find theirs where the order is another."""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from explore.errors import InputError
from explore.rng import Rng

BYTES = 16  # of a point's fingerprint


def numbers(values: Any, what: Literal["input", "label"]) -> Tensor:
    """Finite numbers as a tensor, where and of the type they are.

    Raises:
        InputError: for anything else; the message calls them `what`.
    """
    try:
        # Writable: arrays out of pandas often are not, and torch warns of those.
        found = torch.as_tensor(values if isinstance(values, Tensor) else np.require(values, requirements="W"))
    except (TypeError, ValueError):
        raise InputError(f"{what}s must be numbers, in an array whose rows are equally long") from None
    if not found.isfinite().all():
        raise InputError(f"{'an' if what == 'input' else 'a'} {what} is not a finite number")
    return found


class Pool:
    """P points, and which of them each of T trials may choose.

    Args:
        x: [P, ...] their inputs.
        allowed: [T, P]; None: all.
        trials: T.
        rng: says device and floating-point type.

    Raises:
        InputError: for inputs that are not finite numbers, no points, or a mask of another shape or type.
    """

    def __init__(self, x: Any, allowed: np.ndarray | Tensor | None, trials: int, rng: Rng):
        self._rng = rng
        self.x = self._placed(numbers(x, "input"))
        if not self.x.dim() or not len(self.x):
            raise InputError("a pool needs at least one point, [points, ...]")
        given = np.ones((trials, len(self.x)), bool) if allowed is None else allowed
        mask = given if isinstance(given, Tensor) else np.asarray(given)
        if mask.dtype not in (torch.bool, np.bool_) or tuple(mask.shape) != (trials, len(self.x)):
            raise InputError(
                f"allowed is true or false for {trials} trials and {len(self.x)} points, [{trials}, {len(self.x)}]; "
                f"got {list(mask.shape)} of {mask.dtype}"
            )
        self.allowed = torch.as_tensor(mask, device=rng.device)

    def like(self, x: Any) -> Tensor:
        """Other inputs [n, ...] of the same shape as the pool's.

        Raises:
            InputError: for another shape, or numbers that are not finite.
        """
        found = self._placed(numbers(x, "input"))
        if found.dim() != self.x.dim() or found.shape[1:] != self.x.shape[1:] or not len(found):
            raise InputError(
                f"inputs come as [n, {', '.join(map(str, self.x.shape[1:]))}], as those of the pool; "
                f"got {list(found.shape)}"
            )
        return found

    def _placed(self, x: Tensor) -> Tensor:
        """Features in double precision until they are standardised: single would merge neighbouring time stamps."""
        return x.to(self._rng.device, torch.float64 if x.dim() == 2 else self._rng.dtype)

    @cached_property
    def fingerprints(self) -> UInt8[np.ndarray, "P 16"]:
        """A hash of each point's float64 values."""
        found = bytearray()
        for part in self.x.split(1024):
            # + 0.0 makes a positive zero of a negative one, which equals it.
            for row in part.to("cpu", torch.float64).numpy() + 0.0:
                found += hashlib.blake2b(row.tobytes(), digest_size=BYTES).digest()
        return np.frombuffer(bytes(found), np.uint8).reshape(-1, BYTES)

    @cached_property
    def digest(self) -> UInt8[np.ndarray, "T 32"]:
        """A hash of each trial's points, allowed or not, whatever their order."""
        contents, kind = np.unique(self.fingerprints, axis=0, return_inverse=True)
        head = hashlib.sha256(str(tuple(self.x.shape)).encode() + contents.tobytes())
        found = bytearray()
        for allowed in self.allowed.cpu().numpy():
            each = head.copy()
            each.update(np.sort(2 * kind.reshape(-1) + allowed).astype("<i8").tobytes())
            found += each.digest()
        return np.frombuffer(bytes(found), np.uint8).reshape(-1, 32)

    def find(self, fingerprints: UInt8[np.ndarray, "R n 16"], known: Int[Tensor, "R n"]) -> Int[Tensor, "R n"]:
        """Where points are that stood at `known` in some order of this pool; equal points are interchangeable.

        R is a multiple of T. A replica whose points all stand where they stood keeps them.

        Raises:
            InputError: for a point that is not there, or may not be chosen.
        """
        found, allowed = known.cpu().numpy().copy(), self.allowed.cpu().numpy()
        for r, (wanted, places) in enumerate(zip(fingerprints, found, strict=True)):
            mine = allowed[r % len(allowed)]
            there = (places >= 0).all() and places.max(initial=0) < len(mine) and mine[places].all()
            if there and (self.fingerprints[places] == wanted).all():
                continue
            free: dict[bytes, list[int]] = {}
            for point in np.flatnonzero(mine)[::-1]:
                free.setdefault(self.fingerprints[point].tobytes(), []).append(int(point))
            try:
                found[r] = [free[row.tobytes()].pop() for row in wanted]
            except (KeyError, IndexError):
                raise InputError("a label belongs to a point that is not in this pool") from None
        return torch.as_tensor(found, device=known.device)
