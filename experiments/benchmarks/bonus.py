"""What the bonus costs: runs beside random network distillation, and one iteration of a posterior.

    python -m experiments.benchmarks.bonus

1. A run of 30 batches of 2,048 transitions: scoring each batch, then training on it, with default settings. Three
   worlds: a robot with 17 numbers and 6 actions, and walks with one-hot observations of 40 and 400 numbers.
   Milliseconds per 1,000 transitions, and the ratio to random network distillation (rnd). Writes
   results/bonus_run.csv.
2. An iteration with 5,000 transitions of the robot, a dynamics model with 32 hidden units, 10 weight samples and
   otherwise the posterior's `vime` preset; 50 updates on batches of 100. For scale, "one by one" is an update from the
   state before for every transition, as in VIME's own code; timed on some of them. Writes results/bonus.csv.

Processor time of one thread, as the machine may be shared, or with `--device cuda` seconds; medians of the second part.
Both tables are in results/bonus.md. With `--device cuda` the names begin with bonus_gpu.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

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
BONUSES: dict[str, dict[str, Any]] = {
    "rnd": {"bonus": "rnd"}, "last-layer": {}, "noisy-kfac": {"bonus": "kl", "posterior": "noisy-kfac"},
    "bbb": {"bonus": "kl", "posterior": "bbb"}, "count": {"bonus": "count"}, "icm": {"bonus": "icm"},
    "disagreement": {"bonus": "disagreement"}, "e3b": {"bonus": "e3b"}, "novelty": {"bonus": "novelty"},
}  # fmt: skip
BATCHES, STEPS = 30, 2048


def transitions(n: int, observations: int, actions: int) -> Transitions:
    rng = np.random.default_rng(0)
    o, a = rng.normal(size=(n, observations)), rng.uniform(-1, 1, (n, actions))
    return Transitions(o, a, np.tanh(o + a @ rng.normal(size=(actions, observations))))


def walks(n: int, size: int) -> Transitions:
    """Return steps of 16 walkers on a ring of states, whose two actions lead one and three states on."""
    rng = np.random.default_rng(0)
    chosen = rng.integers(0, 2, (n // 16, 16))
    at = (np.cumsum(1 + 2 * chosen, 0) + np.arange(16)) % size
    states, actions = np.eye(size, dtype=np.float32), np.eye(2, dtype=np.float32)
    before = (at - 1 - 2 * chosen) % size
    return Transitions(states[before.ravel()], actions[chosen.ravel()], states[at.ravel()])


WORLDS: dict[str, Callable[[int], Transitions]] = {
    "robot, 17": lambda n: transitions(n, 17, 6), "one-hot, 40": lambda n: walks(n, 40),
    "one-hot, 400": lambda n: walks(n, 400),
}  # fmt: skip


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


def intrinsic(data: Transitions, device: str, **settings: Any) -> IntrinsicReward:
    spaces = Box(-np.inf, np.inf, data.observations.shape[1:]), Box(-1.0, 1.0, data.actions.shape[1:])
    return IntrinsicReward(*spaces, device=device, **settings)


def runs(device: str) -> Iterator[dict[str, float | str]]:
    """Measure the first part: a line per bonus and world. The first of two runs warms up."""
    for world, make in WORLDS.items():
        data = make(BATCHES * STEPS)
        parts = [Transitions(*(a[i : i + STEPS] for a in data[:3])) for i in range(0, BATCHES * STEPS, STEPS)]
        base = None
        for name, settings in BONUSES.items():

            def run(settings: dict[str, Any] = settings, parts: list[Transitions] = parts) -> None:
                reward = intrinsic(parts[0], device, **settings)
                for part in parts:
                    reward.batch(part)

            cost = 1e6 * seconds(run, 1, device) / (BATCHES * STEPS)
            base = base or cost
            yield {"world": world, "bonus": name, "ms_per_1000": cost, "beside_rnd": cost / base}


def measure(name: str, n: int, alone: int, repeats: int, device: str) -> dict[str, float | str]:
    data = transitions(n, 17, 6)
    reward = intrinsic(data, device, posterior=name)
    reward.batch(data)
    posterior, state = reward.model.posterior, reward.model.state
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


def shown(table: pd.DataFrame) -> str:
    lines = [[v if isinstance(v, str) else f"{v:.3g}" if v < 1000 else f"{v:.0f}" for v in row] for row in table.values]
    return markdown(list(table), lines)


@click.command()
@click.option("--transitions", "n", type=click.IntRange(min=1), default=5000, show_default=True)
@click.option("--alone", type=click.IntRange(min=1), default=200, show_default=True, help="Timed one by one.")
@click.option("--repeats", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--device", default="cpu", show_default=True)
def main(n: int, alone: int, repeats: int, device: str) -> None:
    """Measure all bonuses and posteriors, and write the tables."""
    torch.set_num_threads(1)
    stem = HERE / "results" / ("bonus_gpu" if device.startswith("cuda") else "bonus")
    whole = pd.DataFrame(runs(device))
    whole.to_csv(f"{stem}_run.csv", index=False, float_format="%.4g")
    click.echo(shown(whole))
    each = pd.DataFrame([measure(name, n, alone, repeats, device) for name in POSTERIORS])
    each.to_csv(stem.with_suffix(".csv"), index=False, float_format="%.4g")
    click.echo(shown(each))
    beside = whole.assign(cell=[f"{m:.3g} ({r:.2g})" for m, r in zip(whole.ms_per_1000, whole.beside_rnd, strict=True)])
    wide = beside.pivot(index="bonus", columns="world", values="cell").loc[list(BONUSES), list(WORLDS)].reset_index()
    title = "Milliseconds per 1,000 transitions of a run and, in brackets, the ratio to rnd:\n\n"
    stem.with_suffix(".md").write_text(f"{title}{shown(wide)}\nOne iteration with 5,000 transitions:\n\n{shown(each)}")


if __name__ == "__main__":
    main()
