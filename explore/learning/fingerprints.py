"""Points known by what they hold, so that labels find theirs where the order is another."""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from jaxtyping import Bool, Int, UInt8
from torch import Tensor

from explore.core.errors import InputError

BYTES = 16  # of a point's fingerprint


def fingerprints(x: Tensor) -> UInt8[np.ndarray, "P 16"]:
    """A hash of the float64 values of each of the points x [P, ...]."""
    hashes = bytearray()
    for part in x.split(1024):
        # + 0.0 makes a positive zero of a negative one, which equals it.
        for row in part.to("cpu", torch.float64).numpy() + 0.0:
            hashes += hashlib.blake2b(row.tobytes(), digest_size=BYTES).digest()
    return np.frombuffer(bytes(hashes), np.uint8).reshape(-1, BYTES)


def digest(x: Tensor, prints: UInt8[np.ndarray, "P 16"], allowed: Bool[Tensor, "T P"]) -> UInt8[np.ndarray, "T 32"]:
    """A hash of each trial's points with their fingerprints, allowed or not, whatever their order."""
    contents, kind = np.unique(prints, axis=0, return_inverse=True)
    head = hashlib.sha256(str(tuple(x.shape)).encode() + contents.tobytes())
    hashes = bytearray()
    for mine in allowed.cpu().numpy():
        each = head.copy()
        each.update(np.sort(2 * kind.reshape(-1) + mine).astype("<i8").tobytes())
        hashes += each.digest()
    return np.frombuffer(bytes(hashes), np.uint8).reshape(-1, 32)


def find(
    wanted: UInt8[np.ndarray, "R n 16"],
    known: Int[Tensor, "R n"],
    prints: UInt8[np.ndarray, "P 16"],
    allowed: Bool[Tensor, "R P"],
) -> Int[Tensor, "R n"]:
    """Where points are that stood at `known` in some order of the pool; equal points are interchangeable.

    A replica whose points all stand where they stood keeps them.

    Raises:
        InputError: for a point that is not there, or may not be chosen.
    """
    places = known.cpu().numpy().copy()
    for r, (rows, before, mine) in enumerate(zip(wanted, places, allowed.cpu().numpy(), strict=True)):
        there = (before >= 0).all() and before.max(initial=0) < len(mine) and mine[before].all()
        if there and (prints[before] == rows).all():
            continue
        free: dict[bytes, list[int]] = {}
        for point in np.flatnonzero(mine)[::-1]:
            free.setdefault(prints[point].tobytes(), []).append(int(point))
        try:
            places[r] = [free[row.tobytes()].pop() for row in rows]
        except (KeyError, IndexError):
            raise InputError("a label belongs to a point that is not in this pool") from None
    return torch.as_tensor(places, device=known.device)
