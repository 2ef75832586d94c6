"""Hardware resources."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

THREADS = max(256, os.cpu_count() or 1)  # at most: OpenMP ends the process when the system refuses more


def memory() -> float:
    """The memory in bytes; infinity where unknown."""
    if not (hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names):
        return float("inf")
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def devices() -> list[str]:
    """The devices on which computations can run."""
    import torch  # noqa: PLC0415 - listing what there is takes no torch

    count = torch.cuda.device_count()
    return ["cpu", *(["cuda"] if count else []), *(f"cuda:{i}" for i in range(count))]


def seconds(device: torch.device) -> float:
    """A clock, read after all work on the device is done."""
    if device.type == "cuda":
        import torch  # noqa: PLC0415 - listing what there is takes no torch

        torch.cuda.synchronize(device)
    return time.perf_counter()
