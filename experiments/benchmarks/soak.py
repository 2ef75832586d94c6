"""Does memory stay the same over two million steps with the default bonus?

    python -m experiments.benchmarks.soak

Random steps in 16 copies of a chain of 40 states, in rollouts of 2,048. Prints resident memory and processor time every
200,000 steps, and writes results/soak.csv.
"""

from __future__ import annotations

import resource
import time
from pathlib import Path

import click
import numpy as np
import pandas as pd
import torch
from gymnasium.spaces import Box, Discrete

from experiments.benchmarks import visits
from explore.envs.chain import Chain
from explore.vime import IntrinsicReward

RESULTS, EVERY = Path(__file__).parent / "results", 200_000


@click.command()
@click.option("--steps", type=click.IntRange(min=1), default=2_000_000, show_default=True)
def main(steps: int) -> None:
    """Pay for random steps, and watch the memory."""
    torch.set_num_threads(1)
    rng, chain = np.random.default_rng(0), Chain(visits.COPIES, visits.LENGTH)
    bonus = IntrinsicReward(Box(0, 1, (visits.LENGTH,), np.float32), Discrete(2))
    rows, start = [], time.process_time()
    for done in range(visits.BATCH, steps + 1, visits.BATCH):
        parts = []
        for _ in range(visits.BATCH // visits.COPIES):
            actions = rng.integers(0, 2, visits.COPIES)
            parts.append((chain.state, actions))
            chain.step(actions)
            chain.start(chain.steps >= chain.horizon, np.zeros((int((chain.steps >= chain.horizon).sum()), 0)))
        bonus.batch(visits.transitions(*(np.concatenate(part) for part in zip(*parts, strict=True))))
        if done % EVERY < visits.BATCH:
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            rows.append({"steps": done, "MiB": memory, "seconds": time.process_time() - start})
            click.echo("{steps} steps, {MiB:.0f} MiB, {seconds:.0f} s".format(**rows[-1]))
    pd.DataFrame(rows).to_csv(RESULTS / "soak.csv", index=False, float_format="%.4g")


if __name__ == "__main__":
    main()
