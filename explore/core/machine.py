"""Hardware resources."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

THREADS = max(256, os.cpu_count() or 1)  # upper limit: OpenMP ends the process if the system refuses more


def memory() -> float:
    """Return the physical memory in bytes; infinity if unknown."""
    if not (hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names):
        return float("inf")
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def cores() -> int:
    """Return the number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def devices() -> list[str]:
    """Return the names of the available devices, such as "cpu", "cuda" and "cuda:0"."""
    import torch  # noqa: PLC0415 - listing plug-ins needs no torch

    count = torch.cuda.device_count()
    return ["cpu", *(["cuda"] if count else []), *(f"cuda:{i}" for i in range(count))]


def seconds(device: torch.device) -> float:
    """Return a clock reading in seconds, taken after all work on the device is done."""
    if device.type == "cuda":
        import torch  # noqa: PLC0415 - listing plug-ins needs no torch

        torch.cuda.synchronize(device)
    return time.perf_counter()
