"""Does the bonus rank transitions by how often they were seen, and what does it cost?

    python -m experiments.benchmarks.visits

Random steps in 16 copies of a chain of 40 states, 12,288 in all, in batches of 2,048. Then all pairs of state and
action are scored: the rank correlation of the bonus with 1 / visits over pairs that were visited, and the median bonus
of steps into states never visited, divided by the 99th percentile over visited pairs. `rnd` and `count` are about the
next state alone: their ranks are beside 1 / arrivals. `microseconds` a step are
processor time of one thread, `beside RND` its ratio to random network distillation on the same steps. Writes
results/visits.csv and .md.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click
import numpy as np
import pandas as pd
import torch
from gymnasium.spaces import Box, Discrete
from scipy.stats import spearmanr

from experiments.tables import markdown
from explore.envs.chain import Chain
from explore.vime import IntrinsicReward, Transitions

LENGTH, COPIES, STEPS, BATCH = 40, 16, 768, 2048
RESULTS = Path(__file__).parent / "results"
BONUSES: dict[str, dict[str, Any]] = {
    "last-layer, kl": {"posterior": "last-layer", "bonus": "kl"},
    "last-layer, expected-gain": {},
    "noisy-kfac, kl": {"posterior": "noisy-kfac", "bonus": "kl"},
    'noisy-kfac, kl, n_eff="replay"': {"posterior": "noisy-kfac", "bonus": "kl", "n_eff": "replay"},
    "noisy-kfac, expected-gain": {"posterior": "noisy-kfac"},
    'noisy-kfac, expected-gain, n_eff="replay"': {"posterior": "noisy-kfac", "n_eff": "replay"},
    "bbb, kl": {"posterior": "bbb", "bonus": "kl"},
    **{name: {"bonus": name} for name in ("rnd", "count", "icm", "disagreement")},
}


def transitions(states: Any, actions: Any) -> Transitions:
    after = np.clip(states + 2 * actions - 1, 0, LENGTH - 1)
    one_hot = np.eye(LENGTH, dtype=np.float32)
    return Transitions(one_hot[states], np.eye(2, dtype=np.float32)[actions], one_hot[after])


def walked(seed: int) -> tuple[Any, Any]:
    """States and actions of random steps."""
    rng, chain = np.random.default_rng(seed), Chain(COPIES, LENGTH)
    every, horizon = [], chain.length + 9
    for step in range(STEPS):
        if step % horizon == 0:
            chain.start(np.arange(COPIES), np.zeros((COPIES, 0)))
        actions = rng.integers(0, 2, COPIES)
        every.append((chain.state, actions))
        chain.step(actions)
    states, taken = (np.concatenate(part) for part in zip(*every, strict=True))
    return states, taken


def learnt(bonus: Any, steps: Transitions) -> float:
    """Pay for all batches; microseconds a step."""
    begin = time.process_time()
    for first in range(0, len(steps.actions), BATCH):
        bonus.batch(Transitions(*(part[first : first + BATCH] for part in steps[:3])))
    return 1e6 * (time.process_time() - begin) / len(steps.actions)


def measured(settings: dict[str, Any], seed: int) -> dict[str, float]:
    states, actions = walked(seed)
    steps, spaces = transitions(states, actions), (Box(0, 1, (LENGTH,), np.float32), Discrete(2))
    bonus = IntrinsicReward(*spaces, seed=seed, **settings)
    cost, rival = learnt(bonus, steps), learnt(IntrinsicReward(*spaces, seed=seed, bonus="rnd"), steps)
    pairs = np.repeat(np.arange(LENGTH), 2), np.tile([0, 1], LENGTH)
    scored = transitions(*pairs)
    visits, seen = np.zeros((LENGTH, 2)), np.zeros(LENGTH, bool)
    np.add.at(visits, (states, actions), 1)
    seen[states] = seen[steps.following.argmax(1)] = True
    raw, count, new = bonus.score(scored), visits[pairs], ~seen[scored.following.argmax(1)]
    known = count > 0
    if settings.get("bonus") in ("rnd", "count"):
        count = np.bincount(steps.following.argmax(1), minlength=LENGTH)[scored.following.argmax(1)]
    return {
        "rank correlation": spearmanr(raw[known], 1 / count[known]).statistic,
        "unseen": np.median(raw[new]) / np.quantile(raw[known], 0.99),
        "microseconds": cost, "beside RND": cost / rival,
    }  # fmt: skip


@click.command()
@click.option("--seeds", type=click.IntRange(min=1), default=3, show_default=True)
def main(seeds: int) -> None:
    """Measure all bonuses and write the table."""
    torch.set_num_threads(1)
    rows = [
        {"bonus": name, "seed": seed} | measured(settings, seed)
        for name, settings in BONUSES.items()
        for seed in range(seeds)
    ]
    table = pd.DataFrame(rows)
    table.to_csv(RESULTS / "visits.csv", index=False, float_format="%.4g")
    lines = []
    for name, own in table.groupby("bonus", sort=False):
        ranks, unseen = (", ".join(f"{v:.2f}" for v in own[tag]) for tag in ("rank correlation", "unseen"))
        lines.append([name, ranks, unseen, *(f"{own[tag].median():.3g}" for tag in ("microseconds", "beside RND"))])
    heads = ["", "rank correlation", "unseen", "microseconds a step", "beside RND"]
    text = markdown(heads, lines)
    (RESULTS / "visits.md").write_text(text + "\n", encoding="utf-8")
    click.echo(text)


if __name__ == "__main__":
    main()
