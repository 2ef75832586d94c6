"""What `explore --version` prints: the facts that a bug report needs."""

import platform

import torch

from explore.core import machine
from explore.runs import provenance


def describe() -> str:
    """Return the versions, the devices and the number of threads, one per line."""
    versions = provenance.versions()
    explore, python = versions.pop("explore"), versions.pop("python")
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    lines = [
        f"explore, version {explore}",
        f"Python {python} on {platform.platform()}",
        ", ".join(f"{name} {version}" for name, version in versions.items()),
        f"devices: {', '.join(['cpu', *(f'cuda:{i} ({name})' for i, name in enumerate(gpus))])}",
        f"threads: 1 (change with --threads), {machine.cores()} cores",
    ]
    return "\n".join(lines)
