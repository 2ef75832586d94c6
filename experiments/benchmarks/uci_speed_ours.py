"""One round of `uci_speed` with the library found by Python: `python uci_speed_ours.py SECONDS [POSTERIOR ...]`.

Prints a line of JSON a posterior and form. It uses nothing that older checkouts lack.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time

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


def per_update(name: str, samples: int, replicas: int, seconds: float) -> float:
    """Processor seconds of an update, after one that warms up, in the mean over a training.

    At least two and at most two epochs are timed.
    """
    cls = registry.find("posteriors", name.removesuffix(TABLE))
    settings: dict[str, object] = {"adaptive_damping": False} if name in KRONECKER else {}
    if name.endswith(TABLE):
        settings = registry.settings_in(cls, "default")
    settings |= {field.name: samples for field in dataclasses.fields(cls) if field.name in COUNTS}
    posterior = cls(net=Net(mlp(13, [50], 1)), likelihood=Gaussian(), **settings)
    rng = Rng(0)
    batch = Batch(rng.normal(replicas, 10, 13), rng.normal(replicas, 10, 1))
    state = posterior.init(EXAMPLES, replicas, rng)
    for _ in range(2):
        start = time.process_time()
        state, _ = posterior.update(state, batch, rng, 0.9)
        once = time.process_time() - start
    count = min(max(2, int(seconds / once)), 2 * BATCHES)
    start = time.process_time()
    for i in range(count):
        state, _ = posterior.update(state, batch, rng, i / count)
    return (time.process_time() - start) / count


def main() -> None:
    """Measure every form of every posterior."""
    torch.set_num_threads(1)
    seconds, names = float(sys.argv[1]), sys.argv[2:]
    names = names or [name for name in registry.names("posteriors") if name != "hmc"]
    names += [name + TABLE for name in names if name in KRONECKER]
    for name in names:
        fields = dataclasses.fields(registry.find("posteriors", name.partition(",")[0]))
        counts = COUNTS & {field.name for field in fields}
        for samples, replicas in ((10, 20), (1, 20), (10, 1), (1, 1)):
            if samples == 1 or counts:
                cost = per_update(name, samples, replicas, seconds) * BATCHES * EPOCHS / replicas
                print(json.dumps({"method": name, "samples": samples, "splits": replicas, "seconds": cost}), flush=True)


if __name__ == "__main__":
    main()
