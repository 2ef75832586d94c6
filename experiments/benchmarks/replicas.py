"""What it costs to run trials side by side, as replicas of one batch, against one after another.

    python -m experiments.benchmarks.replicas

Active learning on Boston with the settings of `explore active` but fewer epochs and rounds, both arms, in processor
seconds of one thread, as the machine may be shared. Each way is timed `--repeats` times in turn; the ratio is that of
the medians. Writes results/replicas.csv.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import click
import numpy as np
import pandas as pd
import torch

from explore import registry
from explore.data import load, pool_splits
from explore.learning.learner import ActiveLearner, active_loop
from explore.nets.likelihoods import Gaussian
from explore.nets.net import Net, mlp

HERE = Path(__file__).parent


def run(name: str, trials: list[int], rounds: int, epochs: int) -> float:
    """Processor seconds for the given trials in one batch."""
    data = load("boston")
    split = pool_splits(len(data.x), max(trials) + 1, 20, 100, seed=0)
    labelled, test = (np.tile(part[trials], (2, 1)) for part in (split.labelled, split.test))
    allowed = np.ones((len(trials), len(data.x)), bool)
    np.put_along_axis(allowed, split.test[trials], False, axis=1)
    cls = registry.find("posteriors", name)
    settings = registry.settings_in(cls, "small") | {"epochs": epochs}
    posterior = cls(net=Net(mlp(data.x.shape[1], [10], 1)), likelihood=Gaussian(), **settings)
    rules = [registry.find("acquisitions", rule) for rule in ("max-variance", "random")]
    start = time.process_time()
    learner = ActiveLearner(posterior, data.x, rules, trials=len(trials), allowed=allowed)
    learner.tell(labelled, data.y[labelled])
    for _ in active_loop(learner, data.y, torch.as_tensor(test), rounds):
        pass
    return time.process_time() - start


@click.command()
@click.option("--posterior", default="noisy-kfac", show_default=True)
@click.option("--trials", default=20, show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option("--epochs", default=100, show_default=True)
@click.option("--repeats", default=3, show_default=True)
def main(posterior: str, trials: int, rounds: int, epochs: int, repeats: int) -> None:
    """Print the seconds of both ways and their ratio."""
    torch.set_num_threads(1)
    run(posterior, [0], 1, 5)  # warm-up
    together, apart = [], []
    for _ in range(repeats):
        together.append(run(posterior, list(range(trials)), rounds, epochs))
        apart.append(sum(run(posterior, [t], rounds, epochs) for t in range(trials)))
    a, b = statistics.median(together), statistics.median(apart)
    table = pd.DataFrame({"repeat": range(1, repeats + 1), "together_s": together, "apart_s": apart})
    table.insert(0, "posterior", posterior)
    table.insert(1, "trials", trials)
    table.to_csv(HERE / "results" / "replicas.csv", index=False, float_format="%.4g")
    print(f"{posterior}: {trials} trials side by side {a:.2f} s, one after another {b:.2f} s, ratio 1/{b / a:.1f}")


if __name__ == "__main__":
    main()
