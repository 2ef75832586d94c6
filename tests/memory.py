"""How much memory updates of a posterior take."""

import subprocess
import sys
import textwrap

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
    script = textwrap.dedent(setup) + UPDATES
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return float(done.stdout)
