"""Seconds and peak memory of choosing from a large pool, by each rule, and of predicting at all its points.

    python -m experiments.benchmarks.large_pool                          # 1,000,000 x 13 and 200,000 x 8
    python -m experiments.benchmarks.large_pool --points 10000000 --features 13 --mapped --rule max-variance

The model is noisy K-FAC on a net with 50 hidden units, fitted to 20 labels, with 100 weight samples. The pool is
random, in single precision: in memory, or a memory map of a file. One point is asked for. Every case is a process of
its own. Peak is its high-water mark, the pool, Python and torch among it, and `above` how much of that came with the
call; the pages of a memory map count while the system keeps them. On a machine that others use too, wall time says
little, and of processor seconds only those of one thread do, as threads that wait for each other use them too.

Writes results/large_pool.csv and .md beside this file.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click
import numpy as np
import pandas as pd
import torch

import explore
from experiments.tables import markdown

RESULTS = Path(__file__).parent / "results" / "large_pool"
SIZES = [(200_000, 8), (1_000_000, 13)]
RULES = ["random", "max-variance", "information-gain", "epig", "predict"]
HEADS = ["points", "features", "pool", "call", "seconds", "processor seconds", "peak MiB", "above MiB"]


def peak() -> float:
    """The high-water mark of this process in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def pool(points: int, features: int, folder: str | None) -> np.ndarray:
    """Random numbers, drawn in parts, so that a memory map may be larger than memory."""
    rng, shape = np.random.default_rng(0), (points, features)
    if folder is None:
        return rng.standard_normal(shape, dtype=np.float32)
    x = np.lib.format.open_memmap(Path(folder) / "pool.npy", "w+", np.float32, shape)
    for start in range(0, points, 2**16):
        part = x[start : start + 2**16]
        part[:] = rng.standard_normal(part.shape, dtype=np.float32)
    x.flush()
    return np.load(Path(folder) / "pool.npy", mmap_mode="r")


def measure(points: int, features: int, call: str, threads: int, mapped: bool) -> dict[str, float]:
    """One case, in this process."""
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as folder:
        x = pool(points, features, folder if mapped else None)
        net = explore.Net(explore.mlp(features, [50], 1))
        posterior = explore.posterior("noisy-kfac", net, explore.Gaussian(), "small", epochs=100)
        learner = explore.ActiveLearner(posterior, x, ["random" if call == "predict" else call])
        learner.tell(range(20), x[:20].sum(1))
        for _ in learner.fit():
            pass
        before, wall, processor = peak(), time.perf_counter(), time.process_time()
        if call == "predict":
            learner.predict(x)
        else:
            learner.ask(1)
        seconds = time.perf_counter() - wall, time.process_time() - processor
        return dict(zip(HEADS[4:], (*seconds, peak(), peak() - before), strict=True))


def row(points: int, features: int, call: str, threads: int, mapped: bool) -> list[object]:
    """The same in a process of its own."""
    case = json.dumps([points, features, call, threads, mapped])
    code = (
        "import json, sys; from experiments.benchmarks.large_pool import measure; "
        "print(json.dumps(measure(*json.loads(sys.argv[1]))))"
    )
    done = subprocess.run([sys.executable, "-c", code, case], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    return [points, features, "memory map" if mapped else "array", call, *found.values()]


@click.command()
@click.option("--points", type=int, help="With --features, one size in place of both.")
@click.option("--features", type=int)
@click.option("--rule", "rules", multiple=True, default=RULES, show_default=True, help="Or predict.")
@click.option("--threads", default=2, show_default=True)
@click.option("--mapped/--array", default=False, help="A memory map of a file.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), default=RESULTS)
def main(
    points: int | None, features: int | None, rules: tuple[str, ...], threads: int, mapped: bool, out: Path
) -> None:
    if (points is None) != (features is None):
        raise click.UsageError("give --points and --features together")
    rows = []
    for size in [(points, features)] if points and features else SIZES:
        for rule in rules:
            rows.append(row(*size, rule, threads, mapped))
            print(*rows[-1], flush=True)
    table = pd.DataFrame(rows, columns=HEADS).round(2)
    out.parent.mkdir(exist_ok=True)
    table.to_csv(out.with_suffix(".csv"), index=False)
    head = f"<!-- python -m experiments.benchmarks.large_pool, {threads} threads, torch {torch.__version__} -->\n\n"
    out.with_suffix(".md").write_text(head + markdown(HEADS, table.astype(str).to_numpy().tolist()), encoding="utf-8")


if __name__ == "__main__":
    main()
