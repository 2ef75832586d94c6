"""How much memory something takes."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

UPDATES = """
def memory(key):
    line = next(l for l in open("/proc/self/status") if l.startswith(key))
    return int(line.split()[1]) / 2**20

start = memory("VmRSS")
for _ in range(2):
    state, _ = posterior.update(state, batch, rng)
assert state.common.alive.all()
print(memory("VmHWM") - start)
"""


def peak_of_updates(setup):
    """GiB above the start that two updates take at most, in a process of their own.

    `setup` is a script that defines posterior, state, batch and rng.
    """
    if not Path("/proc/self/status").exists():
        pytest.skip("the peak is read from /proc")
    script = textwrap.dedent(setup) + UPDATES
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return float(done.stdout)


class Largest(TorchDispatchMode):
    """How many numbers the largest tensor holds that is made within."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for made in result if isinstance(result, tuple | list) else [result]:
            if isinstance(made, torch.Tensor):
                self.numbers = max(self.numbers, made.numel())
        return result
