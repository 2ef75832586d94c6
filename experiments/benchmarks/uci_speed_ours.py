"""One round of `uci_speed` with the library found by Python: `python uci_speed_ours.py SECONDS [POSTERIOR ...]`.

Prints a line of JSON a posterior and form. It uses nothing that older checkouts lack.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import sys
import time
from typing import Any

import torch

from explore import registry
from explore.core.rng import Rng
from explore.core.shapes import Batch
from explore.nets.likelihoods import Gaussian
from explore.nets.net import Net, mlp

EXAMPLES, BATCHES, EPOCHS = 455, 46, 100
COUNTS = {"samples", "members"}  # fields that say how many nets a posterior runs at once
KRONECKER = {"noisy-kfac", "noisy-ekfac", "block-tridiagonal"}  # by the papers' settings, and by their preset `default`
TABLE = ", preset default"
COMPILED = ", compiled"  # as by --graphs, of the former; once all kinds of updates are


def step_of(posterior: Any, batch: Batch, rng: Rng, compiled: bool) -> Any:
    """A function of a state and the progress that updates the state."""
    if not compiled:
        return lambda state, progress: posterior.update(state, batch, rng, progress)[0]
    from explore.execution import graphs  # which older checkouts lack

    with graphs.use(True):
        update = graphs.updates(posterior, rng)
    return lambda state, progress: update(state, batch, progress)[0]


def per_update(name: str, samples: int, replicas: int, seconds: float) -> float:
    """Processor seconds of an update, after one that warms up, in the mean over a training.

    At least two and at most two epochs are timed.
    """
    compiled, name = name.endswith(COMPILED), name.removesuffix(COMPILED)
    cls = registry.find("posteriors", name.removesuffix(TABLE))
    settings: dict[str, object] = {"adaptive_damping": False} if name in KRONECKER else {}
    if name.endswith(TABLE):
        settings = registry.settings_in(cls, "default")
    settings |= {field.name: samples for field in dataclasses.fields(cls) if field.name in COUNTS}
    posterior = cls(net=Net(mlp(13, [50], 1)), likelihood=Gaussian(), **settings)
    rng = Rng(0)
    batch = Batch(rng.normal(replicas, 10, 13), rng.normal(replicas, 10, 1))
    state, step = posterior.init(EXAMPLES, replicas, rng), step_of(posterior, batch, rng, compiled)
    if compiled:
        for i in range(4 * BATCHES):
            state = step(state, i / (4 * BATCHES))
    for _ in range(2):
        start = time.process_time()
        state = step(state, 0.9)
        once = time.process_time() - start
    count = min(max(2, int(seconds / once)), 2 * BATCHES)
    start = time.process_time()
    for i in range(count):
        state = step(state, i / count)
    return (time.process_time() - start) / count


def main() -> None:
    """Measure every form of every posterior."""
    torch.set_num_threads(1)
    seconds, names = float(sys.argv[1]), sys.argv[2:]
    names = names or [name for name in registry.names("posteriors") if name != "hmc"]
    names += [name + TABLE for name in names if name in KRONECKER]
    if importlib.util.find_spec("explore.execution.compiled"):
        names += [name + COMPILED for name in names if name.endswith(TABLE)]
    for name in names:
        fields = dataclasses.fields(registry.find("posteriors", name.partition(",")[0]))
        counts = COUNTS & {field.name for field in fields}
        for samples, replicas in ((10, 20), (1, 20), (10, 1), (1, 1)):
            if samples == 1 or counts:
                cost = per_update(name, samples, replicas, seconds) * BATCHES * EPOCHS / replicas
                print(json.dumps({"method": name, "samples": samples, "splits": replicas, "seconds": cost}), flush=True)


if __name__ == "__main__":
    main()
