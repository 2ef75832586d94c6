"""What the intrinsic reward costs: scoring a rollout, and the model's updates after it.

    python -m experiments.benchmarks.bonus

5000 transitions of a 17-dimensional observation and a 6-dimensional action, a dynamics model with 32 hidden units, 10
weight samples and otherwise the posterior's `vime` preset; 50 updates on batches of 100. For scale, "one by one" is an
update from the state before for every transition, as in VIME's own code; timed on some of them. The stored results also
have that code's KL divergence between the two states in it. Processor time of one thread, as the machine may be shared,
or with `--device cuda` seconds; medians. Writes results/bonus.csv and .md, or bonus_gpu.csv and .md.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np
import pandas as pd
import torch
from gymnasium.spaces import Box

from experiments.tables import markdown
from explore.core.shapes import Batch
from explore.vime import IntrinsicReward, Transitions

HERE = Path(__file__).parent
POSTERIORS = ("noisy-kfac", "noisy-ekfac", "slang", "vogn", "whvi", "bbb")


def transitions(n: int, observations: int, actions: int) -> Transitions:
    rng = np.random.default_rng(0)
    o, a = rng.normal(size=(n, observations)), rng.uniform(-1, 1, (n, actions))
    return Transitions(o, a, np.tanh(o + a @ rng.normal(size=(actions, observations))))


def seconds(work: Callable[[], object], repeats: int, device: str) -> float:
    clock = time.perf_counter if device.startswith("cuda") else time.process_time
    times = []
    for _ in range(repeats + 1):
        start = clock()
        work()
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        times.append(clock() - start)
    return statistics.median(times[1:])


def measure(
    name: str, n: int, observations: int, actions: int, alone: int, repeats: int, device: str
) -> dict[str, float | str]:
    spaces = Box(-np.inf, np.inf, (observations,)), Box(-1.0, 1.0, (actions,))
    reward = IntrinsicReward(*spaces, posterior=name, device=device)
    data = transitions(n, observations, actions)
    reward.batch(data)
    posterior, state = reward.model.posterior, reward.model.state.posterior
    batch = reward.model.batch(*reward.tensors(data))

    def one_by_one() -> None:
        for i in range(alone):
            one = Batch(batch.x[:, i : i + 1], batch.y[:, i : i + 1])
            posterior.update(state, one, reward.rng.stream("fit", i))

    score = seconds(lambda: reward.score(data), repeats, device)
    single = seconds(one_by_one, 1, device) / alone * n
    updates = seconds(lambda: reward.model.train(reward.replay, reward.rng.stream("fit", 0)), repeats, device)
    return {
        "posterior": name, "score_s": score, "updates_s": updates, "iteration_s": score + updates,
        "one_by_one_s": single, "times_faster": single / score,
    }  # fmt: skip


@click.command()
@click.option("--transitions", "n", type=click.IntRange(min=1), default=5000, show_default=True)
@click.option("--alone", type=click.IntRange(min=1), default=200, show_default=True, help="Timed one by one.")
@click.option("--repeats", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--device", default="cpu", show_default=True)
def main(n: int, alone: int, repeats: int, device: str) -> None:
    """Measure all posteriors and write the table."""
    torch.set_num_threads(1)
    rows = []
    for name in POSTERIORS:
        rows.append(measure(name, n, 17, 6, alone, repeats, device))
        click.echo(rows[-1])
    table = pd.DataFrame(rows)
    stem = HERE / "results" / ("bonus_gpu" if device.startswith("cuda") else "bonus")
    table.to_csv(stem.with_suffix(".csv"), index=False, float_format="%.4g")
    lines = [[v if isinstance(v, str) else f"{v:.3g}" if v < 1000 else f"{v:.0f}" for v in row] for row in table.values]
    stem.with_suffix(".md").write_text(markdown(list(table), lines))


if __name__ == "__main__":
    main()
