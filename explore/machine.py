"""What this machine has."""

import os


def memory() -> float:
    """Its bytes of memory; infinity where that is not known."""
    known = hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")) if known else float("inf")


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
