"""Independent work side by side on a GPU, of which most is idle during a factorisation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeVar

import torch

STREAMS = 8

T = TypeVar("T")


def side_by_side(works: Sequence[Callable[[], T]], device: torch.device) -> list[T]:
    """What they return, in order: on a GPU from streams of their own, elsewhere one after the other.

    All begin after what was asked of the GPU before, and what is asked of it next begins after all of them. A graph
    that is being recorded takes them as branches. What a stream's memory is used for next waits in the same way, so
    that no tensor need be marked as another stream's.
    """
    if device.type != "cuda":
        return [work() for work in works]
    here, streams = torch.cuda.current_stream(device), _streams(device)[: len(works)]
    for stream in streams:
        stream.wait_stream(here)
    found = []
    try:
        for i, work in enumerate(works):
            with torch.cuda.stream(streams[i % len(streams)]):
                found.append(work())
    finally:  # after an error, too: what the others still read may be freed
        for stream in streams:
            here.wait_stream(stream)
    return found


@lru_cache
def _streams(device: torch.device) -> tuple[torch.cuda.Stream, ...]:
    return tuple(torch.cuda.Stream(device) for _ in range(STREAMS))
