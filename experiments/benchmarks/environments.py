"""What white noise finds in the sparse environments, and how many steps a second they make.

    python -m experiments.benchmarks.environments

Noise: independent N(0, 1) actions, clipped to [-1, 1], as of an untrained Gaussian policy; episodes of 500 steps; the
share of episodes with any reward, with its standard error, the mean return and the mean length. Both rewards of the
double pendulum and both resets of the cart-pole. Speed: processor time of one thread, as the machine may be shared, of
`VectorEnv.step` with noise, medians. Writes results/environments.csv and .md.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import click
import gymnasium as gym
import numpy as np
import pandas as pd
from gymnasium.vector import AutoresetMode, VectorEnv

import explore.envs  # noqa: F401
from experiments.tables import markdown

HERE = Path(__file__).parent
CASES: list[tuple[str, dict[str, Any], int]] = [  # environment, settings, share of the episodes in percent
    ("SparseCartPoleSwingup", {}, 5000),
    ("SparseCartPoleSwingup", {"reset": "consistent"}, 500),
    ("SparseMountainCar", {}, 20),
    ("SparseDoublePendulum", {"threshold": 1.0}, 100),
    ("SparseDoublePendulum", {"threshold": 0.1}, 100),
]


def make(name: str, n: int, settings: dict[str, Any]) -> VectorEnv[Any, Any, Any]:
    mode = AutoresetMode.SAME_STEP
    return gym.make_vec(
        f"explore/{name}-v0", n, vectorization_mode="vector_entry_point", autoreset_mode=mode, **settings
    )


def noise(name: str, settings: dict[str, Any], episodes: int, seed: int) -> dict[str, float]:
    """The first `episodes / n` episodes of each of n copies; later ones would favour short episodes."""
    n = min(episodes, 1000)
    env, rng = make(name, n, settings), np.random.default_rng(seed)
    env.reset(seed=seed)
    returns, lengths, total = np.zeros(n), np.zeros(n, int), -(-episodes // n)
    done: list[list[tuple[float, int]]] = [[] for _ in range(n)]
    while min(map(len, done)) < total:
        _, reward, terminated, truncated, _ = env.step(rng.standard_normal((n, 1)))
        returns += reward
        lengths += 1
        for i in np.flatnonzero(terminated | truncated):
            done[i].append((returns[i], lengths[i]))
            returns[i] = lengths[i] = 0
    found = np.array([episode for copy in done for episode in copy[:total]])
    share = (found[:, 0] > 0).mean()
    error = (share * (1 - share) / len(found)) ** 0.5
    return {
        "episodes": len(found), "success %": 100 * share, "s.e.": 100 * error, "mean return": found[:, 0].mean(),
        "mean length": found[:, 1].mean(),
    }  # fmt: skip


def speed(name: str, settings: dict[str, Any], n: int, repeats: int = 7, seconds: float = 0.1) -> float:
    """Median of environment steps a second of processor time."""
    env, rng = make(name, n, settings), np.random.default_rng(0)
    env.reset(seed=0)
    actions = rng.standard_normal((100, n, 1)).astype(np.float32)
    rates = []
    for _ in range(repeats):
        start, steps = time.process_time(), 0
        while time.process_time() - start < seconds:
            env.step(actions[steps % 100])
            steps += 1
        rates.append(n * steps / (time.process_time() - start))
    return statistics.median(rates)


@click.command()
@click.option("--episodes", default=2000, show_default=True, help="Of the double pendulum; others have a share of it.")
@click.option("--seed", default=0, show_default=True)
def main(episodes: int, seed: int) -> None:
    """Measure and write the tables."""
    rows = []
    for name, settings, percent in CASES:
        row = {"environment": name, "settings": " ".join(f"{k}={v}" for k, v in settings.items())}
        row |= noise(name, settings, episodes * percent // 100, seed)  # type: ignore[arg-type]
        for n in (1, 1024) if "MountainCar" not in name else (1, 64):
            row[f"steps/s, {'one' if n == 1 else 'batched'}"] = round(speed(name, settings, n), -2)  # type: ignore
        click.echo(row)
        rows.append(row)
    table = pd.DataFrame(rows)
    out = HERE / "results"
    table.to_csv(out / "environments.csv", index=False, float_format="%.6g")
    lines = [
        [f"{v:,.0f}" if isinstance(v, float) and v >= 1000 else f"{v:.3g}" if isinstance(v, float) else v for v in row]
        for row in table.itertuples(index=False)
    ]
    text = "Made by `environments.py`, which says what is measured. Batched: 1024 copies, or 64 mountain cars.\n\n"
    (out / "environments.md").write_text(text + markdown(list(table), lines), encoding="utf-8")


if __name__ == "__main__":
    main()
